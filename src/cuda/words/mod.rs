//! Single words in device memory, read and written by the CPU.
//!
//! A word is read and written whole, by the shortest way that this memory has: a mapping of GDRCopy, a
//! mapped dma-buf, or the driver's streams.

pub(in crate::cuda) mod access;
pub(in crate::cuda) mod gdrcopy;
pub(in crate::cuda) mod mapping;
pub(in crate::cuda) mod stream_words;
pub(in crate::cuda) mod way;
pub(in crate::cuda) mod word_range;
