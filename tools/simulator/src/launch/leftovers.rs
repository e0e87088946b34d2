//! Shared memory files that killed PEs leave behind.
//!
//! A process that is killed cannot unlink its files in `/dev/shm`, and libfabric's `shm` provider
//! keeps one per endpoint there. A file counts as a PE's own when it was not there when the job
//! began and either its name holds the PE's process id as a number by itself, as libfabric's names
//! do, or the PE had it mapped when it was killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SHM: &str = "/dev/shm";

/// What was in `/dev/shm` before the job, and which files its PEs were seen to map.
#[derive(Debug)]
pub(crate) struct Leftovers {
    before: BTreeSet<PathBuf>,
    mapped: BTreeSet<PathBuf>,
}

impl Leftovers {
    pub(crate) fn before_job() -> Leftovers {
        Leftovers { before: files().collect(), mapped: BTreeSet::new() }
    }

    /// Notes what a process that is about to be killed has mapped.
    pub(crate) fn note_mapped(&mut self, pid: u32) {
        let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { return };
        for line in maps.lines() {
            if let Some(at) = line.find(SHM) {
                self.mapped.insert(PathBuf::from(&line[at..]));
            }
        }
    }

    /// Removes what the processes, all of them gone, have left. Returns what was removed.
    pub(crate) fn remove(&self, pids: &[u32]) -> Vec<PathBuf> {
        files()
            .filter(|path| !self.before.contains(path))
            .filter(|path| self.mapped.contains(path) || names_any(path, pids))
            .filter(|path| fs::remove_file(path).is_ok())
            .collect()
    }
}

fn files() -> impl Iterator<Item = PathBuf> {
    fs::read_dir(SHM).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Whether the file's name holds one of the numbers, not as part of a longer one.
fn names_any(path: &Path, pids: &[u32]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse::<u32>().ok())
        .any(|number| pids.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_is_found_as_a_whole_number_only() {
        let has = |name: &str| names_any(Path::new(name), &[4711]);
        assert!(has("/dev/shm/4711") && has("/dev/shm/fi_shm_4711:0:1") && has("/dev/shm/a4711b"));
        assert!(!has("/dev/shm/47110") && !has("/dev/shm/14711:0") && !has("/dev/shm/x"));
    }

    #[test]
    fn only_new_files_of_the_processes_are_removed() {
        // A number beyond the largest pid, so that no living process is meant.
        let pid = u32::MAX - std::process::id();
        let old = PathBuf::from(format!("{SHM}/nvshmem-sim-old-{pid}"));
        let own = PathBuf::from(format!("{SHM}/nvshmem-sim-{pid}-x"));
        let other = PathBuf::from(format!("{SHM}/nvshmem-sim-{}-x", pid - 1));
        fs::write(&old, "").unwrap();
        let leftovers = Leftovers::before_job();
        fs::write(&own, "").unwrap();
        fs::write(&other, "").unwrap();
        let removed = leftovers.remove(&[pid]);
        let kept = (old.exists(), other.exists());
        fs::remove_file(&old).unwrap();
        fs::remove_file(&other).unwrap();
        assert_eq!(removed, [own]);
        assert_eq!(kept, (true, true));
    }
}
