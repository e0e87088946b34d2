//! Memory of a PE in the tests: of the host, or of the device of a driver whose memory faults when
//! the CPU touches it.

use std::ffi::c_int;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use cuda::{Bound, Context, DEFAULT_LIBRARY, DeviceMemory, Driver, Ordinal};
use libloading::os::unix::Library;
use nvshmem_transport_libfabric::channel::{Channel, MemoryLocation};

use launcher::Place;

/// What a job says of its memory; host memory where it says nothing.
pub(crate) const MEMORY: &str = "CHANNEL_TEST_MEMORY";

/// Where a PE has its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// On the host.
    Host,
    /// On the device, allocated by the channel.
    Device,
    /// On the device, by `cuMemAlloc`, and registered.
    Own,
}

impl Kind {
    fn of(place: &Place) -> Self {
        let kinds = [Self::Device, Self::Own, Self::Host];
        match std::env::var(MEMORY).as_deref() {
            Err(_) => Self::Host,
            Ok("device") => Self::Device,
            Ok("own") => Self::Own,
            // Each PE another one.
            Ok("mixed") => kinds[place.me as usize % kinds.len()],
            Ok(other) => panic!("{MEMORY}={other}"),
        }
    }
}

/// Memory that kernels use, as bytes and words that anybody may change. Kernels here are CPU
/// threads, and use what is on the device through a window that the driver has for tests.
#[derive(Clone, Copy)]
pub(crate) struct Heap {
    /// As operations name it.
    addr: *mut u8,
    /// As this process reads and writes it.
    here: *mut u8,
}

// SAFETY: memory that belongs to no thread, used as atomics, or as bytes by whose turn it is.
unsafe impl Send for Heap {}
// SAFETY: the same.
unsafe impl Sync for Heap {}

impl Heap {
    /// Of the host.
    pub(crate) fn of(addr: *mut u8) -> Self {
        Self { addr, here: addr }
    }

    /// An address for operations.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.addr.wrapping_add(offset)
    }

    /// The same place for loads and stores.
    pub(crate) fn here(&self, offset: usize) -> *mut u8 {
        self.here.wrapping_add(offset)
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the heap, and aligned, as scenarios place words.
        unsafe { AtomicU64::from_ptr(self.here(offset).cast()) }
    }

    /// Bytes that nobody changes meanwhile.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: inside the heap; scenarios read after what says that they have arrived.
        unsafe { slice::from_raw_parts(self.here(offset), len) }
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, byte: impl Fn(usize) -> u8) {
        for at in 0..len {
            // SAFETY: inside the heap, in the caller's own part of it.
            unsafe { self.here(offset + at).write(byte(at)) }
        }
    }
}

/// The device of a process, as a program with CUDA has it.
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
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

impl Device {
    /// Its context, bound on this thread as a program has it when it allocates.
    pub(crate) fn bind(&self) -> Bound<'_> {
        self.context.bind().unwrap()
    }

    /// Where this process reads and writes memory of the device.
    fn window(&self, addr: *mut u8, len: usize) -> *mut u8 {
        // SAFETY: the type of that function in the stand-in.
        let window = unsafe {
            let function =
                self.raw.get::<extern "C" fn(usize, usize) -> usize>(b"fake_cuda_window");
            function.unwrap()(addr as usize, len)
        };
        assert_ne!(window, 0, "{len} bytes at {addr:?} are on the device");
        window as *mut u8
    }

    /// Whether an address is of the device.
    pub(crate) fn has(&self, addr: usize) -> bool {
        let window = self.call::<extern "C" fn(usize, usize) -> usize>(b"fake_cuda_window");
        window(addr, 1) != 0
    }

    /// Where this process reads and writes memory of the host or the device.
    pub(crate) fn look(&self, addr: *mut u8, len: usize) -> *mut u8 {
        if self.has(addr as usize) { self.window(addr, len) } else { addr }
    }

    pub(crate) fn heap(&self, addr: *mut u8, len: usize) -> Heap {
        Heap { addr, here: self.window(addr, len) }
    }

    /// A function of the driver, whose type the caller knows.
    pub(crate) fn call<F: std::marker::Copy>(&self, name: &[u8]) -> F {
        // SAFETY: the caller's to see to, in tests.
        unsafe { *self.raw.get::<F>(name).unwrap() }
    }

    /// Bytes of its memory that are given out.
    pub(crate) fn used(&self) -> u64 {
        self.call::<extern "C" fn(c_int, u32) -> u64>(b"fake_cuda_count")(0, 4)
    }

    /// It has so many bytes from now on.
    pub(crate) fn limit(&self, bytes: u64) {
        let limits = self.call::<extern "C" fn(c_int, u64, u64) -> u32>(b"fake_cuda_limits");
        assert_eq!(limits(0, u64::MAX, bytes), 0);
    }
}

/// Whether this job has memory on a device.
pub(crate) fn on_device() -> bool {
    std::env::var_os(MEMORY).is_some()
}

/// Loads CUDA and starts it before the channel is made, unless memory is mixed: then it is loaded
/// later.
pub(crate) fn load_early() {
    if std::env::var(MEMORY).is_ok_and(|kind| kind != "mixed") {
        device();
    }
}

/// Memory, with what keeps it. It is released by who has had it.
pub(crate) struct Memory {
    pub(crate) heap: Heap,
    _words: Vec<u64>,
    _own: Option<DeviceMemory>,
}

impl Memory {
    pub(crate) fn is_on_device(&self) -> bool {
        self.heap.addr != self.heap.here
    }
}

/// Zeroed symmetric memory where this job wants it. Collective.
pub(crate) fn symmetric(channel: &Channel, place: &Place, len: usize) -> Memory {
    let none = |heap| Memory { heap, _words: Vec::new(), _own: None };
    match Kind::of(place) {
        Kind::Host => none(Heap::of(channel.allocate_symmetric(len).unwrap())),
        Kind::Device => {
            let _bound = device().bind();
            let addr = channel.allocate_symmetric_on(MemoryLocation::Device, len).unwrap();
            none(device().heap(addr, len))
        }
        Kind::Own => {
            let memory = own(len);
            // SAFETY: freed behind its release.
            unsafe { channel.register_symmetric(memory.heap.at(0), len).unwrap() };
            memory
        }
    }
}

/// Zeroed memory of this PE for its kernels: of the device unless this PE has all on the host.
pub(crate) fn local(channel: &Channel, place: &Place, len: usize) -> Memory {
    let memory = match Kind::of(place) {
        Kind::Host => {
            let mut words = vec![0_u64; len.div_ceil(8)];
            let heap = Heap::of(words.as_mut_ptr().cast());
            Memory { heap, _words: words, _own: None }
        }
        Kind::Device | Kind::Own => own(len),
    };
    // SAFETY: freed behind its release.
    unsafe { channel.register_local(memory.heap.at(0), len).unwrap() };
    memory
}

/// Memory that this process has allocated on its device by itself.
pub(crate) fn own(len: usize) -> Memory {
    let memory = DeviceMemory::new(&device().context, len).unwrap();
    let heap = device().heap(memory.addr() as *mut u8, len);
    heap.fill(0, len, |_| 0);
    Memory { heap, _words: Vec::new(), _own: Some(memory) }
}
