//! The launcher's end of a PE's connection: messages both ways, none of which it waits for.

use std::io::{self, Read, Write};

use crate::launch::remote::BEGINS;
use crate::socket::Connection;
use crate::wire::{Frames, FromPe, ToPe, encode};

/// What may come from a host before its PE begins to speak.
const MOST_BEFORE: usize = 1 << 20;

/// See the module.
pub(super) struct Link {
    stream: Connection,
    /// What has come before the PE begins to speak, where others may do so first.
    before: Option<Vec<u8>>,
    frames: Frames,
    outbox: Vec<u8>,
    open: bool,
}

impl Link {
    pub(super) fn new(stream: Connection) -> Link {
        Link { stream, before: None, frames: Frames::default(), outbox: Vec::new(), open: true }
    }

    /// To a PE that a shell becomes, which may say something of its own before.
    pub(super) fn behind_shell(stream: Connection) -> Link {
        Link { before: Some(Vec::new()), ..Link::new(stream) }
    }

    /// Whether more may come.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn pollfds(&self) -> impl Iterator<Item = libc::pollfd> + use<> {
        self.stream.pollfds(!self.outbox.is_empty())
    }

    pub(super) fn read(&mut self) {
        let mut buffer = [0; 64 << 10];
        while self.open {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.open = false,
                Ok(n) => self.take(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.open = false,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let Some(before) = &mut self.before else { return self.frames.push(bytes) };
        before.extend_from_slice(bytes);
        let mark = format!("{BEGINS}\n");
        let at = before.windows(mark.len()).position(|window| window == mark.as_bytes());
        if let Some(at) = at {
            self.frames.push(&before[at + mark.len()..]);
            self.before = None;
        } else if before.len() > MOST_BEFORE {
            self.open = false;
        }
    }

    /// The next message. A garbled stream counts as closed.
    pub(super) fn next(&mut self) -> Option<FromPe> {
        self.frames.next().unwrap_or_else(|_| {
            self.open = false;
            None
        })
    }

    pub(super) fn send(&mut self, message: &ToPe) {
        self.outbox.extend_from_slice(&encode(message));
        self.write();
    }

    pub(super) fn write(&mut self) {
        while !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(n) => drop(self.outbox.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The PE has closed its end; reading will say so.
                Err(_) => self.outbox.clear(),
            }
        }
    }
}
