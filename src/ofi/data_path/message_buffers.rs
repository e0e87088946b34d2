//! The memory of a rail's messages: what is sent, and what is received into.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::slice;

use crate::engine::port::Desc;
use crate::engine::wire::message::MAX_MESSAGE;
use crate::ofi::objects::contexts::ContextArray;
use crate::ofi::objects::endpoint::MessageBuffer;

/// A buffer of [`MessageBuffers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BufferId {
    /// One to send from.
    Send(u32),
    /// One to receive into.
    Receive(u32),
}

#[repr(C, align(64))]
struct Buffer([u8; MAX_MESSAGE]);

/// Buffers of [`MAX_MESSAGE`] bytes, each with a context, whose address names the buffer.
///
/// They lie in one piece, so that one registration covers them.
pub(crate) struct MessageBuffers {
    contexts: ContextArray,
    /// First those to send from, then those to receive into.
    buffers: Box<[UnsafeCell<Buffer>]>,
    sends: usize,
}

// SAFETY: bytes are touched only through the unsafe methods, whose callers see to it that they
// belong to one thread and not to the provider.
unsafe impl Send for MessageBuffers {}
// SAFETY: as above.
unsafe impl Sync for MessageBuffers {}

impl MessageBuffers {
    pub(crate) fn new(sends: usize, receives: usize) -> Self {
        let buffer = || UnsafeCell::new(Buffer([0; MAX_MESSAGE]));
        Self {
            contexts: ContextArray::new(sends + receives),
            buffers: (0..sends + receives).map(|_| buffer()).collect(),
            sends,
        }
    }

    pub(crate) fn sends(&self) -> usize {
        self.sends
    }

    pub(crate) fn receives(&self) -> usize {
        self.buffers.len() - self.sends
    }

    /// All of them, for registration: address and bytes.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.buffers.as_ptr() as usize, size_of_val(&*self.buffers))
    }

    /// The buffer that a context belongs to. None for a pointer that is not one of the contexts.
    #[inline]
    pub(crate) fn of_context(&self, context: *mut c_void) -> Option<BufferId> {
        let index = self.contexts.index_of(context)?;
        Some(match index.checked_sub(self.sends) {
            None => BufferId::Send(index as u32),
            Some(index) => BufferId::Receive(index as u32),
        })
    }

    /// The first `len` bytes of a buffer, as libfabric takes them. None for an id that is none of
    /// these, or beyond [`MAX_MESSAGE`] bytes.
    #[inline]
    pub(crate) fn buffer(&self, id: BufferId, len: usize, desc: Desc) -> Option<MessageBuffer> {
        let index = self.index(id);
        if len > MAX_MESSAGE {
            return None;
        }
        Some(MessageBuffer {
            buf: self.buffers.get(index)?.get().cast(),
            len,
            desc: desc.0 as *mut c_void,
            context: self.contexts.get(index)?,
        })
    }

    /// The bytes of a buffer. None for an id that is none of these.
    ///
    /// # Safety
    /// The buffer is not posted, and as long as the result is used it is not posted and this is not
    /// called for it again.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes(&self, id: BufferId) -> Option<&mut [u8]> {
        let buffer = self.buffers.get(self.index(id))?.get();
        // SAFETY: inside the array, initialised, and the caller keeps everybody else away.
        Some(unsafe { slice::from_raw_parts_mut(buffer.cast(), MAX_MESSAGE) })
    }

    #[inline]
    fn index(&self, id: BufferId) -> usize {
        match id {
            BufferId::Send(index) => index as usize,
            BufferId::Receive(index) => self.sends + index as usize,
        }
    }
}

impl std::fmt::Debug for MessageBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageBuffers")
            .field("sends", &self.sends())
            .field("receives", &self.receives())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_is_found_by_its_context_and_no_two_overlap() {
        let buffers = MessageBuffers::new(3, 2);
        let ids = [0, 1, 2].map(BufferId::Send).into_iter();
        let ids: Vec<BufferId> = ids.chain([0, 1].map(BufferId::Receive)).collect();
        let (start, len) = buffers.memory();
        let mut taken = vec![false; len];
        for &id in &ids {
            let buffer = buffers.buffer(id, MAX_MESSAGE, Desc(7)).expect("it exists");
            assert_eq!(buffers.of_context(buffer.context), Some(id));
            assert_eq!(buffer.desc as usize, 7);
            let at = buffer.buf as usize - start;
            assert!(taken[at..at + MAX_MESSAGE].iter().all(|taken| !taken));
            taken[at..at + MAX_MESSAGE].fill(true);
            assert!(buffers.buffer(id, MAX_MESSAGE + 1, Desc(0)).is_none());
        }
        assert!(buffers.buffer(BufferId::Receive(2), 1, Desc(0)).is_none());
        assert_eq!(buffers.of_context(std::ptr::null_mut()), None);
        assert_eq!(buffers.of_context(start as *mut c_void), None);
    }
}
