//! CPU threads in place of a GPU's.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use channel_producer::{KernelArgs, Zeroed, run};

use crate::machines::machine::{Machine, MachineError, Memory, Running};
use crate::machines::reach::copy_near;

/// This process' threads, each a warp and a block of its own.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) threads: u32,
}

#[derive(Debug)]
struct Threads(Vec<JoinHandle<()>>);

impl Running for Threads {
    fn is_done(&mut self) -> Result<bool, MachineError> {
        if !self.0.iter().all(JoinHandle::is_finished) {
            return Ok(false);
        }
        for thread in self.0.drain(..) {
            thread.join().map_err(|_| MachineError(String::from("a thread has panicked")))?;
        }
        Ok(true)
    }
}

impl Machine for Host {
    fn name(&self) -> String {
        String::from("CPU threads")
    }

    fn shared(&self, len: usize) -> Result<Memory, MachineError> {
        // SAFETY: a word of zeroes is one.
        let words: Zeroed<u64> = unsafe { Zeroed::new(len.div_ceil(8)) };
        Ok(Memory::new(words.as_ptr() as usize, len, Box::new(words)))
    }

    fn fast(&self, content: &[u8]) -> Result<Memory, MachineError> {
        let memory = self.shared(content.len())?;
        // SAFETY: as long as the content, and just made.
        unsafe {
            std::ptr::copy_nonoverlapping(content.as_ptr(), memory.addr as *mut u8, content.len());
        }
        Ok(memory)
    }

    /// Memory like any other, which only [`Machine::read`] and [`Machine::write`] are used on.
    fn device(&self, len: usize) -> Result<Memory, MachineError> {
        self.shared(len)
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> Result<(), MachineError> {
        // SAFETY: memory of `device`, by who asks; threads use it atomically.
        unsafe { move_bytes(addr, into.as_mut_ptr() as usize, into.len()) };
        Ok(())
    }

    fn write(&self, addr: usize, from: &[u8]) -> Result<(), MachineError> {
        // SAFETY: the same.
        unsafe { move_bytes(from.as_ptr() as usize, addr, from.len()) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        args: KernelArgs,
        blocks: u32,
        threads: u32,
    ) -> Result<Box<dyn Running>, MachineError> {
        let count = u64::from(blocks) * u64::from(threads);
        let name = CString::new(kernel).map_err(|error| MachineError(error.to_string()))?;
        let threads = (0..count).map(|thread| {
            let name = name.clone();
            thread::spawn(move || {
                let args = args;
                // SAFETY: the caller's promise.
                unsafe { run(&name, &args, thread, count) }
            })
        });
        Ok(Box::new(Threads(threads.collect())))
    }

    fn with_device(
        &self,
        run: &mut dyn FnMut() -> Result<(), MachineError>,
    ) -> Result<(), MachineError> {
        run()
    }

    fn warp(&self) -> u32 {
        1
    }

    fn shape(&self) -> (u32, u32) {
        (self.threads, 1)
    }
}

/// As a device copies: a word of 4 bytes is whole for who looks meanwhile, as longer ones are.
///
/// # Safety
/// Both ranges are used atomically while threads run.
unsafe fn move_bytes(from: usize, to: usize, len: usize) {
    if len == 4 && to % 4 == 0 {
        // SAFETY: the caller's promise; the word is aligned where it may be looked at.
        unsafe {
            let word = (from as *const u32).read_unaligned();
            AtomicU32::from_ptr(to as *mut u32).store(word, Ordering::Release);
        }
    } else if len == 8 && to % 8 == 0 {
        // SAFETY: the same.
        unsafe {
            let word = (from as *const u64).read_unaligned();
            AtomicU64::from_ptr(to as *mut u64).store(word, Ordering::Release);
        }
    } else {
        // SAFETY: the same.
        unsafe { copy_near(from, to, len) }
    }
}
