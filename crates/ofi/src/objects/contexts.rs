//! Contexts of operations; those of a lane's segments are indexed by work-request id.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use engine::ids::WrId;

#[repr(C, align(64))]
#[derive(Debug)]
struct Context([MaybeUninit<u8>; 64]);

const _: () = assert!(size_of::<libfabric_sys::fi_context2>() <= size_of::<Context>());

/// Returns the index of a context in an array at `base`.
#[inline(always)]
pub(crate) fn index_in(base: usize, context: *mut c_void) -> usize {
    // A pointer below the array, null for example, wraps to a huge index.
    (context as usize).wrapping_sub(base) / size_of::<Context>()
}

/// Returns the context of a work-request id in an array at `base` that has it.
#[inline(always)]
pub(crate) fn context_at(base: usize, wr_id: WrId) -> *mut c_void {
    base.wrapping_add(wr_id.index() * size_of::<Context>()) as *mut c_void
}

/// A fixed number of contexts, identified by their indices.
#[derive(Debug)]
pub(crate) struct ContextArray(Box<[UnsafeCell<Context>]>);

// SAFETY: only the provider accesses the contents.
unsafe impl Send for ContextArray {}
// SAFETY: as above.
unsafe impl Sync for ContextArray {}

impl ContextArray {
    pub(crate) fn new(len: usize) -> Self {
        let context = || UnsafeCell::new(Context([MaybeUninit::uninit(); 64]));
        Self((0..len).map(|_| context()).collect())
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<*mut c_void> {
        self.0.get(index).map(|context| context.get().cast())
    }

    #[inline]
    pub(crate) fn index_of(&self, context: *mut c_void) -> Option<usize> {
        let index = index_in(self.0.as_ptr() as usize, context);
        (index < self.0.len()).then_some(index)
    }
}

/// Contexts, and the values of inline writes, for all work-request ids of a lane.
///
/// The values are in an array of their own: most providers never access contexts, which then take
/// no cache.
#[derive(Debug)]
pub(crate) struct Contexts {
    contexts: ContextArray,
    values: Box<[UnsafeCell<u64>]>,
}

// SAFETY: the one thread with the lane's port accesses a value while no operation with that
// work-request id is in flight, and the provider while one is.
unsafe impl Send for Contexts {}
// SAFETY: as above.
unsafe impl Sync for Contexts {}

impl Contexts {
    pub(crate) fn new(wr_ids: u32) -> Self {
        let wr_ids = wr_ids as usize;
        Self {
            contexts: ContextArray::new(wr_ids),
            values: (0..wr_ids).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    #[inline]
    pub(crate) fn context(&self, wr_id: WrId) -> Option<*mut c_void> {
        self.contexts.get(wr_id.index())
    }

    #[inline]
    pub(crate) fn wr_id(&self, context: *mut c_void) -> Option<WrId> {
        self.contexts.index_of(context).map(|index| WrId(index as u32))
    }

    /// Returns the address of the contexts, for [`index_in`].
    #[inline(always)]
    pub(crate) fn base(&self) -> usize {
        self.contexts.0.as_ptr() as usize
    }

    /// Stores the value of an inline write, and returns the address to send it from.
    ///
    /// # Safety
    /// One thread at a time, and no operation with this work-request id is in flight.
    #[inline]
    pub(crate) unsafe fn set_value(&self, wr_id: WrId, value: u64) -> Option<*mut c_void> {
        let place = self.values.get(wr_id.index())?.get();
        // SAFETY: inside the array; nobody else uses it, by the caller's promise.
        unsafe { place.write(value.to_le()) };
        Some(place.cast())
    }

    /// Returns address and length in bytes of all values, for registration.
    pub(crate) fn values(&self) -> (usize, usize) {
        (self.values.as_ptr() as usize, size_of_val(&*self.values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_and_values_match_wr_ids() {
        let contexts = Contexts::new(3);
        let (start, len) = contexts.values();
        assert_eq!(len, 24);
        for wr_id in [WrId(0), WrId(1), WrId(2)] {
            assert_eq!(contexts.wr_id(contexts.context(wr_id).unwrap()), Some(wr_id));
            // SAFETY: one thread, nothing in flight; the place is inside `contexts`.
            let (place, byte) = unsafe {
                let place = contexts.set_value(wr_id, 0x0102).unwrap();
                (place as usize, place.cast::<u8>().read())
            };
            assert_eq!((place, byte), (start + 8 * wr_id.index(), 2), "little endian");
        }
        assert_eq!(contexts.context(WrId(3)), None);
        let first = contexts.context(WrId(0)).unwrap() as usize;
        for other in [0, first - 1, first + 3 * 64] {
            assert_eq!(contexts.wr_id(other as *mut c_void), None);
        }
    }
}
