//! Messages between a PE and the launcher, over a stream socket.
//!
//! A frame is the length of what follows (u32, little endian) and a message in JSON.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A body above this is a broken stream, not a message. The largest honest one is an allgather of
/// 512-byte handles or of what a plugin exchanges, times the number of PEs.
const MAX_FRAME: usize = 1 << 30;

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Collective {
    Barrier,
    Allgather,
    Alltoall,
}

impl Collective {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Collective::Barrier => "barrier",
            Collective::Allgather => "allgather",
            Collective::Alltoall => "alltoall",
        }
    }
}

/// From a PE to the launcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FromPe {
    Hello(u32),
    Join(Collective, Vec<u8>),
    Value(String, String),
    Finished,
    Failed(String),
    Panicked(String),
}

/// From the launcher to a PE.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToPe {
    /// The collective is complete; its result for this PE.
    Result(Vec<u8>),
    /// The job has failed; why.
    Abort(String),
}

/// A message as a frame.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; 4];
    // Writing to memory does not fail, and neither does any of the messages.
    let written = serde_json::to_writer(&mut frame, message);
    debug_assert!(written.is_ok(), "{written:?}");
    let len = frame.len() as u32 - 4;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    frame
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
}

impl Frames {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The message of the next whole frame.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let Some(len) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_FRAME {
            return Err(broken());
        }
        if self.buffer.len() < 4 + len {
            return Ok(None);
        }
        let rest = self.buffer.split_off(4 + len);
        let frame = std::mem::replace(&mut self.buffer, rest);
        serde_json::from_slice(&frame[4..]).map(Some).map_err(|_| broken())
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message between PE and launcher is garbled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_any_cut_of_the_stream() {
        let messages = [
            FromPe::Hello(3),
            FromPe::Join(Collective::Alltoall, vec![1, 2, 3]),
            FromPe::Join(Collective::Barrier, vec![]),
            FromPe::Value("key".into(), "value".into()),
            FromPe::Failed("why".into()),
            FromPe::Panicked("why".into()),
            FromPe::Finished,
        ];
        let stream: Vec<u8> = messages.iter().flat_map(encode).collect();
        for step in 1..stream.len() {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(step) {
                frames.push(piece);
                while let Some(message) = frames.next::<FromPe>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, messages);
        }
    }

    #[test]
    fn garbage_is_refused() {
        for garbage in [&[0xff; 8][..], &encode(&"Hello"), &encode(&ToPe::Result(vec![1]))] {
            let mut frames = Frames::default();
            frames.push(garbage);
            assert!(frames.next::<FromPe>().is_err(), "{garbage:?}");
        }
    }
}
