//! How PE 0 tells PE 1 what to do: a page of memory that both have mapped.
//!
//! Not the bootstrap, whose calls the proxy thread cannot make, and not the transport, which is
//! what is measured. PE 1 looks at one word between two turns of its loop; as long as nothing is
//! asked, the word stays in its cache.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::case::Direction;

/// Longest wait of one PE for the other.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the file.
pub(crate) const CONTROL_BYTES: u64 = 4096;

/// Arguments of a command.
const ARGS: usize = 4;

/// Which implementation moves the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Raw libfabric.
    Raw,
    /// The plugin.
    Plugin,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Raw => "raw",
            Side::Plugin => "plugin",
        })
    }
}

/// What PE 1 is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Progress this side from now on, and only this.
    Serve(Side),
    /// Before operations in a direction: for puts, clear what they will write; for gets, fill what
    /// they will read with a pattern.
    Prepare { direction: Direction, len: u64, seed: u64 },
    /// After puts: compare what they have written with a pattern.
    Verify { len: u64, seed: u64 },
    /// Before gets: put stamps into every slot of what they will read.
    Stamp { bytes: u64, window: u64, seed: u64 },
    /// After puts: check the stamps in every slot.
    CheckStamps { bytes: u64, window: u64, seed: u64 },
    /// While puts are under way: go on until all stamps have arrived, and then for some turns
    /// more, so that whatever tells the other side of it has left.
    Await { bytes: u64, window: u64, seed: u64 },
    /// The end.
    Stop,
}

impl Command {
    fn encode(self) -> [u64; 1 + ARGS] {
        let direction = |direction| u64::from(direction == Direction::Get);
        match self {
            Command::Serve(side) => [1, u64::from(side == Side::Plugin), 0, 0, 0],
            Command::Prepare { direction: d, len, seed } => [2, direction(d), len, seed, 0],
            Command::Verify { len, seed } => [3, len, seed, 0, 0],
            Command::Stamp { bytes, window, seed } => [4, bytes, window, seed, 0],
            Command::CheckStamps { bytes, window, seed } => [5, bytes, window, seed, 0],
            Command::Await { bytes, window, seed } => [6, bytes, window, seed, 0],
            Command::Stop => [7, 0, 0, 0, 0],
        }
    }

    fn decode(words: [u64; 1 + ARGS]) -> Option<Self> {
        let direction = |word| if word == 0 { Direction::Put } else { Direction::Get };
        let [code, a, b, c, _] = words;
        Some(match code {
            1 => Command::Serve(if a == 0 { Side::Raw } else { Side::Plugin }),
            2 => Command::Prepare { direction: direction(a), len: b, seed: c },
            3 => Command::Verify { len: a, seed: b },
            4 => Command::Stamp { bytes: a, window: b, seed: c },
            5 => Command::CheckStamps { bytes: a, window: b, seed: c },
            6 => Command::Await { bytes: a, window: b, seed: c },
            7 => Command::Stop,
            _ => return None,
        })
    }
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
    /// The number of the last command done.
    answered: Line,
    /// Not zero when PE 1 has given up.
    failed: Line,
    command: [AtomicU64; 1 + ARGS],
}

const _: () = assert!(size_of::<Page>() as u64 <= CONTROL_BYTES);

/// The page as one PE has it.
pub(crate) struct Control {
    page: NonNull<Page>,
    /// Commands given (PE 0) or taken (PE 1).
    count: u64,
}

// SAFETY: the page is shared memory of atomics, mapped until this value is dropped.
unsafe impl Send for Control {}

impl Control {
    /// Maps the file, which the launcher has made [`CONTROL_BYTES`] long and zero.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
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
        Ok(Self { page, count: 0 })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped, page aligned, and nothing but atomics.
        unsafe { self.page.as_ref() }
    }

    /// Asks PE 1 for something and waits until it is done.
    ///
    /// # Errors
    /// PE 1 has failed, and says why itself, or does not answer.
    pub(crate) fn ask(&mut self, command: Command) -> Result<(), String> {
        self.count += 1;
        let page = self.page();
        for (place, word) in page.command.iter().zip(command.encode()) {
            place.store(word, Ordering::Relaxed);
        }
        page.asked.0.store(self.count, Ordering::Release);
        let start = Instant::now();
        while page.answered.0.load(Ordering::Acquire) != self.count {
            if page.failed.0.load(Ordering::Acquire) != 0 {
                return Err(format!("PE 1 has failed at {command:?}"));
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("PE 1 has not done {command:?} within {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// A command not taken before.
    ///
    /// # Errors
    /// The page holds no command, so it is not ours.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Option<Command>, String> {
        let page = self.page();
        if page.asked.0.load(Ordering::Acquire) == self.count {
            return Ok(None);
        }
        let words = std::array::from_fn(|at| page.command[at].load(Ordering::Relaxed));
        self.count += 1;
        Command::decode(words).map(Some).ok_or_else(|| format!("no command: {words:?}"))
    }

    /// Says that the command taken is done.
    pub(crate) fn done(&self) {
        self.page().answered.0.store(self.count, Ordering::Release);
    }

    /// Says that PE 1 has failed.
    pub(crate) fn fail(&self) {
        self.page().failed.0.store(1, Ordering::Release);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length, unmapped once.
        unsafe { libc::munmap(self.page.as_ptr().cast(), CONTROL_BYTES as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_the_page() {
        let (bytes, window, seed) = (1, 2, 3);
        for command in [
            Command::Serve(Side::Raw),
            Command::Serve(Side::Plugin),
            Command::Prepare { direction: Direction::Get, len: 5, seed: 6 },
            Command::Prepare { direction: Direction::Put, len: 5, seed: 6 },
            Command::Verify { len: 7, seed: 8 },
            Command::Stamp { bytes, window, seed },
            Command::CheckStamps { bytes, window, seed },
            Command::Await { bytes, window, seed },
            Command::Stop,
        ] {
            assert_eq!(Command::decode(command.encode()), Some(command));
        }
        assert_eq!(Command::decode([0; 1 + ARGS]), None);
    }

    #[test]
    fn two_mappings_talk() {
        let path = std::env::temp_dir().join(format!("nvshmem-bench-test-{}", std::process::id()));
        std::fs::write(&path, vec![0; CONTROL_BYTES as usize]).unwrap();
        let (mut here, mut there) = (Control::open(&path).unwrap(), Control::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let other = std::thread::spawn(move || {
            let start = Instant::now();
            while start.elapsed() < PATIENCE {
                if let Some(command) = there.take().unwrap() {
                    if command == Command::Stop {
                        there.fail();
                        return;
                    }
                    assert_eq!(command, Command::Serve(Side::Plugin));
                    there.done();
                    assert_eq!(there.take(), Ok(None), "a command is taken once");
                }
            }
        });
        assert_eq!(here.ask(Command::Serve(Side::Plugin)), Ok(()));
        assert!(here.ask(Command::Stop).unwrap_err().contains("has failed"));
        other.join().unwrap();
    }
}
