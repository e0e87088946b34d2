//! The device of a PE: its context, and copies to and from memory that the CPU does not touch.

use std::ffi::{c_char, c_void};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::memory::driver::{Driver, NON_BLOCKING};

/// Bytes that one copy of the driver moves: page-locked, as otherwise the driver copies once more.
const SCRATCH: usize = 1 << 20;

/// Threads of a PE that may copy at once; others wait for them. They are made at the start, because
/// making page-locked memory may wait for what runs on the device.
const LANES: usize = 2;

/// A device with its primary context, for the life of the process.
///
/// # Threads
/// Any. Each call binds the context and restores what was bound.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) driver: Driver,
    context: usize,
    /// Which device.
    pub(crate) ordinal: i32,
    name: String,
    lanes: Mutex<Vec<Lane>>,
    given_back: Condvar,
}

/// A private stream, and page-locked memory to copy through.
#[derive(Debug)]
struct Lane {
    stream: usize,
    scratch: *mut u8,
}

// SAFETY: a stream and memory that belong to no thread; who has taken the lane uses them alone.
unsafe impl Send for Lane {}

impl Gpu {
    /// The device of this process: number `pe` of those that there are, beginning again at the
    /// first. Loads and starts the driver when called first.
    ///
    /// # Errors
    /// There is no driver or no device.
    pub(crate) fn of_process(pe: u32) -> Result<&'static Gpu> {
        static GPU: OnceLock<Result<Gpu>> = OnceLock::new();
        GPU.get_or_init(|| Gpu::start(pe)).as_ref().map_err(Clone::clone)
    }

    fn start(pe: u32) -> Result<Gpu> {
        let driver = Driver::load()?;
        let mut count = 0;
        // SAFETY: a place for the number.
        unsafe { driver.device_count(&raw mut count) }?;
        if count < 1 {
            return Err(Error::Device("the driver has no device".into()));
        }
        let ordinal = (i64::from(pe) % i64::from(count)) as i32;
        let mut name = [0u8; 256];
        let room = name.len() as i32 - 1;
        let mut context = 0;
        // SAFETY: the name has room for one byte more; a place for the context.
        unsafe {
            driver.device_name(name.as_mut_ptr().cast::<c_char>(), room, ordinal)?;
            driver.retain(&raw mut context, ordinal)?;
        }
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_string();
        let mut gpu = Gpu {
            driver,
            context,
            ordinal,
            name,
            lanes: Mutex::default(),
            given_back: Condvar::new(),
        };
        let lanes = gpu.bound(|gpu| (0..LANES).map(|_| Lane::new(&gpu.driver)).collect())?;
        gpu.lanes = Mutex::new(lanes);
        Ok(gpu)
    }

    /// Its name and number.
    pub(crate) fn describe(&self) -> String {
        format!("{} (device {})", self.name, self.ordinal)
    }

    /// Leaves the context bound on this thread, as NVSHMEM does on its own and the user's.
    pub(crate) fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { self.driver.set_current(self.context) }
    }

    /// Runs something with the context bound.
    pub(crate) fn bound<R>(&self, f: impl FnOnce(&Gpu) -> Result<R>) -> Result<R> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { self.driver.push(self.context) }?;
        let result = f(self);
        let mut popped = 0;
        // SAFETY: a place for the handle; this thread's innermost binding is ours.
        unsafe { self.driver.pop(&raw mut popped) }?;
        result
    }

    /// Copies device memory out. The copies are cut where `cut` says: a copy of the driver stays in
    /// one allocation.
    ///
    /// # Errors
    /// The driver's. What was copied by then is in `into`.
    pub(crate) fn read(&self, from: usize, into: &mut [u8], cut: Cut) -> Result<()> {
        self.with_lane(|lane| {
            let mut done = 0;
            while done < into.len() {
                let at = from + done;
                let len = cut.room(at).min(into.len() - done).min(SCRATCH);
                // SAFETY: the scratch has room; `from` is checked by the driver. After the
                // synchronisation nothing writes to the scratch, and it holds `len` bytes.
                unsafe {
                    self.driver.copy_out(lane.scratch.cast(), at, len, lane.stream)?;
                    self.driver.synchronize(lane.stream)?;
                    lane.scratch.copy_to_nonoverlapping(into[done..].as_mut_ptr(), len);
                }
                done += len;
            }
            Ok(())
        })
    }

    /// Copies `len` bytes in, which `fill` makes for offsets in order.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn write(
        &self,
        to: usize,
        len: usize,
        cut: Cut,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        self.with_lane(|lane| {
            let mut done = 0;
            while done < len {
                let at = to + done;
                let part = cut.room(at).min(len - done).min(SCRATCH);
                // SAFETY: the scratch has room, and nothing reads or writes it until the copy
                // below; `to` is checked by the driver.
                unsafe {
                    fill(done, std::slice::from_raw_parts_mut(lane.scratch, part));
                    self.driver.copy_in(at, lane.scratch.cast::<c_void>(), part, lane.stream)?;
                    self.driver.synchronize(lane.stream)?;
                }
                done += part;
            }
            Ok(())
        })
    }

    fn with_lane(&self, f: impl FnOnce(&Lane) -> Result<()>) -> Result<()> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = loop {
            match lanes.pop() {
                Some(lane) => break lane,
                None => {
                    let woken = self.given_back.wait(lanes);
                    lanes = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(lanes);
        let result = self.bound(|_| f(&lane));
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
        self.given_back.notify_one();
        result
    }
}

impl Lane {
    fn new(driver: &Driver) -> Result<Lane> {
        let (mut stream, mut scratch) = (0, std::ptr::null_mut());
        // SAFETY: places for the two handles.
        unsafe {
            driver.create_stream(&raw mut stream, NON_BLOCKING)?;
            driver.alloc_host(&raw mut scratch, SCRATCH, 0)?;
            // The first access, so that it is not one that must not wait.
            scratch.cast::<u8>().write_bytes(0, SCRATCH);
        }
        Ok(Lane { stream, scratch: scratch.cast() })
    }
}

/// Where copies must end: at every multiple of `step` after `base`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) base: usize,
    pub(crate) step: usize,
}

impl Cut {
    /// Bytes from an address to the next border.
    fn room(self, address: usize) -> usize {
        self.step - (address - self.base) % self.step
    }
}
