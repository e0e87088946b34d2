//! Single words in device memory, read and written by the CPU.

pub(crate) mod access;
pub(crate) mod deferred;
pub(crate) mod gdrcopy;
pub(crate) mod mapping;
pub(crate) mod stream_words;
pub(crate) mod word_range;
