//! What a program with CUDA has: the driver, a device, a context on the main thread, memory. It
//! goes to the driver by itself, not through the layer under test.

pub(crate) mod case;
pub(crate) mod stage;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fmt::{Debug, Display};
use std::ptr;
use std::time::{Duration, Instant};

use cuda::{
    Context, CopyEngine, CudaError, Device, DeviceRange, Driver, Memory, Ordinal, PinnedMemory,
};
use libloading::os::unix::Library;
use std::sync::{Arc, Mutex};

pub(crate) const HANG: Duration = Duration::from_secs(300);

/// Granularity of the VMM interface, on every device met so far.
pub(crate) const GRANULARITY: usize = 2 << 20;

pub(crate) struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, with a count that allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Calls a function of the driver, which has to return success.
macro_rules! call {
    ($library:expr, $name:ident($($arg:expr => $kind:ty),*)) => {{
        let status = $crate::bed::status!($library, $name($($arg => $kind),*));
        assert_eq!(status, 0, concat!(stringify!($name), " failed"));
    }};
}

macro_rules! status {
    ($library:expr, $name:ident($($arg:expr => $kind:ty),*)) => {{
        // SAFETY: types of CUDA's header or of the fake's extras, and valid pointers.
        unsafe {
            let function = $library
                .get::<unsafe extern "C" fn($($kind),*) -> u32>(stringify!($name).as_bytes())
                .expect(stringify!($name));
            function($($arg),*)
        }
    }};
}

pub(crate) use {call, status};

#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: (u32, c_int),
    windows: *mut c_void,
    flags: [u8; 8],
}

#[repr(C)]
struct Access {
    location: (u32, c_int),
    flags: u32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE` and `_HOST_NUMA`.
pub(crate) const ON_DEVICE: u32 = 1;
pub(crate) const ON_NUMA_NODE: u32 = 3;

pub(crate) struct Bed {
    pub(crate) raw: Library,
    pub(crate) driver: &'static Driver,
    pub(crate) device: Ordinal,
    /// The primary context of device 0, bound on the thread that has made this.
    pub(crate) handle: *mut c_void,
}

// SAFETY: handles, which the driver takes from any thread; nothing in it changes.
unsafe impl Sync for Bed {}

static LOGGED: Mutex<String> = Mutex::new(String::new());

pub(crate) fn open() -> Result<Library, String> {
    // SAFETY: the driver's initialisers have no demands on the process.
    unsafe { Library::open(Some("libcuda.so.1"), libc::RTLD_NOW) }.map_err(|error| {
        std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string)
    })
}

impl Bed {
    pub(crate) fn probe() -> Result<String, String> {
        let raw = open()?;
        let status = status!(raw, cuInit(0 => u32));
        if status != 0 {
            return Err(format!("cuInit returned {status}"));
        }
        let driver = Driver::of_process().map_err(|error| error.to_string())?;
        let device = Device::new(driver, Ordinal(0)).map_err(|error| error.to_string())?;
        Ok(format!("{device}, {driver}"))
    }

    pub(crate) fn new() -> Self {
        let mut logger = env_logger::Builder::new();
        logger.filter_level(log::LevelFilter::Info).format(|_, record| {
            let line = format!("{}: {}\n", record.level(), record.args());
            LOGGED.lock().expect("no panic").push_str(&line);
            Ok(())
        });
        logger.init();
        let raw = open().expect("a driver");
        call!(raw, cuInit(0 => u32));
        let mut handle = ptr::null_mut();
        call!(raw, cuDevicePrimaryCtxRetain(&raw mut handle => *mut *mut c_void, 0 => c_int));
        call!(raw, cuCtxSetCurrent(handle => *mut c_void));
        let driver = Driver::of_process().expect("it is loaded");
        Self { raw, driver, device: Ordinal(0), handle }
    }

    pub(crate) fn has_logged(&self, part: &str) -> bool {
        LOGGED.lock().expect("no panic").contains(part)
    }

    pub(crate) fn stream(&self, flags: u32) -> usize {
        let mut stream = 0;
        call!(self.raw, cuStreamCreate(&raw mut stream => *mut usize, flags => u32));
        stream
    }

    /// Makes a context of a device, which is bound then.
    pub(crate) fn make_context(&self, device: c_int) -> *mut c_void {
        let mut made = ptr::null_mut();
        let context = &raw mut made;
        call!(self.raw, cuCtxCreate_v2(context => *mut *mut c_void, 0 => u32, device => c_int));
        made
    }

    pub(crate) fn word(&self, addr: usize) -> u64 {
        u64::from_le_bytes(self.read(addr, 8).try_into().expect("eight"))
    }

    pub(crate) fn context(&self) -> Arc<Context> {
        Context::primary(self.driver, self.device).expect("the primary context")
    }

    pub(crate) fn is_fake(&self) -> bool {
        // SAFETY: an address is taken, and not used.
        unsafe { self.raw.get::<*mut c_void>(b"fake_cuda_count").is_ok() }
    }

    /// A page that nobody may read, behind one that this process may.
    pub(crate) fn hidden(&self) -> usize {
        const PAGE: usize = 64 << 10; // as large as those of some kernels for Arm
        // SAFETY: a mapping of its own.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(pages, PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            pages as usize + PAGE
        }
    }

    pub(crate) fn alloc(&self, len: usize) -> usize {
        let mut addr = 0;
        call!(self.raw, cuMemAlloc_v2(&raw mut addr => *mut usize, len => usize));
        addr
    }

    pub(crate) fn free(&self, addr: usize) {
        call!(self.raw, cuMemFree_v2(addr => usize));
    }

    pub(crate) fn managed(&self, len: usize) -> usize {
        let mut addr = 0;
        call!(self.raw, cuMemAllocManaged(&raw mut addr => *mut usize, len => usize, 1 => u32));
        addr
    }

    pub(crate) fn host(&self, len: usize) -> usize {
        let mut addr = 0;
        call!(self.raw, cuMemHostAlloc(&raw mut addr => *mut usize, len => usize, 0 => u32));
        addr
    }

    pub(crate) fn free_host(&self, addr: usize) {
        call!(self.raw, cuMemFreeHost(addr => usize));
    }

    pub(crate) fn vmm(&self, locations: &[(u32, c_int)], cpu: bool) -> usize {
        let base = self.reserve(locations.len() * GRANULARITY);
        for (index, location) in locations.iter().enumerate() {
            let at = base + index * GRANULARITY;
            self.map(at, GRANULARITY, *location);
            if cpu {
                self.open_to(at, GRANULARITY, (ON_NUMA_NODE, 0));
            }
        }
        base
    }

    pub(crate) fn reserve(&self, len: usize) -> usize {
        let mut base = 0;
        call!(self.raw, cuMemAddressReserve(
            &raw mut base => *mut usize, len => usize, 0 => usize, 0 => usize, 0 => u64
        ));
        base
    }

    pub(crate) fn map_at(&self, at: usize, len: usize) {
        self.map(at, len, (ON_DEVICE, self.device.0));
    }

    pub(crate) fn unmap(&self, at: usize, len: usize) {
        call!(self.raw, cuMemUnmap(at => usize, len => usize));
    }

    fn map(&self, at: usize, len: usize, location: (u32, c_int)) {
        let raw = &self.raw;
        let mut handle = 0;
        let properties = Properties {
            kind: 1,
            handle_types: 0,
            location,
            windows: ptr::null_mut(),
            flags: [0; 8],
        };
        call!(raw, cuMemCreate(
            &raw mut handle => *mut usize,
            len => usize,
            &raw const properties => *const Properties,
            0 => u64
        ));
        call!(raw, cuMemMap(at => usize, len => usize, 0 => usize, handle => usize, 0 => u64));
        call!(raw, cuMemRelease(handle => usize));
        self.open_to(at, len, (ON_DEVICE, self.device.0));
    }

    fn open_to(&self, at: usize, len: usize, location: (u32, c_int)) {
        let access = Access { location, flags: 3 };
        call!(self.raw, cuMemSetAccess(
            at => usize, len => usize, &raw const access => *const Access, 1 => usize
        ));
    }

    pub(crate) fn heap(&self, allocations: usize) -> usize {
        self.vmm(&vec![(ON_DEVICE, self.device.0); allocations], false)
    }

    pub(crate) fn range(&self, addr: usize, len: usize) -> DeviceRange {
        match Memory::examine(self.driver, addr, len) {
            Ok(Memory::Device(range) | Memory::Managed(range)) => range,
            other => panic!("not device memory: {other:?}"),
        }
    }

    pub(crate) fn write(&self, addr: usize, bytes: &[u8]) {
        for (at, len) in granules(addr, bytes.len()) {
            let from = bytes[at - addr..].as_ptr();
            call!(self.raw, cuMemcpyHtoD_v2(at => usize, from => *const u8, len => usize));
        }
        // From pageable memory, a short copy returns when its bytes are staged (CUDA driver API,
        // "API synchronization behavior"), and other streams do not wait for it.
        call!(self.raw, cuStreamSynchronize(0 => usize));
    }

    pub(crate) fn read(&self, addr: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, len) in granules(addr, len) {
            let to = bytes[at - addr..].as_mut_ptr();
            call!(self.raw, cuMemcpyDtoH_v2(to => *mut u8, at => usize, len => usize));
        }
        bytes
    }

    pub(crate) fn count(&self, what: u32) -> u64 {
        count(&self.raw, what)
    }

    pub(crate) fn pinned(&self, len: usize) -> Arc<PinnedMemory> {
        PinnedMemory::new(&self.context(), len).expect("page-locked memory")
    }

    pub(crate) fn engine(&self) -> CopyEngine {
        CopyEngine::new(&self.context()).expect("a copy engine")
    }

    pub(crate) fn slow(&self, nanoseconds: u64) {
        call!(self.raw, fake_cuda_latency(0 => c_int, nanoseconds => u64));
    }

    pub(crate) fn refuse(&self, after: u32, code: u32) {
        call!(self.raw, fake_cuda_fail_submit(0 => c_int, after => u32, code => u32));
    }

    pub(crate) fn fail(&self, after: u32, code: u32) {
        call!(self.raw, fake_cuda_fail_copy(0 => c_int, after => u32, code => u32));
    }

    pub(crate) fn reset(&self) {
        call!(self.raw, fake_cuda_reset(0 => c_int));
    }

    pub(crate) fn stores_and_copies(&self) -> [u64; 2] {
        [5, 2].map(|what| self.count(what))
    }

    pub(crate) fn calls_of(&self, run: impl FnOnce()) -> [u64; 2] {
        let before = self.stores_and_copies();
        run();
        let after = self.stores_and_copies();
        [after[0] - before[0], after[1] - before[1]]
    }
}

#[track_caller]
pub(crate) fn refused<T: Debug, E: Display>(outcome: Result<T, E>, parts: &[&str]) {
    let Err(error) = outcome.map_err(|error| error.to_string()) else { panic!("no {parts:?}") };
    assert!(parts.iter().all(|part| error.contains(part)), "not {parts:?}: {error}");
}

pub(crate) fn count(raw: &Library, what: u32) -> u64 {
    // SAFETY: the type of that function in the fake driver.
    unsafe {
        let count = raw.get::<unsafe extern "C" fn(c_int, u32) -> u64>(b"fake_cuda_count");
        count.expect("the fake driver")(0, what)
    }
}

/// What `len` bytes from `addr` are, cut where allocations of a heap may end.
fn granules(addr: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = addr;
    std::iter::from_fn(move || {
        let rest = addr + len - at;
        let piece = rest.min(GRANULARITY - at % GRANULARITY);
        let start = at;
        at += piece;
        (rest > 0).then_some((start, piece))
    })
}

pub(crate) fn fill(addr: usize, bytes: &[u8]) {
    // SAFETY: the tests pass page-locked memory of at least this length, in no other use.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
}

pub(crate) fn peek(addr: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: as for `fill`.
    unsafe { ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), len) };
    bytes
}

pub(crate) fn wait(engine: &mut CopyEngine) -> Result<(), CudaError> {
    until(|| engine.poll())
}

#[track_caller]
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < HANG, "it does not come to that");
        std::thread::yield_now();
    }
}
