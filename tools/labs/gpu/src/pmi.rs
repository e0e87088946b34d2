//! A PMI-1 server for the PEs of one job: what `mpiexec` is to NVSHMEM's default bootstrap.
//!
//! PMI-1 is lines of `key=value` words over a socket; MPICH's wire protocol, version 1.1. A PE asks
//! and waits for the answer, so one line per PE is under way at most.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

/// Longest line either side sends. MPICH's limit is 1024.
const MAX_LINE: usize = 4096;

const SPACE: &str = "job";

/// The server's end of the sockets to all PEs.
#[derive(Debug)]
pub(crate) struct Server {
    pes: Vec<Connection>,
    values: HashMap<String, String>,
}

#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    line: Vec<u8>,
    in_barrier: bool,
    open: bool,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self { pes: Vec::new(), values: HashMap::new() }
    }

    /// Makes the connection of the next PE. Gives what becomes its standard input, and what else
    /// its environment needs.
    pub(crate) fn add(&mut self, size: u32) -> io::Result<(Stdio, Vec<(&'static str, String)>)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let rank = self.pes.len();
        self.pes.push(Connection { socket: ours, line: Vec::new(), in_barrier: false, open: true });
        let env = vec![
            ("PMI_FD", String::from("0")),
            ("PMI_RANK", rank.to_string()),
            ("PMI_SIZE", size.to_string()),
        ];
        Ok((Stdio::from(std::os::fd::OwnedFd::from(theirs)), env))
    }

    /// Answers what the PEs have asked so far. Never blocks for long: answers are a line each.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        for pe in 0..self.pes.len() {
            while let Some(line) = self.pes[pe].next_line()? {
                self.answer(pe, &line)?;
            }
        }
        if self.pes.iter().all(|pe| pe.in_barrier) {
            for pe in &mut self.pes {
                pe.in_barrier = false;
                pe.say("cmd=barrier_out rc=0 msg=success");
            }
        }
        Ok(())
    }

    fn answer(&mut self, pe: usize, line: &str) -> io::Result<()> {
        let words: HashMap<&str, &str> =
            line.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let word = |key: &str| words.get(key).copied().unwrap_or_default();
        let answer = match word("cmd") {
            "init" => String::from("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
            "get_maxes" => String::from("cmd=maxes kvsname_max=64 keylen_max=256 vallen_max=1024"),
            "get_appnum" => String::from("cmd=appnum appnum=0"),
            "get_universe_size" => {
                format!("cmd=universe_size size={} rc=0", self.pes.len())
            }
            "get_my_kvsname" => format!("cmd=my_kvsname kvsname={SPACE}"),
            "put" => {
                // The value is the rest of the line: it may have any characters but the end.
                let value = line.split_once("value=").map_or("", |(_, value)| value);
                self.values.insert(word("key").to_owned(), value.trim_end().to_owned());
                String::from("cmd=put_result rc=0 msg=success")
            }
            "get" => match self.values.get(word("key")) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => String::from("cmd=get_result rc=-1 msg=key_not_found value=unknown"),
            },
            "barrier_in" => {
                self.pes[pe].in_barrier = true;
                return Ok(());
            }
            "finalize" => String::from("cmd=finalize_ack rc=0 msg=success"),
            // The PE ends itself; its exit status says the rest.
            "abort" => return Ok(()),
            _ => {
                let text = format!("PE {pe} sent {line:?}, which this PMI server does not know");
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
        };
        self.pes[pe].say(&answer);
        Ok(())
    }
}

impl Connection {
    fn next_line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.line.len() > MAX_LINE {
                return Err(io::Error::new(ErrorKind::InvalidData, "a PMI line without an end"));
            }
            let mut bytes = [0; 1024];
            match self.socket.read(&mut bytes) {
                _ if !self.open => return Ok(None),
                Ok(0) => {
                    self.open = false;
                    return Ok(None);
                }
                Ok(count) => self.line.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A PE that has died; how is known from its exit status.
                Err(_) => {
                    self.open = false;
                    return Ok(None);
                }
            }
        }
    }

    fn say(&mut self, line: &str) {
        if self.socket.write_all(format!("{line}\n").as_bytes()).is_err() {
            self.open = false;
        }
    }
}
