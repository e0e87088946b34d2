//! TCP by itself over a link: what there is to be had.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::network::{Link, Network};

/// Bytes of one write.
const BLOCK: usize = 1 << 20;

/// Waits longer than this are errors.
const DEADLINE: Duration = Duration::from_secs(20);

/// Bytes per second of one TCP connection from the first host to the second: `bytes`, rounded up to
/// whole blocks, after as many to warm up.
///
/// # Errors
/// The connection cannot be made or breaks.
pub fn tcp(network: &Network, rail: usize, bytes: usize) -> Result<f64, LabError> {
    let place = Network::address(Link { host: 1, rail });
    let fail = |e| LabError::new(format!("TCP to {place}"), e);
    let [from, to, ..] = network.hosts() else {
        return Err(LabError::text("TCP between hosts", "there are fewer than two"));
    };
    let listener = to.inside(|| TcpListener::bind((place.as_str(), 0)).map_err(fail))?;
    let port = listener.local_addr().map_err(fail)?.port();
    let mut sender = from.inside(|| TcpStream::connect((place.as_str(), port)).map_err(fail))?;
    sender.set_read_timeout(Some(DEADLINE)).map_err(fail)?;
    sender.set_write_timeout(Some(DEADLINE)).map_err(fail)?;
    sender.set_nodelay(true).map_err(fail)?;
    let blocks = bytes.div_ceil(BLOCK);
    std::thread::scope(|scope| {
        // It ends with the sender's end of the connection, if not before.
        let receiver = scope.spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(DEADLINE))?;
            let mut block = vec![0; BLOCK];
            for _ in 0..2 {
                (0..blocks).try_for_each(|_| stream.read_exact(&mut block))?;
                stream.write_all(&[1])?;
            }
            Ok(())
        });
        let mut send = || -> std::io::Result<f64> {
            let block = vec![0; BLOCK];
            let start = Instant::now();
            (0..blocks).try_for_each(|_| sender.write_all(&block))?;
            sender.read_exact(&mut [0])?;
            Ok((blocks * BLOCK) as f64 / start.elapsed().as_secs_f64())
        };
        let rate = send().and_then(|_| send()).map_err(fail);
        drop(sender);
        match receiver.join() {
            Ok(received) => received.map_err(fail).and(rate),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
