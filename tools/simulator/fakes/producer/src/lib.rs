//! The device API of the channel for CPU threads: the same source that nvcc compiles for kernels,
//! compiled by the host's C++ compiler. Tests and benches produce real descriptors with it where
//! there is no GPU.
//!
//! A thread is a block of its own, of the number that it sets with [`set_block`]; which ring it
//! uses follows from that. What the functions do, and when, is in
//! `cuda/nvshmem_libfabric_device.cuh`.

use std::ffi::{CStr, c_char, c_int, c_uint};

use channel_sys::nlf_context;

/// What every kernel takes: `nlfk_args` of `cuda/kernels/bodies.cuh`, where the fields are told.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelArgs {
    /// The context, in the address space of whoever runs the kernel.
    pub ctx: *const nlf_context,
    /// [`AREAS`] areas of `area` words.
    pub heap: *mut u64,
    /// One of each thread.
    pub status: *mut i32,
    pub out: *mut u64,
    pub area: u64,
    /// Operations of each unit.
    pub rounds: u64,
    pub bytes: u64,
    pub form: Form,
    /// Flags of the operations, such as `NLF_NO_FENCE` of the device header.
    pub flags: u32,
}

/// Whose operations a kernel's are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Form {
    Thread = 0,
    Warp = 1,
    Block = 2,
}

pub const AREAS: usize = 8;

// SAFETY: plain numbers and pointers, which are used by unsafe functions alone.
unsafe impl Send for KernelArgs {}
// SAFETY: the same; nothing changes in it.
unsafe impl Sync for KernelArgs {}

unsafe extern "C" {
    /// Which block the calling thread is from now on. It uses ring `block % n_rings`.
    #[link_name = "nlfh_set_block"]
    pub safe fn set_block(block: c_uint);
    /// What the calling thread does between two looks while it waits, from now on; with None it
    /// yields, as at first. The number is how often it has looked. For tests that have to be in
    /// step with it.
    #[link_name = "nlfh_set_pause"]
    pub safe fn set_pause(pause: Option<extern "C" fn(c_uint)>);
    #[link_name = "nlfh_test_f64"]
    pub safe fn test_f64(word: &f64, comparison: c_uint, value: f64) -> bool;
    #[link_name = "nlfh_test_f32"]
    pub safe fn test_f32(word: &f32, comparison: c_uint, value: f32) -> bool;
    #[link_name = "nlfh_test_i32"]
    pub safe fn test_i32(word: &i32, comparison: c_uint, value: i32) -> bool;
    #[link_name = "nlfh_sizeof_args"]
    pub safe fn size_of_args() -> usize;
    fn nlfh_wait_until(
        ctx: *const nlf_context,
        word: *const u64,
        comparison: c_uint,
        value: u64,
    ) -> c_int;
    fn nlfh_run(name: *const c_char, args: *const KernelArgs, thread: u64, threads: u64) -> c_int;
}

/// Runs a kernel's body on this thread, as thread `thread` of `threads`; its block is the same
/// number.
///
/// # Safety
/// `args` is what the kernel asks for: a context that lives, and memory of the sizes told.
pub unsafe fn run(kernel: &CStr, args: &KernelArgs, thread: u64, threads: u64) {
    // SAFETY: the caller's promise; the string ends with a zero.
    let known = unsafe { nlfh_run(kernel.as_ptr(), args, thread, threads) };
    assert!(known == 0, "no kernel {kernel:?}");
}

/// The device API on a context, for the calling thread's ring: its functions by their names without
/// `nlf_`. Statuses are `NLF_OK` or `NLF_ERROR_*`.
#[derive(Clone, Copy, Debug)]
pub struct Producer(*const nlf_context);

// SAFETY: contexts are for all threads at once; that it lives is promised in `new`.
unsafe impl Send for Producer {}
// SAFETY: the same.
unsafe impl Sync for Producer {}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        unsafe extern "C" {
            $(fn $symbol(ctx: *const nlf_context $(, $argument: $type)*) -> c_int;)*
        }

        #[allow(
            clippy::not_unsafe_ptr_arg_deref,
            clippy::too_many_arguments,
            reason = "C's arguments; addresses are looked up in the context's regions"
        )]
        impl Producer {$(
            $(#[$doc])*
            pub fn $name(&self $(, $argument: $type)*) -> i32 {
                // SAFETY: the context lives, as `new`'s caller promised; addresses are checked
                // against it, and words to compare are references.
                unsafe { $symbol(self.0 $(, $argument)*) }
            }
        )*}
    };
}

functions! {
    put_nbi = nlfh_put_nbi(dst: *mut u8, src: *const u8, bytes: usize, pe: i32);
    /// `nlf_p` of the first `bytes` of a value: 1, 2, 4 or 8.
    p = nlfh_p(dst: *mut u8, value: u64, bytes: u32, pe: i32);
    put = nlfh_put(dst: *mut u8, src: *const u8, bytes: usize, pe: i32);
    get = nlfh_get(dst: *mut u8, src: *const u8, bytes: usize, pe: i32);
    /// `nlf_g` of a word of 8 bytes.
    g = nlfh_g(value: &mut u64, src: *const u64, pe: i32);
    /// `nlf_put_nbi` with `NLF_RING`.
    put_in_ring =
        nlfh_put_in_ring(ring: u32, dst: *mut u8, src: *const u8, bytes: usize, pe: i32);
    put_signal_nbi = nlfh_put_signal_nbi(
        dst: *mut u8, src: *const u8, bytes: usize, signal: *mut u64, value: u64, kind: u32,
        pe: i32);
    get_nbi = nlfh_get_nbi(dst: *mut u8, src: *const u8, bytes: usize, pe: i32);
    signal = nlfh_signal(signal: *mut u64, value: u64, kind: u32, pe: i32);
    atomic64_nbi = nlfh_atomic64_nbi(
        kind: u32, result: *mut u64, word: *mut u64, value: u64, compare: u64, pe: i32);
    atomic32_nbi = nlfh_atomic32_nbi(
        kind: u32, result: *mut u32, word: *mut u32, value: u32, compare: u32, pe: i32);
    fence = nlfh_fence(pe: i32);
    fence_all = nlfh_fence_all();
    quiet = nlfh_quiet();
    quiet_all = nlfh_quiet_all();
    /// `nlf_quiet` with `NLF_RING`.
    quiet_ring = nlfh_quiet_ring(ring: u32);
    quiet_pe = nlfh_quiet_pe(pe: i32);
    sync_all = nlfh_sync_all();
    barrier_all = nlfh_barrier_all();
    /// `nlf_wait_until` on a number of 8 bytes.
    wait_until_f64 = nlfh_wait_until_f64(word: &f64, comparison: u32, value: f64);
    /// `nlf_wait_until` on a number of 4 bytes.
    wait_until_f32 = nlfh_wait_until_f32(word: &f32, comparison: u32, value: f32);
}

impl Producer {
    /// The API on a context.
    ///
    /// # Safety
    /// The context and all it points to live as long as the result is used, and regions of its
    /// table are memory that may be read and written by whoever takes from the rings.
    pub unsafe fn new(context: *const nlf_context) -> Self {
        Self(context)
    }

    /// `nlf_wait_until` on a word of 8 bytes.
    ///
    /// # Safety
    /// The word may be read.
    pub unsafe fn wait_until(&self, word: *const u64, comparison: u32, value: u64) -> i32 {
        // SAFETY: the context lives, as `new`'s caller promised; the word is the caller's promise.
        unsafe { nlfh_wait_until(self.0, word, comparison, value) }
    }
}
