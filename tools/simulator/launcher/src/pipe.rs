//! The launcher's end of a process's standard output or error, read line by line.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::poll::{poll, pollfd};

/// Which stream a line was printed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

trait ReadFd: Read + AsRawFd + Send {}
impl<T: Read + AsRawFd + Send> ReadFd for T {}

/// See the module.
pub(crate) struct Pipe {
    stream: Stream,
    source: Box<dyn ReadFd>,
    partial: Vec<u8>,
}

impl Pipe {
    pub(crate) fn new(stream: Stream, source: impl Read + AsRawFd + Send + 'static) -> Pipe {
        Pipe { stream, source: Box::new(source), partial: Vec::new() }
    }

    pub(crate) fn pollfd(&self) -> libc::pollfd {
        pollfd(self.source.as_raw_fd(), libc::POLLIN)
    }

    /// Reads what is there. Returns whether more may come.
    pub(crate) fn read(&mut self, mut line: impl FnMut(Stream, String)) -> bool {
        let mut fd = [self.pollfd()];
        let mut buffer = [0; 16 << 10];
        let mut open = true;
        // Bounded, so that a process that prints without end does not keep the launcher here.
        for _ in 0..64 {
            // The pipe blocks, so ask first.
            if !open || !poll(&mut fd, Some(Duration::ZERO)) {
                break;
            }
            match self.source.read(&mut buffer) {
                Ok(0) => open = false,
                Ok(n) => self.partial.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => open = false,
            }
        }
        while let Some(end) = self.partial.iter().position(|b| *b == b'\n') {
            let bytes: Vec<u8> = self.partial.drain(..=end).collect();
            line(self.stream, String::from_utf8_lossy(&bytes[..end]).into_owned());
        }
        if !open && !self.partial.is_empty() {
            let bytes = std::mem::take(&mut self.partial);
            line(self.stream, String::from_utf8_lossy(&bytes).into_owned());
        }
        open
    }
}
