//! How PE 0 tells the others what to do: a page of memory that all have mapped.
//!
//! Not the bootstrap, whose calls the proxy thread cannot make, and not the transport, which is
//! what is measured. The others look at one word between two turns of their loop; as long as
//! nothing is asked, the word stays in their caches.

use std::fmt::Debug;
use std::fs::OpenOptions;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest wait of one PE for another.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the file.
pub(crate) const CONTROL_BYTES: u64 = 4096;

/// Most PEs of a job.
const PES: usize = 16;

/// Words of a command: a code, which is not zero, and its arguments.
pub(crate) type Words = [u64; 5];

/// What PE 0 can ask for.
pub(crate) trait Command: Copy + Debug {
    /// As words.
    fn encode(self) -> Words;

    /// From words; None when they are no command.
    fn decode(words: Words) -> Option<Self>;
}

/// A word alone in its cache line and its neighbour, which some machines fetch along.
#[repr(C, align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// The page. All zero is its first state.
#[repr(C)]
struct Page {
    /// Rises with each command, after its words were written.
    asked: Line,
    /// By PE: the number of the last command done.
    answered: [Line; PES],
    /// A PE that has given up, or zero.
    failed: Line,
    command: [AtomicU64; size_of::<Words>() / 8],
}

const _: () = assert!(size_of::<Page>() as u64 <= CONTROL_BYTES);

/// The page as one PE has it.
pub(crate) struct Control<C> {
    page: NonNull<Page>,
    me: usize,
    n_pes: usize,
    /// Commands given (PE 0) or taken (the others).
    count: u64,
    _commands: PhantomData<C>,
}

// SAFETY: the page is shared memory of atomics, mapped until this value is dropped.
unsafe impl<C> Send for Control<C> {}

impl<C: Command> Control<C> {
    /// Maps the file, which the launcher has made [`CONTROL_BYTES`] long and zero.
    pub(crate) fn open(path: &Path, me: u32, n_pes: u32) -> std::io::Result<Self> {
        let (me, n_pes) = (me as usize, n_pes as usize);
        if n_pes > PES {
            return Err(std::io::Error::other(format!("{n_pes} PEs are more than {PES}")));
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < CONTROL_BYTES {
            return Err(std::io::Error::other(format!("{} is too short", path.display())));
        }
        // SAFETY: a new mapping of a file that is long enough; it stays when the file is closed.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                CONTROL_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or_else(std::io::Error::last_os_error)?;
        Ok(Self { page, me, n_pes, count: 0, _commands: PhantomData })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped, page aligned, and nothing but atomics.
        unsafe { self.page.as_ref() }
    }

    /// Asks the others for something and waits until all have done it.
    ///
    /// # Errors
    /// One has failed, and says why itself, or does not answer.
    pub(crate) fn ask(&mut self, command: C) -> Result<(), String> {
        self.begin(command);
        self.finish(command)
    }

    /// Asks the others for something that they do together with PE 0, which waits for their end
    /// with [`Self::finish`].
    pub(crate) fn begin(&mut self, command: C) {
        self.count += 1;
        let page = self.page();
        for (place, word) in page.command.iter().zip(command.encode()) {
            place.store(word, Ordering::Relaxed);
        }
        page.asked.0.store(self.count, Ordering::Release);
    }

    /// Waits until all have done what was asked for last.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) fn finish(&self, command: C) -> Result<(), String> {
        let start = Instant::now();
        let page = self.page();
        for (pe, answered) in page.answered.iter().enumerate().take(self.n_pes).skip(1) {
            while answered.0.load(Ordering::Acquire) != self.count {
                self.check().map_err(|e| format!("{e} at {command:?}"))?;
                if start.elapsed() > PATIENCE {
                    return Err(format!("PE {pe} has not done {command:?} within {PATIENCE:?}"));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// # Errors
    /// Another PE has failed.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.page().failed.0.load(Ordering::Acquire) {
            0 => Ok(()),
            pe => Err(format!("PE {pe} has failed")),
        }
    }

    /// A command not taken before.
    ///
    /// # Errors
    /// The page holds no command, so it is not ours.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Option<C>, String> {
        let page = self.page();
        if page.asked.0.load(Ordering::Acquire) == self.count {
            return Ok(None);
        }
        let words = std::array::from_fn(|at| page.command[at].load(Ordering::Relaxed));
        self.count += 1;
        C::decode(words).map(Some).ok_or_else(|| format!("no command: {words:?}"))
    }

    /// Says that the command taken is done.
    pub(crate) fn done(&self) {
        self.page().answered[self.me].0.store(self.count, Ordering::Release);
    }

    /// Says that this PE has failed.
    pub(crate) fn fail(&self) {
        self.page().failed.0.store(self.me as u64, Ordering::Release);
    }
}

impl<C> Drop for Control<C> {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length, unmapped once.
        unsafe { libc::munmap(self.page.as_ptr().cast(), CONTROL_BYTES as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Number(u64);

    impl Command for Number {
        fn encode(self) -> Words {
            [1, self.0, 0, 0, 0]
        }

        fn decode(words: Words) -> Option<Self> {
            (words[0] == 1).then_some(Number(words[1]))
        }
    }

    #[test]
    fn all_others_are_asked_and_waited_for() {
        let path = std::env::temp_dir().join(format!("nvshmem-bench-test-{}", std::process::id()));
        std::fs::write(&path, vec![0; CONTROL_BYTES as usize]).unwrap();
        let open = |pe| Control::<Number>::open(&path, pe, 3).unwrap();
        let mut here = open(0);
        let others = [open(1), open(2)].map(|mut there| {
            std::thread::spawn(move || {
                let start = Instant::now();
                while start.elapsed() < PATIENCE {
                    match there.take().unwrap() {
                        Some(Number(7)) => {
                            there.done();
                            assert_eq!(there.take(), Ok(None), "a command is taken once");
                        }
                        Some(_) if there.me == 2 => return there.fail(),
                        Some(_) => return there.done(),
                        None => std::thread::yield_now(),
                    }
                }
            })
        });
        std::fs::remove_file(&path).unwrap();
        assert_eq!(here.ask(Number(7)), Ok(()));
        assert!(here.ask(Number(8)).unwrap_err().contains("PE 2 has failed"));
        for other in others {
            other.join().unwrap();
        }
        assert!(Control::<Number>::open(&path, 0, 17).is_err());
    }
}
