//! Send and receive buffers of a rail's messages.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::slice;

use crate::objects::contexts::ContextArray;
use crate::objects::endpoint::MessageBuffer;
use engine::port::Desc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BufferId {
    Send(u32),
    Receive(u32),
}

#[repr(C, align(64))]
#[derive(Debug)]
struct Line([u8; LINE]);

const LINE: usize = 64;

/// Buffers of one length, each with a context, whose address identifies the buffer.
///
/// They are contiguous, so that one registration covers them.
#[derive(Debug)]
pub(crate) struct MessageBuffers {
    contexts: ContextArray,
    /// Send buffers, then receive buffers.
    lines: Box<[UnsafeCell<Line>]>,
    stride: usize,
    pub(crate) longest: usize,
    pub(crate) sends: usize,
    pub(crate) receives: usize,
}

// SAFETY: bytes are accessed only through the unsafe methods, whose callers promise that one thread
// uses them, and not the provider.
unsafe impl Send for MessageBuffers {}
// SAFETY: as above.
unsafe impl Sync for MessageBuffers {}

impl MessageBuffers {
    /// Allocates send and receive buffers of `longest` bytes each.
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

    /// Returns address and length in bytes of all buffers, for registration.
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

    /// Describes the first `len` bytes of a buffer for libfabric. None if it does not exist or is
    /// shorter.
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

    /// Returns the bytes of a buffer; None for an unknown id.
    ///
    /// # Safety
    /// While the result is in use, the buffer is not posted, and this is not called for it again.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes(&self, id: BufferId) -> Option<&mut [u8]> {
        let buffer = self.first_line(self.index(id))?;
        // SAFETY: the buffer has `longest` initialised bytes, which by the caller's promise nobody
        // else uses.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_disjoint_with_own_contexts() {
        for longest in [1, 64, 256, 4160] {
            let buffers = MessageBuffers::new(3, 2, longest);
            assert_eq!((buffers.sends, buffers.receives, buffers.longest), (3, 2, longest));
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
