//! Counters of what the transport has carried for a PE: the proof that traffic went through it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// What one PE has exchanged with the others, over all lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Traffic {
    /// Segments that PEs have written to others: puts, and messages.
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    /// Bytes of the segments, and of what is staged and takes no segments: it goes in messages, or
    /// by buffers of a PE of the same host.
    pub(crate) bytes: u64,
    /// Messages: signals, atomics, requests about device memory.
    pub(crate) messages: u64,
}

impl Traffic {
    pub(crate) fn is_some(self) -> bool {
        self.writes + self.reads + self.messages > 0
    }

    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            writes: self.writes + other.writes,
            reads: self.reads + other.reads,
            bytes: self.bytes + other.bytes,
            messages: self.messages + other.messages,
        }
    }

    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let later = (2..).map(|job| PathBuf::from(format!("{}.{job}", path.display())));
        let later = later.take_while(|path| path.is_file());
        later
            .map(|path| Self::read_one(&path))
            .try_fold(Self::read_one(path)?, |all, one| Ok(all.and(one?)))
    }

    fn read_one(path: &Path) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| told(&error))?;
        let value: Value = serde_json::from_str(&text).map_err(|error| told(&error))?;
        Self::of(&value).ok_or_else(|| told(&"is no file of counters"))
    }

    fn of(value: &Value) -> Option<Self> {
        let me = value["pe"].as_u64()?;
        let mut all = Traffic::default();
        for lane in value["lanes"].as_array()? {
            for rail in lane["rails"].as_array()? {
                all.bytes += rail["bytes"].as_u64()?;
            }
            // Lanes that stage nothing say nothing of it.
            let staged = |way: &str| lane["staged"][way].as_u64().unwrap_or_default();
            all.bytes += staged("in_messages") + staged("shared");
            for peer in lane["peers"].as_array()? {
                if peer["pe"].as_u64()? == me {
                    continue;
                }
                all.writes += peer["writes"].as_u64()?;
                all.reads += peer["reads"].as_u64()?;
                all.messages += peer["sent"].as_u64()?;
            }
        }
        Some(all)
    }
}
