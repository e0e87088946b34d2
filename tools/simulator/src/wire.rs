//! Messages between a PE and the launcher, over a Unix stream socket.
//!
//! A frame is the length of what follows (u32, little endian), a kind (u8) and a body.

use std::io;

/// A body above this is a broken stream, not a message. The largest honest one is an allgather of
/// 512-byte handles or of what a plugin exchanges, times the number of PEs.
const MAX_FRAME: usize = 1 << 30;

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FromPe {
    Hello(u32),
    Join(Collective, Vec<u8>),
    Value(String, String),
    Finished,
    Failed(String),
    Panicked(String),
}

/// From the launcher to a PE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ToPe {
    /// The collective is complete; its result for this PE.
    Result(Vec<u8>),
    /// The job has failed; why.
    Abort(String),
}

impl FromPe {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            FromPe::Hello(pe) => frame(0, &[&pe.to_le_bytes()]),
            FromPe::Join(op, data) => frame(1, &[&[*op as u8], data]),
            FromPe::Value(key, value) => {
                frame(2, &[&(key.len() as u32).to_le_bytes(), key.as_bytes(), value.as_bytes()])
            }
            FromPe::Finished => frame(3, &[]),
            FromPe::Failed(text) => frame(4, &[text.as_bytes()]),
            FromPe::Panicked(text) => frame(5, &[text.as_bytes()]),
        }
    }

    pub(crate) fn decode(frame: &[u8]) -> io::Result<FromPe> {
        let (&kind, body) = frame.split_first().ok_or_else(broken)?;
        Ok(match kind {
            0 => FromPe::Hello(u32::from_le_bytes(body.try_into().map_err(|_| broken())?)),
            1 => {
                let (&op, data) = body.split_first().ok_or_else(broken)?;
                let op = [Collective::Barrier, Collective::Allgather, Collective::Alltoall]
                    .into_iter()
                    .find(|c| *c as u8 == op)
                    .ok_or_else(broken)?;
                FromPe::Join(op, data.to_vec())
            }
            2 => {
                let (len, rest) = body.split_first_chunk::<4>().ok_or_else(broken)?;
                let len = u32::from_le_bytes(*len) as usize;
                let (key, value) = rest.split_at_checked(len).ok_or_else(broken)?;
                FromPe::Value(text(key), text(value))
            }
            3 => FromPe::Finished,
            4 => FromPe::Failed(text(body)),
            5 => FromPe::Panicked(text(body)),
            _ => return Err(broken()),
        })
    }
}

impl ToPe {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            ToPe::Result(data) => frame(0, &[data]),
            ToPe::Abort(text) => frame(1, &[text.as_bytes()]),
        }
    }

    pub(crate) fn decode(frame: &[u8]) -> io::Result<ToPe> {
        let (&kind, body) = frame.split_first().ok_or_else(broken)?;
        match kind {
            0 => Ok(ToPe::Result(body.to_vec())),
            1 => Ok(ToPe::Abort(text(body))),
            _ => Err(broken()),
        }
    }
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

    /// The next whole frame, without its length.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(len) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_FRAME {
            return Err(broken());
        }
        if self.buffer.len() < 4 + len {
            return Ok(None);
        }
        let rest = self.buffer.split_off(4 + len);
        let mut frame = std::mem::replace(&mut self.buffer, rest);
        frame.drain(..4);
        Ok(Some(frame))
    }
}

fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len = 1 + parts.iter().map(|p| p.len()).sum::<usize>();
    let mut out = Vec::with_capacity(4 + len);
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.push(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
        let stream: Vec<u8> = messages.iter().flat_map(FromPe::encode).collect();
        for step in 1..stream.len() {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(step) {
                frames.push(piece);
                while let Some(frame) = frames.next().unwrap() {
                    seen.push(FromPe::decode(&frame).unwrap());
                }
            }
            assert_eq!(seen, messages);
        }
    }

    #[test]
    fn garbage_is_refused() {
        let mut frames = Frames::default();
        frames.push(&[0xff; 8]);
        assert!(frames.next().is_err());
        for frame in [&[][..], &[9], &[0, 1], &[1], &[1, 7], &[2, 9, 0, 0, 0]] {
            assert!(FromPe::decode(frame).is_err(), "{frame:?}");
        }
        assert!(ToPe::decode(&[]).is_err() && ToPe::decode(&[2]).is_err());
    }
}
