//! PE 0's commands to PE 1, over a connection of their proxy threads on loopback: the transport is
//! what is measured, and the bootstrap is the main threads'.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nvshmem_sim::{BoxError, Job, SymAddr};
use serde::{Deserialize, Serialize};

use crate::plan::Side;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Progress what moves this side's data from now on; or nothing.
    Serve(Option<Side>),
    /// Progress the plugin until a word has at least this value, and `extra` times more.
    Await { word: SymAddr, value: u64, extra: u32 },
    /// Answer so many messages of a case, the first of which has this number.
    Answer { case: usize, side: Side, first: u64, count: u64 },
    /// Call [`nvshmem_bench_mark`].
    Mark,
}

/// Ends one of callgrind's dumps and begins the next.
// SAFETY: no other function of this program or its libraries has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn nvshmem_bench_mark() {
    // Two functions of the same code could become one.
    std::hint::black_box("nvshmem_bench_mark");
}

pub(crate) fn connect(job: &Job) -> Result<TcpStream, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ports = job.bootstrap.allgather(&listener.local_addr()?.port().to_le_bytes())?;
    if job.pe > 0 {
        return Ok(listener.accept()?.0);
    }
    let stream =
        TcpStream::connect((Ipv4Addr::LOCALHOST, u16::from_le_bytes([ports[2], ports[3]])))?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(stream)
}

/// Returns the commands that come, read by a thread: the proxy thread looks between two polls.
pub(crate) fn commands(stream: &TcpStream) -> std::io::Result<Receiver<Command>> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let (tell, commands) = channel();
    thread::spawn(move || {
        let mut commands = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok());
        // Until either end has gone.
        while commands.next().is_some_and(|command| tell.send(command).is_ok()) {}
    });
    Ok(commands)
}
