//! Endpoints that are files in `/dev/shm`: names, space, and files of ended processes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use libfabric_sys::Version;

const DIRECTORY: &str = "/dev/shm";

/// Names of sockets by which PEs of a host meet begin with it, in `/dev/shm` too.
pub const SOCKET_PREFIX: &str = "nvshmem-libfabric-";

/// Time limit for the lock, which any process may hold while it opens endpoints.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the number of this process's namespace of a kind, such as `pid`; 0 if unknown.
pub fn namespace(kind: &str) -> u64 {
    fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |found| found.ino())
}

/// Describes the properties that PEs must share for their endpoints to find each other. Bytes
/// beyond 64 are not compared: digits of an inode, which is 1 if `/dev/shm` is a file system of its
/// own.
pub(crate) fn common(provider: &str, library: Version) -> String {
    let (device, inode) = fs::metadata(DIRECTORY).map_or((0, 0), |at| (at.dev(), at.ino()));
    let pids = namespace("pid");
    format!("{provider}, libfabric {library}, PID ns {pids}, /dev/shm {device:x}:{inode:x}")
}

/// Removes endpoints of ended processes of this user and PID namespace, and this user's sockets at
/// which nobody listens; returns number and bytes.
pub fn remove_left_behind() -> (usize, u64) {
    remove_in(Path::new(DIRECTORY), namespace("pid"), &has_ended)
}

fn has_ended(pid: i32) -> bool {
    // SAFETY: no signal is sent: numbers alone.
    let found = unsafe { libc::kill(pid, 0) } == 0;
    !found && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

fn remove_in(directory: &Path, namespace: u64, has_ended: &dyn Fn(i32) -> bool) -> (usize, u64) {
    // SAFETY: a call without arguments.
    let user = unsafe { libc::geteuid() };
    let mut removed = (0, 0);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Some(found) = entry.metadata().ok().filter(|found| found.uid() == user) else {
            continue;
        };
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_left = if found.file_type().is_socket() {
            name.starts_with(SOCKET_PREFIX) && is_deserted(&entry.path())
        } else {
            found.is_file() && maker(name, namespace).is_some_and(has_ended)
        };
        if is_left && fs::remove_file(entry.path()).is_ok() {
            removed = (removed.0 + 1, removed.1 + 512 * found.blocks());
        }
    }
    removed
}

/// A socket of another type connects to none, so a listener is not disturbed.
fn is_deserted(socket: &Path) -> bool {
    let tried = UnixDatagram::unbound().and_then(|other| other.connect(socket));
    tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Returns the process of an endpoint named `PID-NAMESPACE:USER:NUMBER`, if of this namespace.
fn maker(name: &str, namespace: u64) -> Option<i32> {
    let (pid, rest) = name.split_once('-')?;
    let is_here = namespace != 0 && rest.split_once(':')?.0.parse() == Ok(namespace);
    pid.parse().ok().filter(|pid| is_here && *pid > 0)
}

/// Checks that `/dev/shm` has space for endpoints. Returns a lock for which other processes wait in
/// this function, so that endpoints opened before it is dropped get that space.
pub(crate) fn reserve(bytes: u64) -> Result<Option<File>, String> {
    let lock = File::open(DIRECTORY).ok();
    let began = Instant::now();
    if let Some(file) = &lock {
        // SAFETY: a descriptor that is open.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0
            && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
            && began.elapsed() < PATIENCE
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
    lack(bytes).map_or(Ok(lock), Err)
}

/// Describes the lack of space and its remedy, if fewer bytes are free.
pub(crate) fn lack(needed: u64) -> Option<String> {
    let free = free_bytes().filter(|free| *free < needed)?;
    Some(format!(
        "/dev/shm has {free} bytes left, and {needed} are needed for endpoints: a container gets more by --shm-size; files of \
         ended processes may be removed"
    ))
}

/// Returns true if libfabric lets the kernel copy between processes of one user (CMA); otherwise
/// transfers longer than a message go through the endpoints' files.
pub(crate) fn kernel_copies() -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let refused = std::env::var("FI_SHM_DISABLE_CMA").is_ok_and(|set| set != "0");
    copies_a_byte() && is_permitted(&read(SCOPE), &read(STATUS)) && !refused
}

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const STATUS: &str = "/proc/self/status";

/// Copies a byte of this process onto itself, which a filter of system calls may refuse.
fn copies_a_byte() -> bool {
    let mut byte = 0_u8;
    let own = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: copies a local byte onto itself.
    unsafe { libc::process_vm_writev(libc::getpid(), &own, 1, &own, 1, 0) == 1 }
}

/// With Yama's scope 1 and 2 a process needs this capability to access a sibling; with 3 none may.
fn is_permitted(scope: &str, status: &str) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    let may_trace = held >> CAP_SYS_PTRACE & 1 != 0;
    matches!(scope.trim(), "" | "0") || may_trace && scope.trim() < "3"
}

/// Returns the free bytes of `/dev/shm`.
pub fn free_bytes() -> Option<u64> {
    // SAFETY: plain integers, for which zeros are values.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a text, and a structure of ours, which the call fills.
    let status = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), &raw mut found) };
    (status == 0).then_some(found.f_bavail * found.f_frsize)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use test_support::scratch::Scratch;

    use super::*;

    #[test]
    fn endpoints_of_ended_processes_are_removed() {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.join("4711-7:0:2")).unwrap();
        let kept =
            ["4712-7:0:1", "4711-8:0:1", "4711:0:1", "4711-7", "x-7:0:1", "0-7:0:1", "4711-7:0:2"];
        for name in [&kept[..6], &["4711-7:0:1"]].concat() {
            scratch.write(name, [1; 4096]);
        }
        assert_eq!(remove_in(&scratch, 0, &|_| true), (0, 0), "no namespace is known");
        let (files, bytes) = remove_in(&scratch, 7, &|pid| pid != 4712);
        assert!(files == 1 && bytes >= 4096 && !scratch.join("4711-7:0:1").exists());
        assert!(kept.into_iter().all(|name| scratch.join(name).exists()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(has_ended(child.id() as i32) && !has_ended(std::process::id() as i32));
    }

    #[test]
    fn deserted_sockets_are_removed() {
        let scratch = Scratch::new();
        let names = ["nvshmem-libfabric-1", "nvshmem-libfabric-2", "other"];
        let [listener, ..] = names.map(|name| UnixListener::bind(scratch.join(name)).unwrap());
        assert_eq!(remove_in(&scratch, 7, &|_| true).0, 1);
        assert_eq!(names.map(|name| scratch.join(name).exists()), [true, false, true]);
        listener.set_nonblocking(true).unwrap();
        listener.accept().expect_err("nobody has connected");
    }

    #[test]
    fn siblings_need_scope_or_capability() {
        let all = "Name:\tx\nCapPrm:\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n";
        for (scope, status, permitted) in [
            ("", "", true),
            ("0\n", "CapEff:\t0\n", true),
            ("1\n", "CapEff:\t0000000000080000\n", true),
            ("1\n", "CapEff:\tfffffffffff7ffff\n", false),
            ("1\n", "CapPrm:\t0000000000080000\n", false),
            ("2\n", all, true),
            ("3\n", all, false),
        ] {
            assert_eq!(is_permitted(scope, status), permitted, "{scope} {status}");
        }
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (scope, status) = (read(SCOPE), read(STATUS));
        assert_eq!(kernel_copies(), copies_a_byte() && is_permitted(&scope, &status));
    }

    #[test]
    fn filtered_system_calls_copy_nothing() {
        let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let filtered = thread::spawn(move || {
            let mut filter = [
                instruction(0x20, 0, 0, 0), // loads the call's number
                instruction(0x15, 0, 1, libc::SYS_process_vm_writev as u32),
                instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
                instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            // SAFETY: the program outlives the call; it is for this thread alone.
            let status = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
            };
            (status, kernel_copies())
        });
        assert_eq!(filtered.join().unwrap(), (0, false));
    }

    #[test]
    fn lack_of_space_names_figures() {
        let free = free_bytes().expect("it is there");
        let held = reserve(1).expect("there is space");
        let other = File::open(DIRECTORY).unwrap();
        // SAFETY: a descriptor that is open.
        let take = || unsafe { libc::flock(other.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        assert_ne!(take(), 0, "others wait while space is reserved");
        drop(held);
        let error = reserve(2 * free).unwrap_err();
        assert!(error.contains(&format!("{} are needed", 2 * free)), "{error}");
        let common = common("shm", Version::new(99, 99));
        assert!(common.starts_with("shm, libfabric 99.99, PID ns "), "{common}");
        assert!(common.len() <= 64 && !common.contains(" 0"), "{common}");
    }
}
