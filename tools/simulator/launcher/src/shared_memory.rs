//! Files in `/dev/shm` that killed processes leave behind.
//!
//! A process that is killed cannot unlink its files there, and libfabric's `shm` provider keeps one
//! per endpoint. A file counts as a process' own when it was not there when the job began and
//! either its name holds the process id as a number by itself, as libfabric's names do, or the
//! process had it mapped when it was killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SHM: &str = "/dev/shm";

/// What was in `/dev/shm` before a job, and what its processes had mapped when they were killed.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    before: BTreeSet<PathBuf>,
    mapped: BTreeSet<PathBuf>,
}

impl SharedMemory {
    pub(crate) fn before_job() -> Self {
        Self { before: files().collect(), mapped: BTreeSet::new() }
    }

    pub(crate) fn note_mapped(&mut self, pid: u32) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let paths = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find(SHM)?..])));
        self.mapped.extend(paths);
    }

    pub(crate) fn remove_of(&self, pid: u32) -> Vec<PathBuf> {
        files()
            .filter(|path| !self.before.contains(path))
            .filter(|path| self.mapped.contains(path) || names(path, pid))
            .filter(|path| fs::remove_file(path).is_ok())
            .collect()
    }
}

fn files() -> impl Iterator<Item = PathBuf> {
    fs::read_dir(SHM).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn names(path: &Path, pid: u32) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.parse() == Ok(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_new_files_are_removed() {
        // A number beyond the largest pid, so that no living process is meant.
        let pid = u32::MAX - std::process::id();
        let file = |name: String| PathBuf::from(SHM).join(name);
        let old = file(format!("launcher-old-{pid}"));
        let own = file(format!("launcher-{pid}:0"));
        let others = file(format!("launcher-1{pid}:0"));
        fs::write(&old, "").unwrap();
        let shared_memory = SharedMemory::before_job();
        fs::write(&own, "").unwrap();
        fs::write(&others, "").unwrap();
        let removed = shared_memory.remove_of(pid);
        let kept = [fs::remove_file(&old), fs::remove_file(&others)].map(|file| file.is_ok());
        assert_eq!((removed, kept), (vec![own], [true, true]));
    }
}
