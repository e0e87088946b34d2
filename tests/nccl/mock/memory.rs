//! Memory of a PE in the tests: of the host, or of the device of a driver whose memory faults when
//! the CPU touches it. Kernels here are CPU threads, and use what is on the device through a window
//! that the driver has for tests.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use cuda::{Bound, Context, DEFAULT_LIBRARY, DeviceHeap, DeviceMemory, Driver, Ordinal};
use libloading::os::unix::Library;
use nccl_abi::{PTR_CUDA, PTR_HOST};

/// What a job says of its memory; host memory where it says nothing.
pub(crate) const MEMORY: &str = "NCCL_TEST_MEMORY";

/// What the host's memory is aligned to, and odd memory is not.
const ALIGNMENT: usize = 64;

/// Where a PE has what its kernels use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// On the host.
    Host,
    /// On the device, as NCCL allocates: memory of the VMM interface, which no context owns.
    Mapped,
    /// On the device, by `cuMemAlloc`.
    Own,
}

impl Kind {
    /// That of a PE of this job.
    pub(crate) fn of_pe(pe: usize) -> Self {
        let kinds = [Self::Mapped, Self::Own, Self::Host];
        match std::env::var(MEMORY).as_deref() {
            Err(_) => Self::Host,
            Ok("device") => Self::Mapped,
            Ok("own") => Self::Own,
            // Each PE another one.
            Ok("mixed") => kinds[pe % kinds.len()],
            Ok(other) => panic!("{MEMORY}={other}"),
        }
    }
}

/// What keeps memory.
enum Keeper {
    Host { _memory: Vec<u8> },
    Mapped { _heap: DeviceHeap },
    Own { _memory: DeviceMemory },
}

/// A piece of memory, as bytes and words that anybody may change.
pub(crate) struct Area {
    /// As operations name it.
    addr: *mut u8,
    /// As this process reads and writes it.
    here: *mut u8,
    len: usize,
    keeper: Keeper,
}

// SAFETY: memory that belongs to no thread, used as atomics, or as bytes by whose turn it is.
unsafe impl Send for Area {}
// SAFETY: the same.
unsafe impl Sync for Area {}

impl Area {
    /// Zeroed memory of a kind.
    pub(crate) fn new(kind: Kind, len: usize) -> Self {
        let area = match kind {
            Kind::Host => return Self::host(len, 0),
            Kind::Mapped => {
                let heap = DeviceHeap::new(&device().context, len).unwrap();
                let addr = heap.addr() as *mut u8;
                Self {
                    addr,
                    here: device().window(addr, len),
                    len,
                    keeper: Keeper::Mapped { _heap: heap },
                }
            }
            Kind::Own => {
                let memory = DeviceMemory::new(&device().context, len).unwrap();
                let addr = memory.addr() as *mut u8;
                Self {
                    addr,
                    here: device().window(addr, len),
                    len,
                    keeper: Keeper::Own { _memory: memory },
                }
            }
        };
        area.write(0, &vec![0; len]);
        area
    }

    /// Zeroed memory of the host, so many bytes behind what it would be aligned to.
    pub(crate) fn host(len: usize, off: usize) -> Self {
        let mut memory = vec![0_u8; len + off + ALIGNMENT];
        let to_aligned = memory.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: there is as much more than the area has.
        let addr = unsafe { memory.as_mut_ptr().add(to_aligned + off) };
        Self { addr, here: addr, len, keeper: Keeper::Host { _memory: memory } }
    }

    pub(crate) fn addr(&self) -> *mut u8 {
        self.addr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What NCCL calls it.
    pub(crate) fn kind(&self) -> c_int {
        match self.keeper {
            Keeper::Host { .. } => PTR_HOST,
            Keeper::Mapped { .. } | Keeper::Own { .. } => PTR_CUDA,
        }
    }

    fn here(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "{len} at {offset}");
        self.here.wrapping_add(offset)
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        let here = self.here(offset, 8).cast();
        // SAFETY: inside the area, and aligned, as scenarios place words.
        unsafe { AtomicU64::from_ptr(here) }
    }

    /// Bytes that nobody changes meanwhile, if the plugin does what it should.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let here = self.here(offset, len);
        // SAFETY: inside the area; scenarios read after what says that they have arrived.
        unsafe { slice::from_raw_parts(here, len) }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let here = self.here(offset, bytes.len());
        // SAFETY: inside the area, in the caller's own part of it.
        unsafe { here.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, byte: u8) {
        let here = self.here(offset, len);
        // SAFETY: as above.
        unsafe { here.write_bytes(byte, len) };
    }
}

/// The device of a process, as a program with CUDA has it.
pub(crate) struct Device {
    context: Arc<Context>,
    raw: Library,
}

/// Starts CUDA, the first time. Nothing is bound on the thread.
pub(crate) fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let driver = Driver::load(DEFAULT_LIBRARY).unwrap();
        driver.initialise().unwrap();
        // SAFETY: loaded already.
        let raw = unsafe { Library::open(Some(DEFAULT_LIBRARY), libc::RTLD_NOW) }.unwrap();
        Device { context: Context::primary(driver, Ordinal(0)).unwrap(), raw }
    })
}

/// The device's context bound on this thread, as on those of users that call NCCL, where this job
/// has devices. NCCL always has: for who has memory on the host alone it stays bound as well.
pub(crate) fn bound() -> Option<Bound<'static>> {
    std::env::var_os(MEMORY).map(|_| device().context.bind().unwrap())
}

impl Device {
    /// Where this process reads and writes memory of the device.
    fn window(&self, addr: *mut u8, len: usize) -> *mut u8 {
        let window = self.call::<extern "C" fn(usize, usize) -> usize>(b"fake_cuda_window");
        let window = window(addr as usize, len);
        assert_ne!(window, 0, "{len} bytes at {addr:?} are on the device");
        window as *mut u8
    }

    /// A dma-buf of whole pages, as NCCL asks for it.
    pub(crate) fn dma_buf(&self, addr: *mut u8, len: usize) -> Option<OwnedFd> {
        type Get = unsafe extern "C" fn(*mut c_void, usize, usize, u32, u64) -> u32;
        const DMA_BUF: u32 = 1;
        let get = self.call::<Get>(b"cuMemGetHandleForAddressRange");
        let mut fd: c_int = -1;
        let _bound = self.context.bind().unwrap();
        let len = len.next_multiple_of(4096);
        // SAFETY: a place for the descriptor.
        let status = unsafe { get((&raw mut fd).cast(), addr as usize, len, DMA_BUF, 0) };
        // SAFETY: it was opened for us.
        (status == 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Bytes of its memory that are given out.
    pub(crate) fn used(&self) -> u64 {
        self.call::<extern "C" fn(c_int, u32) -> u64>(b"fake_cuda_count")(0, 4)
    }

    /// Calls that have given it something to do.
    pub(crate) fn calls(&self) -> u64 {
        self.call::<extern "C" fn(c_int, u32) -> u64>(b"fake_cuda_count")(0, 11)
    }

    /// A function of the driver, whose type the caller knows.
    fn call<F: Copy>(&self, name: &[u8]) -> F {
        // SAFETY: the caller's to see to, in tests.
        unsafe { *self.raw.get::<F>(name).unwrap() }
    }
}
