//! Single words in device memory, read and written by the CPU.
//!
//! A word is accessed whole, the shortest way that there is: GDRCopy's mapping or a stream.

pub(crate) mod access;
pub(crate) mod gdrcopy;
pub(crate) mod mapping;
pub(crate) mod stream_words;
pub(crate) mod together;
pub(crate) mod word_range;
