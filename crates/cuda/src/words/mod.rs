//! Single words in device memory, read and written by the CPU.
//!
//! A word is read and written whole, by the shortest way that this memory has: a mapping of
//! GDRCopy, or the driver's streams.

pub(crate) mod access;
pub(crate) mod gdrcopy;
pub(crate) mod mapping;
pub(crate) mod stream_words;
pub(crate) mod together;
pub(crate) mod word_range;
