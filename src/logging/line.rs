//! Format of a line: `host:pid:tid NVSHMEM LEVEL text`.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::OnceLock;

use log::{Level, Record};

use super::VERSION;

pub(super) fn write(out: &mut impl Write, record: &Record<'_>) -> io::Result<()> {
    let pid = std::process::id();
    let word = word(record);
    writeln!(out, "{}:{pid}:{} NVSHMEM {word} {}", host(), thread(pid), record.args())
}

fn word(record: &Record<'_>) -> &'static str {
    if record.target() == VERSION {
        return VERSION;
    }
    match record.level() {
        Level::Error => "ERROR",
        Level::Warn => "WARN",
        Level::Info => "INFO",
        Level::Debug => "DEBUG",
        Level::Trace => "TRACE",
    }
}

pub(super) fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        match name.trim().split('.').next() {
            Some(short) if !short.is_empty() => String::from(short),
            _ => String::from("unknown-host"),
        }
    })
}

/// Returns the kernel's id of the calling thread; the process id if unknown. The standard library
/// lacks it, so it is read once per thread from the end of the link `/proc/thread-self`.
fn thread(pid: u32) -> u32 {
    thread_local! {
        // With the process in which it was read: a forked child starts with its parent's copy.
        static THREAD: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    let (known_in, known) = THREAD.get();
    if known_in == pid {
        return known;
    }
    let id = std::fs::read_link("/proc/thread-self")
        .ok()
        .and_then(|path| path.file_name()?.to_str()?.parse().ok())
        .unwrap_or(pid);
    THREAD.set((pid, id));
    id
}
