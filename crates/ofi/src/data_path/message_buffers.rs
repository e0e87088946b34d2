//! The memory of a rail's messages: what is sent, and what is received into.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::slice;

use crate::objects::contexts::ContextArray;
use crate::objects::endpoint::MessageBuffer;
use engine::port::Desc;

/// A buffer of [`MessageBuffers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BufferId {
    /// One to send from.
    Send(u32),
    /// One to receive into.
    Receive(u32),
}

#[repr(C, align(64))]
struct Line([u8; LINE]);

const LINE: usize = 64;

/// Buffers of one length, each with a context, whose address names the buffer.
///
/// They lie in one piece, so that one registration covers them.
pub(crate) struct MessageBuffers {
    contexts: ContextArray,
    /// First those to send from, then those to receive into.
    lines: Box<[UnsafeCell<Line>]>,
    stride: usize,
    longest: usize,
    sends: usize,
    receives: usize,
}

// SAFETY: bytes are touched only through the unsafe methods, whose callers see to it that they
// belong to one thread and not to the provider.
unsafe impl Send for MessageBuffers {}
// SAFETY: as above.
unsafe impl Sync for MessageBuffers {}

impl MessageBuffers {
    /// So many buffers to send from and to receive into, each of `longest` bytes.
    pub(crate) fn new(sends: usize, receives: usize, longest: usize) -> Self {
        let stride = longest.div_ceil(LINE);
        let lines = (sends + receives) * stride;
        Self {
            contexts: ContextArray::new(sends + receives),
            lines: (0..lines).map(|_| UnsafeCell::new(Line([0; LINE]))).collect(),
            stride,
            longest,
            sends,
            receives,
        }
    }

    pub(crate) fn sends(&self) -> usize {
        self.sends
    }

    pub(crate) fn receives(&self) -> usize {
        self.receives
    }

    #[inline]
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// All of them, for registration: address and bytes.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.lines.as_ptr() as usize, size_of_val(&*self.lines))
    }

    #[inline]
    pub(crate) fn of_context(&self, context: *mut c_void) -> Option<BufferId> {
        let index = self.contexts.index_of(context)?;
        Some(if index < self.sends {
            BufferId::Send(index as u32)
        } else {
            BufferId::Receive((index - self.sends) as u32)
        })
    }

    /// The first `len` bytes of a buffer, as libfabric takes them. None if there are none such.
    #[inline]
    pub(crate) fn buffer(&self, id: BufferId, len: usize, desc: Desc) -> Option<MessageBuffer> {
        let index = self.index(id);
        if len > self.longest {
            return None;
        }
        Some(MessageBuffer {
            buf: self.first_line(index)?.cast(),
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
        let buffer = self.first_line(self.index(id))?;
        // SAFETY: the lines of the buffer have room for `longest` bytes and are initialised, and
        // the caller keeps everybody else away.
        Some(unsafe { slice::from_raw_parts_mut(buffer.cast(), self.longest) })
    }

    #[inline]
    fn first_line(&self, index: usize) -> Option<*mut Line> {
        let first = index * self.stride;
        let lines = self.lines.get(first..first + self.stride)?;
        Some(UnsafeCell::raw_get(lines.as_ptr()))
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
    fn buffers_are_disjoint_with_own_contexts() {
        for longest in [1, 64, 256, 4160] {
            let buffers = MessageBuffers::new(3, 2, longest);
            assert_eq!((buffers.sends(), buffers.receives(), buffers.longest()), (3, 2, longest));
            let ids = [0, 1, 2].map(BufferId::Send).into_iter();
            let ids: Vec<BufferId> = ids.chain([0, 1].map(BufferId::Receive)).collect();
            let (start, len) = buffers.memory();
            let mut taken = vec![false; len];
            for &id in &ids {
                let buffer = buffers.buffer(id, longest, Desc(7)).expect("it exists");
                assert_eq!(buffers.of_context(buffer.context), Some(id));
                assert_eq!(buffer.desc as usize, 7);
                let at = buffer.buf as usize - start;
                assert_eq!(at % LINE, 0);
                assert!(taken[at..at + longest].iter().all(|taken| !taken));
                taken[at..at + longest].fill(true);
                assert!(buffers.buffer(id, longest + 1, Desc(0)).is_none());
                // SAFETY: nothing was posted, and the bytes are dropped at once.
                assert_eq!(unsafe { buffers.bytes(id) }.map(|bytes| bytes.len()), Some(longest));
            }
            assert!(buffers.buffer(BufferId::Receive(2), 1, Desc(0)).is_none());
            assert_eq!(buffers.of_context(std::ptr::null_mut()), None);
            assert_eq!(buffers.of_context(start as *mut c_void), None);
        }
    }
}
