//! An allgather over a star: every PE sends its bytes to PE 0, which sends all of them back.

use std::io;
use std::net::TcpStream;

use super::error::BootstrapError;
use super::frame::{Deadline, Frame, Kind, receive, send};

#[derive(Debug)]
pub(super) enum Star {
    /// PE 0, with one to each other PE: that of PE n at n - 1.
    Center(Vec<TcpStream>),
    /// Another PE, with one to PE 0.
    Ray(TcpStream),
}

const CALL: &str = "an allgather";

impl Star {
    /// [`super::Bootstrap::allgather`]; `number` counts the calls.
    pub(super) fn allgather(
        &mut self,
        mine: &[u8],
        n_pes: u32,
        number: u32,
        deadline: &Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        let total = mine.len() * n_pes as usize;
        match self {
            Self::Center(rays) => {
                let mut all = Vec::with_capacity(total);
                all.extend_from_slice(mine);
                for (pe, ray) in (1..).zip(rays.iter_mut()) {
                    let bytes = take(pe, receive(ray, deadline), number, mine.len())?;
                    all.extend_from_slice(&bytes);
                }
                for (pe, ray) in (1..).zip(rays.iter_mut()) {
                    let sent = send(ray, Kind::Gather, number, &all, deadline);
                    sent.map_err(|error| lost(pe, error))?;
                }
                Ok(all)
            }
            Self::Ray(center) => {
                let sent = send(center, Kind::Gather, number, mine, deadline);
                sent.map_err(|error| lost(0, error))?;
                take(0, receive(center, deadline), number, total)
            }
        }
    }
}

fn lost(pe: u32, error: io::Error) -> BootstrapError {
    BootstrapError::Lost { call: CALL, pe, error }
}

fn take(
    pe: u32,
    frame: io::Result<Frame>,
    number: u32,
    len: usize,
) -> Result<Vec<u8>, BootstrapError> {
    let frame = frame.map_err(|error| lost(pe, error))?;
    let differs = |why| Err(BootstrapError::Mismatch { call: CALL, pe, why });
    if frame.kind != Kind::Gather || frame.number != number {
        return differs(format!("is at its collective number {}, not {number}", frame.number));
    }
    if frame.bytes.len() != len {
        return differs(format!("sent {} bytes, not {len}", frame.bytes.len()));
    }
    Ok(frame.bytes)
}
