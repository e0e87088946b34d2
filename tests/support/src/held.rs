//! What a process has of the system: to see that nothing is left behind.

use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub kilobytes: u64,
    pub descriptors: usize,
    pub threads: usize,
    /// Files of this process in `/dev/shm`, as libfabric's shm names them.
    pub shared: usize,
    pub mappings: usize,
}

impl Held {
    pub fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).expect("the process tells about itself");
        let status = read("/proc/self/status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        let files = |path: &str| fs::read_dir(path).expect("a directory").flatten();
        let mine = format!("{}:", std::process::id());
        let is_mine = |file: &fs::DirEntry| file.file_name().to_string_lossy().starts_with(&mine);
        Self {
            kilobytes: kilobytes.expect("a number of kilobytes"),
            descriptors: files("/proc/self/fd").count(),
            threads: files("/proc/self/task").count(),
            shared: files("/dev/shm").filter(is_mine).count(),
            mappings: read("/proc/self/maps").lines().count(),
        }
    }

    /// Whether there are no more things of any kind than before. How much memory there is moves
    /// about.
    pub fn has_no_more_than(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.shared <= before.shared
    }

    /// As it is when there is no more than before, or at last: the system shows threads for a
    /// moment after they have ended.
    fn settled(before: &Self) -> Self {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Self::now();
            if now.has_no_more_than(before) || Instant::now() > end {
                return now;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kilobytes, descriptors, threads, shared, mappings } = self;
        write!(
            f,
            "{kilobytes:8} KiB {mappings:5} mappings {descriptors:4} descriptors {threads:3} threads \
             {shared:2} in /dev/shm"
        )
    }
}

#[derive(Debug)]
pub struct Cycles {
    pub count: u64,
    name: String,
    prints: bool,
    warm: Option<Held>,
    half: Option<Held>,
}

impl Cycles {
    /// So many, unless `NVSHMEM_TEST_CYCLES` says another number; then `prints` makes a table, with
    /// this name.
    pub fn new(count: u64, name: impl Into<String>, prints: bool) -> Self {
        let asked = std::env::var("NVSHMEM_TEST_CYCLES").ok().and_then(|count| count.parse().ok());
        let prints = prints && asked.is_some();
        Self { count: asked.unwrap_or(count), name: name.into(), prints, warm: None, half: None }
    }

    /// One is over, the first being number 1.
    pub fn over(&mut self, cycle: u64) -> Result<(), String> {
        let now = self.warm.as_ref().map_or_else(Held::now, Held::settled);
        if self.prints && (cycle % (self.count / 8).max(1) == 0 || cycle == 1) {
            println!("CYCLES {:10} {cycle:6} {now}", self.name);
        }
        // What libraries keep once they were used is there after a few.
        if cycle <= self.count.min(8) / 2 {
            self.warm = Some(now);
        }
        if cycle == self.count / 2 {
            self.half = Some(now);
        }
        if let Some(warm) = self.warm.filter(|warm| !now.has_no_more_than(warm)) {
            return Err(format!("after {cycle} cycles: {now}; after a few: {warm}"));
        }
        // How much memory there is says something of many cycles only.
        let half = self.half.filter(|_| cycle == self.count && cycle >= 100);
        let Some(half) = half else { return Ok(()) };
        let most = half.kilobytes + half.kilobytes / 20 + 1024;
        if now.kilobytes > most || now.mappings > half.mappings + half.mappings / 20 + 16 {
            return Err(format!("after {cycle} cycles: {now}; after half of them: {half}"));
        }
        Ok(())
    }
}
