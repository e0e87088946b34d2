//! Memory of a PE: of the host, or of the device of a driver whose memory faults when the CPU
//! touches it. Kernels are CPU threads here, and use what is on the device through a window that
//! the driver has for tests.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::Deref;
use std::os::fd::{FromRawFd, OwnedFd};
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use cuda::{Bound, Context, DEFAULT_LIBRARY, DeviceHeap, DeviceMemory, Driver, Ordinal};
use libloading::os::unix::Library;

/// What a job says of its memory; host memory where it says nothing.
pub const MEMORY: &str = "TEST_JOB_MEMORY";

const ALIGNMENT: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Host,
    /// On the device, as libraries allocate: memory of the VMM interface, which no context owns.
    Device,
    /// On the device, by `cuMemAlloc`.
    Own,
}

impl Kind {
    pub fn of_pe(pe: usize) -> Self {
        let kinds = [Self::Device, Self::Own, Self::Host];
        match std::env::var(MEMORY).as_deref() {
            Err(_) => Self::Host,
            Ok("device") => Self::Device,
            Ok("own") => Self::Own,
            Ok("mixed") => kinds[pe % kinds.len()],
            Ok(other) => panic!("{MEMORY}={other}"),
        }
    }
}

pub fn on_device() -> bool {
    std::env::var_os(MEMORY).is_some()
}

/// The device's context bound on this thread, as on those of users that call libraries, where this
/// job has devices.
pub fn bound() -> Option<Bound<'static>> {
    on_device().then(|| device().bind())
}

/// A piece of memory that somebody else keeps, as bytes and words that anybody may change.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    addr: *mut u8,
    here: *mut u8,
    len: usize,
}

// SAFETY: memory that belongs to no thread, used as atomics, or as bytes by whose turn it is.
unsafe impl Send for Heap {}
// SAFETY: the same.
unsafe impl Sync for Heap {}

impl Heap {
    pub fn of(addr: *mut u8, len: usize) -> Self {
        Self { addr, here: addr, len }
    }

    pub fn of_device(addr: *mut u8, len: usize) -> Self {
        Self { addr, here: device().window(addr, len), len }
    }

    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_on_device(&self) -> bool {
        self.addr != self.here
    }

    /// An address for operations, which may be wrong on purpose.
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.addr.wrapping_add(offset)
    }

    pub fn here(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "{len} at {offset}");
        self.here.wrapping_add(offset)
    }

    pub fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside, and aligned.
        unsafe { AtomicU64::from_ptr(self.here(offset, 8).cast()) }
    }

    /// Bytes that nobody changes meanwhile, if what is tested does what it should.
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: inside; scenarios read after what says that they have arrived.
        unsafe { slice::from_raw_parts(self.here(offset, len), len) }
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let here = self.here(offset, bytes.len());
        // SAFETY: inside, in the caller's own part of it.
        unsafe { here.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn fill(&self, offset: usize, len: usize, byte: impl Fn(usize) -> u8) {
        self.write(offset, &(0..len).map(byte).collect::<Vec<_>>());
    }
}

#[derive(Debug)]
pub struct Memory {
    heap: Heap,
    _keeper: Box<dyn fmt::Debug + Send + Sync>,
}

impl Deref for Memory {
    type Target = Heap;

    fn deref(&self) -> &Heap {
        &self.heap
    }
}

impl Memory {
    pub fn new(kind: Kind, len: usize) -> Self {
        let context = || &device().context;
        let (addr, keeper): (_, Box<dyn fmt::Debug + Send + Sync>) = match kind {
            Kind::Host => return Self::host(len, 0),
            Kind::Device => {
                let heap = DeviceHeap::new(context(), len).unwrap();
                (heap.addr(), Box::new(heap))
            }
            Kind::Own => {
                let memory = DeviceMemory::new(context(), len).unwrap();
                (memory.addr(), Box::new(memory))
            }
        };
        let heap = Heap::of_device(addr as *mut u8, len);
        heap.fill(0, len, |_| 0);
        Self { heap, _keeper: keeper }
    }

    pub fn host(len: usize, off: usize) -> Self {
        let mut memory = vec![0_u8; len + off + ALIGNMENT];
        let to_aligned = memory.as_ptr().align_offset(ALIGNMENT);
        let addr = memory[to_aligned + off..].as_mut_ptr();
        Self { heap: Heap::of(addr, len), _keeper: Box::new(memory) }
    }
}

#[derive(Debug)]
pub struct Device {
    pub context: Arc<Context>,
    raw: Library,
}

/// Starts CUDA, the first time. Nothing is bound on the thread.
pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let driver = Driver::load(DEFAULT_LIBRARY).unwrap();
        driver.initialise().unwrap();
        // SAFETY: loaded already.
        let raw = unsafe { Library::open(Some(DEFAULT_LIBRARY), libc::RTLD_NOW) }.unwrap();
        Device { context: Context::primary(driver, Ordinal(0)).unwrap(), raw }
    })
}

impl Device {
    pub fn bind(&self) -> Bound<'_> {
        self.context.bind().unwrap()
    }

    /// # Safety
    /// Its type is `F`, a pointer to a function.
    pub unsafe fn call<F: Copy>(&self, name: &[u8]) -> F {
        // SAFETY: the caller's.
        unsafe { *self.raw.get::<F>(name).unwrap() }
    }

    fn find(&self, addr: usize, len: usize) -> usize {
        // SAFETY: its type in the stand-in.
        let window =
            unsafe { self.call::<extern "C" fn(usize, usize) -> usize>(b"fake_cuda_window") };
        window(addr, len)
    }

    fn window(&self, addr: *mut u8, len: usize) -> *mut u8 {
        let window = self.find(addr as usize, len);
        assert_ne!(window, 0, "{len} bytes at {addr:?} are on the device");
        window as *mut u8
    }

    pub fn has(&self, addr: usize) -> bool {
        self.find(addr, 1) != 0
    }

    /// Where this process reads and writes memory of the host or the device.
    pub fn look(&self, addr: *mut u8, len: usize) -> *mut u8 {
        if self.has(addr as usize) { self.window(addr, len) } else { addr }
    }

    /// A dma-buf of whole pages, as NCCL asks for it.
    pub fn dma_buf(&self, addr: *mut u8, len: usize) -> Option<OwnedFd> {
        type Get = unsafe extern "C" fn(*mut c_void, usize, usize, u32, u64) -> u32;
        const DMA_BUF: u32 = 1;
        // SAFETY: its type in CUDA's header.
        let get = unsafe { self.call::<Get>(b"cuMemGetHandleForAddressRange") };
        let mut fd: c_int = -1;
        let _bound = self.bind();
        let len = len.next_multiple_of(4096);
        // SAFETY: a place for the descriptor.
        let status = unsafe { get((&raw mut fd).cast(), addr as usize, len, DMA_BUF, 0) };
        // SAFETY: it was opened for us.
        (status == 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn count(&self, ordinal: u32, what: u32) -> u64 {
        // SAFETY: its type in the stand-in.
        let count = unsafe { self.call::<extern "C" fn(u32, u32) -> u64>(b"fake_cuda_count") };
        count(ordinal, what)
    }

    pub fn contexts(&self) -> u64 {
        self.count(0, 1)
    }

    /// Bytes of the host's memory that are page-locked for it.
    pub fn locked(&self) -> u64 {
        self.count(0, 3)
    }

    pub fn used(&self) -> u64 {
        self.count(0, 4)
    }

    pub fn limit(&self, bytes: u64) {
        // SAFETY: its type in the stand-in.
        let limits =
            unsafe { self.call::<extern "C" fn(c_int, u64, u64) -> u32>(b"fake_cuda_limits") };
        assert_eq!(limits(0, u64::MAX, bytes), 0);
    }
}
