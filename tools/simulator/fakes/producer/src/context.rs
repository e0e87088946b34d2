//! A context in this process' memory, as kernels have it, without a proxy.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use channel_sys::{
    NLF_RING_VERSION, nlf_context, nlf_error, nlf_own, nlf_own_producers, nlf_producers,
    nlf_published, nlf_region, nlf_ring, nlf_slot,
};

/// Zeroed memory for an array of `T`, aligned to a page.
#[derive(Debug)]
pub struct Zeroed<T> {
    at: NonNull<T>,
    layout: Layout,
    len: usize,
}

// SAFETY: plain memory, which belongs to no thread; it is used through pointers.
unsafe impl<T> Send for Zeroed<T> {}
// SAFETY: the same.
unsafe impl<T> Sync for Zeroed<T> {}

impl<T: Copy> Zeroed<T> {
    /// Memory for `len` of them, of which zeroes have to be a value.
    ///
    /// # Safety
    /// A `T` of zeroes is one.
    pub unsafe fn new(len: usize) -> Self {
        let layout = Layout::array::<T>(len.max(1)).and_then(|layout| layout.align_to(4096));
        let layout = layout.expect("an array that fits into memory");
        // SAFETY: the layout has a size, as no `T` here is empty.
        let at = unsafe { alloc_zeroed(layout) }.cast();
        let at = NonNull::new(at).unwrap_or_else(|| handle_alloc_error(layout));
        Self { at, layout, len }
    }

    pub fn as_ptr(&self) -> *mut T {
        self.at.as_ptr()
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.at.as_ptr().cast(), self.layout) }
    }
}

#[derive(Clone, Debug)]
pub struct ContextOptions {
    pub n_pes: u32,
    pub me: u32,
    /// How many rings: a power of two.
    pub n_rings: u32,
    /// Slots of each, as a logarithm.
    pub slots_log2: u32,
    /// `nlf_context.spins`.
    pub spins: u64,
    pub regions: Vec<nlf_region>,
}

/// A context and all that it points to, but for regions.
#[derive(Debug)]
pub struct HostContext {
    context: Zeroed<nlf_context>,
    rings: Zeroed<nlf_ring>,
    regions: Zeroed<nlf_region>,
    slots: Vec<Zeroed<nlf_slot>>,
    producers: Zeroed<nlf_producers>,
    published: Zeroed<nlf_published>,
    error: Zeroed<nlf_error>,
    error_claims: Zeroed<u32>,
    proxy_error: Zeroed<nlf_error>,
    own: Zeroed<nlf_own>,
    own_producers: Zeroed<nlf_own_producers>,
}

impl HostContext {
    pub fn new(options: &ContextOptions) -> Self {
        let n_rings = options.n_rings as usize;
        // SAFETY: numbers and pointers, which are valid as zeroes.
        let new = unsafe {
            Self {
                context: Zeroed::new(1),
                rings: Zeroed::new(n_rings),
                regions: Zeroed::new(options.regions.len()),
                slots: (0..n_rings).map(|_| Zeroed::new(1 << options.slots_log2)).collect(),
                producers: Zeroed::new(n_rings),
                published: Zeroed::new(n_rings),
                error: Zeroed::new(1),
                error_claims: Zeroed::new(1),
                proxy_error: Zeroed::new(1),
                own: Zeroed::new(1),
                own_producers: Zeroed::new(1),
            }
        };
        let (producers, published) = (new.producers.as_ptr(), new.published.as_ptr());
        for (index, slots) in new.slots.iter().map(Zeroed::as_ptr).enumerate() {
            // SAFETY: below the number of rings, for each of the three.
            unsafe {
                let (producers, published) = (producers.add(index), published.add(index));
                *new.rings.as_ptr().add(index) = nlf_ring { slots, producers, published };
            }
        }
        // SAFETY: there are as many.
        unsafe {
            new.regions.as_ptr().copy_from(options.regions.as_ptr(), options.regions.len());
        }
        // SAFETY: nobody else knows it yet.
        unsafe {
            *new.context.as_ptr() = nlf_context {
                version: NLF_RING_VERSION,
                me: options.me,
                n_pes: options.n_pes,
                n_rings: options.n_rings,
                slots_log2: options.slots_log2,
                n_regions: options.regions.len() as u32,
                spins: options.spins,
                rings: new.rings.as_ptr(),
                regions: new.regions.as_ptr(),
                error: new.error.as_ptr(),
                error_claims: new.error_claims.as_ptr(),
                proxy_error: new.proxy_error.as_ptr(),
                own: new.own.as_ptr(),
                own_producers: new.own_producers.as_ptr(),
            };
        }
        new
    }

    pub fn as_ptr(&self) -> *const nlf_context {
        self.context.as_ptr()
    }

    pub fn as_mut_ptr(&self) -> *mut nlf_context {
        self.context.as_ptr()
    }

    pub fn region(&self, index: usize) -> NonNull<nlf_region> {
        assert!(index < self.regions.len);
        // SAFETY: below the number of regions.
        unsafe { self.regions.at.add(index) }
    }

    pub fn slots(&self, ring: usize) -> NonNull<nlf_slot> {
        self.slots[ring].at
    }

    pub fn own(&self) -> NonNull<nlf_own> {
        self.own.at
    }

    pub fn own_producers(&self) -> NonNull<nlf_own_producers> {
        self.own_producers.at
    }

    pub fn published(&self, ring: usize) -> NonNull<nlf_published> {
        assert!(ring < self.published.len);
        // SAFETY: below the number of rings.
        unsafe { self.published.at.add(ring) }
    }

    pub fn head(&self, ring: usize) -> u64 {
        assert!(ring < self.producers.len);
        // SAFETY: below the number of rings; producers change it atomically.
        let head =
            unsafe { AtomicU64::from_ptr(&raw mut (*self.producers.as_ptr().add(ring)).head) };
        head.load(Ordering::Acquire)
    }

    /// The first error, once it is complete.
    pub fn error(&self) -> Option<nlf_error> {
        let error = self.error.as_ptr();
        // SAFETY: lives as long as this; changed atomically.
        let code = unsafe { AtomicU32::from_ptr(&raw mut (*error).code) }.load(Ordering::Acquire);
        // SAFETY: what was written before the code stays as it is.
        (code != 0).then(|| unsafe { error.read_volatile() })
    }

    /// Whether a producer has given up slots that it had reserved.
    pub fn is_abandoned(&self) -> bool {
        // SAFETY: lives as long as this; changed atomically.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.error.as_ptr()).abandoned) };
        word.load(Ordering::Acquire) != 0
    }
}
