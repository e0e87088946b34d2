//! Control of the other PEs by PE 0: a page of memory that all have mapped.
//!
//! Not the bootstrap, whose calls the proxy thread cannot make, and not the transport, which is
//! what is measured. The others look at one word between two turns of their loop; as long as
//! nothing is asked, the word stays in their caches. Where PEs are on several hosts each has a page
//! of its own, and [`super::relay`] passes on what is asked and answered.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use nvshmem_sim::SymAddr;
use serde::{Deserialize, Serialize};

use super::Heard;
use super::exchange::Mailboxes;
use super::patience::PATIENCE;
use super::slots::Slots;
use crate::times::case::Side;

/// Bytes of the file.
pub(crate) const CONTROL_BYTES: usize = 4096;

/// Most PEs of a job.
const PES: usize = 16;

/// Most bytes of a command as text.
pub(super) const TEXT: usize = 1024;

/// A wait that takes longer than what is asked for does by itself, and short beside [`PATIENCE`].
const LONG: Duration = Duration::from_millis(100);

/// What PE 0 can ask the others for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Progress what moves this side's data from now on, and only that; or nothing.
    Serve(Option<Side>),
    /// Fill slots with a pattern.
    Fill {
        slots: Slots,
        seed: u64,
    },
    Clear {
        slots: Slots,
    },
    /// Compare slots with a pattern.
    Verify {
        slots: Slots,
        seed: u64,
    },
    Stamp {
        slots: Slots,
        seed: u64,
    },
    /// Check the stamps.
    Check {
        slots: Slots,
        seed: u64,
    },
    /// Check that a word has a value.
    CheckWord {
        word: SymAddr,
        value: u64,
    },
    /// While puts are under way: go on until all stamps have arrived, and then for some turns more,
    /// so that whatever tells the other side of it has left.
    AwaitStamps {
        slots: Slots,
        seed: u64,
    },
    /// Progress the plugin until a word has at least that value, and then nothing.
    AwaitWord {
        word: SymAddr,
        value: u64,
    },
    /// Answer so many messages of a side, the first of which has that number.
    Answer {
        side: Side,
        boxes: Mailboxes,
        bytes: u64,
        first: u64,
        count: u64,
    },
    /// Tell callgrind that a section begins or ends.
    Mark,
    /// The end.
    Stop,
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
    /// Bytes of the command.
    len: AtomicU64,
    command: [AtomicU8; TEXT],
}

const _: () = assert!(size_of::<Page>() <= CONTROL_BYTES);

/// The page, mapped.
struct Mapped(NonNull<Page>);

// SAFETY: memory of atomics, mapped until this value is dropped.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the file, or memory of this process alone, all zero.
    fn new(file: Option<&File>) -> std::io::Result<Self> {
        let (flags, file) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of a file that is long enough or of no file; it stays when the
        // file is closed.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), CONTROL_BYTES, access, flags, file, 0) };
        if page == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        NonNull::new(page.cast()).map(Self).ok_or_else(std::io::Error::last_os_error)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, unmapped once.
        unsafe { libc::munmap(self.0.as_ptr().cast(), CONTROL_BYTES) };
    }
}

/// The page as one PE has it.
pub(crate) struct Control {
    page: Arc<Mapped>,
    me: usize,
    n_pes: usize,
    /// Commands given (PE 0) or taken (the others).
    count: u64,
    /// Who is told of a command that the page alone does not bring to the others.
    bell: Option<Sender<Heard>>,
}

impl Control {
    /// Maps the file, which the launcher has made [`CONTROL_BYTES`] long and zero.
    pub(crate) fn open(path: &Path, me: u32, n_pes: u32) -> std::io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < CONTROL_BYTES as u64 {
            return Err(std::io::Error::other(format!("{} is too short", path.display())));
        }
        Self::on(Mapped::new(Some(&file))?, me, n_pes)
    }

    /// A page of this PE alone, whose commands and answers a relay passes on.
    pub(super) fn alone(me: u32, n_pes: u32) -> std::io::Result<Self> {
        Self::on(Mapped::new(None)?, me, n_pes)
    }

    fn on(page: Mapped, me: u32, n_pes: u32) -> std::io::Result<Self> {
        let (me, n_pes) = (me as usize, n_pes as usize);
        if n_pes > PES {
            return Err(std::io::Error::other(format!("{n_pes} PEs are more than {PES}")));
        }
        Ok(Self { page: Arc::new(page), me, n_pes, count: 0, bell: None })
    }

    /// Has a relay told of each command.
    pub(super) fn with_bell(self, bell: Sender<Heard>) -> Self {
        Self { bell: Some(bell), ..self }
    }

    /// The same page, for another thread of this PE.
    pub(super) fn again(&self) -> Self {
        Self { page: Arc::clone(&self.page), bell: None, ..*self }
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped, page aligned, and nothing but atomics.
        unsafe { self.page.0.as_ref() }
    }

    /// Asks the others for something and waits until all have done it.
    ///
    /// # Errors
    /// One has failed, and says why itself, or does not answer.
    pub(crate) fn ask(&mut self, command: Command) -> Result<(), String> {
        self.begin(command)?;
        self.finish(command)
    }

    /// Asks the others for something that they do together with PE 0, which waits for their end
    /// with [`Self::finish`].
    ///
    /// # Errors
    /// The page has no room for the command.
    pub(crate) fn begin(&mut self, command: Command) -> Result<(), String> {
        let text = serde_json::to_vec(&command).map_err(|e| e.to_string())?;
        if text.len() > TEXT {
            return Err(format!("{command:?} takes {} bytes of {TEXT}", text.len()));
        }
        self.write(&text);
        if let Some(bell) = &self.bell {
            // Who has gone has failed, and the wait for the answer says so.
            let _ = bell.send(Heard::Asked);
        }
        Ok(())
    }

    /// Puts a command, as text, onto the page.
    pub(super) fn write(&mut self, text: &[u8]) {
        self.count += 1;
        let page = self.page();
        page.len.store(text.len() as u64, Ordering::Relaxed);
        for (place, byte) in page.command.iter().zip(text) {
            place.store(*byte, Ordering::Relaxed);
        }
        page.asked.0.store(self.count, Ordering::Release);
    }

    /// The command on the page, as text, not taken before.
    pub(super) fn read(&mut self) -> Option<Vec<u8>> {
        let page = self.page();
        if page.asked.0.load(Ordering::Acquire) == self.count {
            return None;
        }
        let len = page.len.load(Ordering::Relaxed) as usize;
        let text = page.command.iter().take(len).map(|byte| byte.load(Ordering::Relaxed));
        let text = text.collect();
        self.count += 1;
        Some(text)
    }

    /// Whether this PE has done the last command; an error once any has failed.
    pub(super) fn is_done(&self) -> Result<bool, String> {
        self.check()?;
        Ok(self.page().answered[self.me].0.load(Ordering::Acquire) == self.count)
    }

    /// Takes over how the last command has ended on every PE.
    pub(super) fn answered(&self, good: &[u8]) {
        let page = self.page();
        for (pe, (good, answered)) in good.iter().zip(&page.answered).enumerate().skip(1) {
            if *good == 0 {
                page.failed.0.store(pe as u64, Ordering::Release);
            }
            answered.0.store(self.count, Ordering::Release);
        }
    }

    /// Waits until all have done what was asked for last.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) fn finish(&self, command: Command) -> Result<(), String> {
        self.finish_with(command, || Ok(()))
    }

    /// The same, and does this now and then where it takes long.
    ///
    /// # Errors
    /// As [`Self::ask`], or that of what is done.
    pub(crate) fn finish_with(
        &self,
        command: Command,
        mut now_and_then: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        let mut next = LONG;
        let page = self.page();
        for (pe, answered) in page.answered.iter().enumerate().take(self.n_pes).skip(1) {
            while answered.0.load(Ordering::Acquire) != self.count {
                self.check().map_err(|e| format!("{e} at {command:?}"))?;
                let elapsed = start.elapsed();
                if elapsed > next {
                    next = elapsed + LONG;
                    now_and_then()?;
                }
                if elapsed > PATIENCE {
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
    pub(crate) fn take(&mut self) -> Result<Option<Command>, String> {
        let Some(text) = self.read() else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|e| format!("no command: {e}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_others_are_asked_and_waited_for() {
        let path = std::env::temp_dir().join(format!("nvshmem-bench-test-{}", std::process::id()));
        std::fs::write(&path, [0; CONTROL_BYTES]).unwrap();
        let open = |pe| Control::open(&path, pe, 3).unwrap();
        let mut here = open(0);
        let seven = Command::CheckWord { word: SymAddr(7), value: u64::MAX };
        let others = [open(1), open(2)].map(|mut there| {
            std::thread::spawn(move || {
                let start = Instant::now();
                while start.elapsed() < PATIENCE {
                    match there.take().unwrap() {
                        Some(command) if command == seven => {
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
        assert_eq!(here.ask(seven), Ok(()));
        assert!(here.ask(Command::Stop).unwrap_err().contains("PE 2 has failed"));
        for other in others {
            other.join().unwrap();
        }
        assert!(Control::open(&path, 0, 17).is_err());
    }

    #[test]
    fn the_longest_command_fits() {
        let [at, word] = [SymAddr(u64::MAX); 2];
        let boxes = Mailboxes { outgoing: at, incoming: at, signals: word, raw: at };
        let (bytes, first, count) = (u64::MAX, u64::MAX, u64::MAX);
        let longest = Command::Answer { side: Side::Reference, boxes, bytes, first, count };
        assert!(serde_json::to_vec(&longest).unwrap().len() <= TEXT);
    }
}
