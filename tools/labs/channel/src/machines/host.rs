//! CPU threads in place of a GPU's.

use std::ffi::CString;
use std::thread::{self, JoinHandle};

use channel_producer::{KernelArgs, run};

use crate::machines::{HasEnded, Machine, MachineError, Memory};

/// This process' threads, each a warp and a block of its own.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) threads: u32,
}

impl Host {
    fn no_device() -> MachineError {
        MachineError(String::from("CPU threads have no memory of a device: leave --memory out"))
    }
}

impl Machine for Host {
    fn name(&self) -> String {
        String::from("CPU threads")
    }

    fn shared(&self, len: usize) -> Result<Memory, MachineError> {
        let words = vec![0_u64; len.div_ceil(8)];
        Ok(Memory::new(words.as_ptr() as usize, len, Box::new(words)))
    }

    fn read(&self, _addr: usize, _into: &mut [u8]) -> Result<(), MachineError> {
        Err(Self::no_device())
    }

    fn write(&self, _addr: usize, _from: &[u8]) -> Result<(), MachineError> {
        Err(Self::no_device())
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        args: KernelArgs,
        blocks: u32,
        threads: u32,
    ) -> Result<HasEnded, MachineError> {
        let count = u64::from(blocks) * u64::from(threads);
        let name = CString::new(kernel).map_err(|error| MachineError(error.to_string()))?;
        let start = |thread| {
            let name = name.clone();
            thread::spawn(move || {
                let args = args;
                // SAFETY: the caller's promise.
                unsafe { run(&name, &args, thread, count) }
            })
        };
        let mut threads: Vec<JoinHandle<()>> = (0..count).map(start).collect();
        Ok(Box::new(move || {
            if !threads.iter().all(JoinHandle::is_finished) {
                return Ok(false);
            }
            let panicked = |_| MachineError(String::from("a thread has panicked"));
            threads.drain(..).try_for_each(|thread| thread.join().map_err(panicked))?;
            Ok(true)
        }))
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
