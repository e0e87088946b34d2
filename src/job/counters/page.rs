//! The page of a job: a file with its counters, in a directory that is its user's alone, for
//! `nvshmem-libfabric top`.
//!
//! Its name says which process it is of, and so whether that is still there. It is replaced as a
//! whole, so a reader sees all of one state; it never has more than [`MOST_BYTES`].

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most bytes of a page.
pub const MOST_BYTES: u64 = 256 << 10;

/// What the end of a page's name is.
const SUFFIX: &str = ".json";
/// What follows it while it is written.
const PART: &str = ".part";

/// Where pages are unless the user has named another directory.
pub fn default_directory() -> PathBuf {
    PathBuf::from(format!("/dev/shm/nvshmem-libfabric-{}", user()))
}

/// The user of this process, by number.
pub fn user() -> u32 {
    // SAFETY: a question that cannot fail.
    unsafe { libc::geteuid() }
}

/// Why a directory is none for pages: it is not there, or not this user's alone, so that what is in
/// it may be anybody's.
///
/// # Errors
/// The reason.
pub fn check_directory(directory: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory)?;
    let refuse = |why: String| Err(io::Error::other(why));
    if !metadata.is_dir() {
        return refuse(String::from("it is no directory"));
    }
    if metadata.uid() != user() {
        let (owner, user) = (metadata.uid(), user());
        return refuse(format!("it is user {owner}'s, and this is user {user}"));
    }
    if metadata.mode() & 0o022 != 0 {
        return refuse(String::from("others may write to it"));
    }
    Ok(())
}

/// Which process a page is of, and which job of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageName {
    /// The process, in the namespace.
    pub pid: u32,
    /// When it started, in the kernel's ticks: numbers of processes come again.
    pub started: u64,
    /// The namespace of its number.
    pub namespace: u64,
    /// The job.
    pub job: u32,
}

/// Whether the process of a page is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It is.
    Lives,
    /// It has ended, and not taken its page away.
    Ended,
    /// It is in another container, whose processes cannot be seen from here.
    Elsewhere,
}

impl PageName {
    /// That of a new job of this process.
    fn here() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let job = NEXT.fetch_add(1, Ordering::Relaxed);
        Some(Self { pid, started: start_of(pid)?, namespace: namespace()?, job })
    }

    /// Whether its process is there.
    pub fn life(&self) -> Life {
        if namespace() != Some(self.namespace) {
            return Life::Elsewhere;
        }
        match start_of(self.pid) {
            Some(started) if started == self.started => Life::Lives,
            Some(_) | None => Life::Ended,
        }
    }
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, started, namespace, job } = self;
        write!(f, "{pid}-{started}-{namespace}-{job}{SUFFIX}")
    }
}

impl FromStr for PageName {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let name = name.strip_suffix(PART).unwrap_or(name);
        let numbers = name.strip_suffix(SUFFIX).ok_or(())?;
        let numbers: Result<Vec<u64>, ()> =
            numbers.split('-').map(|number| number.parse().map_err(|_| ())).collect();
        let [pid, started, namespace, job] = numbers?[..] else { return Err(()) };
        let short = |number: u64| u32::try_from(number).map_err(|_| ());
        Ok(Self { pid: short(pid)?, started, namespace, job: short(job)? })
    }
}

/// When a process has started. None where there is none, or one that is gone but for its number.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may have anything in it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The namespace that numbers of processes are of here.
fn namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let digits: String = link.to_str()?.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The pages of a directory, those that were being written when their process ended among them.
///
/// # Errors
/// It cannot be read.
pub fn list(directory: &Path) -> io::Result<Vec<(PathBuf, PageName)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.parse().ok()) {
            found.push((entry.path(), name));
        }
    }
    found.sort_unstable_by_key(|(_, name)| *name);
    Ok(found)
}

/// Whether it is a page as a whole, and none that was being written.
pub fn is_whole(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(SUFFIX))
}

/// Removes pages of processes that have ended. Those that it has removed.
///
/// # Errors
/// The directory cannot be read.
pub fn sweep(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let pages = list(directory)?;
    let ended = pages.into_iter().filter(|(_, name)| name.life() == Life::Ended);
    // Another may have been faster.
    Ok(ended.map(|(path, _)| path).filter(|path| fs::remove_file(path).is_ok()).collect())
}

/// A page that is written here.
#[derive(Debug)]
pub(super) struct Page {
    path: PathBuf,
}

impl Page {
    /// A place for one, in a directory that is made if it is not there; nothing is written yet.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => check_directory(directory)?,
        }
        // What earlier jobs have left does not pile up. It is in nobody's way if it stays.
        let _ = sweep(directory);
        let name = PageName::here().ok_or_else(|| io::Error::other("/proc cannot be read"))?;
        Ok(Self { path: directory.join(name.to_string()) })
    }

    /// Puts a text in place of what was there.
    pub(super) fn write(&self, text: &str) -> io::Result<()> {
        if text.len() as u64 > MOST_BYTES {
            return Err(io::Error::other(format!("{} bytes are too many", text.len())));
        }
        let mut part = self.path.clone().into_os_string();
        part.push(PART);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW).open(&part)?.write_all(text.as_bytes())?;
        fs::rename(&part, &self.path)
    }

    /// Takes it away.
    pub(super) fn remove(self) {
        // Who sweeps may have been here.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let name = format!("nvshmem-pages-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[test]
    fn processes_and_users_are_known_by_the_kernel_s_numbers() {
        let link = fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(format!("pid:[{}]", namespace().unwrap()), link.to_str().unwrap());
        let owner = fs::metadata("/proc/self").unwrap().uid();
        let directory = format!("/dev/shm/nvshmem-libfabric-{owner}");
        assert_eq!(default_directory(), Path::new(&directory));
        let mut child = Command::new("true").spawn().unwrap();
        let is_gone = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.contains(") Z ")
        };
        while !is_gone() {
            std::thread::yield_now();
        }
        assert_eq!(start_of(child.id()), None, "it has ended, and nobody has waited for it");
        child.wait().unwrap();
        assert!(start_of(std::process::id()).is_some());
    }

    #[test]
    fn a_page_is_its_users_alone_and_gone_when_it_is_removed() {
        let directory = scratch("one").join("below");
        let page = Page::new(&directory).unwrap();
        for text in ["first", "2"] {
            page.write(text).unwrap();
            let pages = list(&directory).unwrap();
            let [(path, name)] = &pages[..] else { panic!("{pages:?}") };
            assert_eq!(fs::read_to_string(path).unwrap(), text);
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
            assert_eq!((name.pid, name.life()), (std::process::id(), Life::Lives));
            assert!(is_whole(path));
        }
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        let most = "x".repeat(MOST_BYTES as usize);
        assert!(page.write(&most).is_ok() && page.write(&format!("{most}x")).is_err());
        page.remove();
        assert_eq!(list(&directory).unwrap(), []);
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    #[test]
    fn pages_of_processes_that_have_ended_are_swept_and_no_others() {
        let directory = scratch("swept");
        let mut child = Command::new("true").spawn().unwrap();
        let mine = PageName::here().unwrap();
        let ended = PageName { pid: child.id(), ..mine };
        child.wait().unwrap();
        let again = PageName { started: mine.started + 1, ..mine };
        let elsewhere = PageName { namespace: mine.namespace + 1, ..ended };
        assert_eq!(elsewhere.life(), Life::Elsewhere);
        let part = format!("{ended}{PART}");
        let names = [mine, again, ended, elsewhere].map(|name| name.to_string());
        for name in names.iter().chain([&part, &String::from("notes.json")]) {
            fs::write(directory.join(name), "{}").unwrap();
        }
        let mut swept = sweep(&directory).unwrap();
        swept.sort_unstable();
        let mut expected =
            [again.to_string(), ended.to_string(), part].map(|name| directory.join(name));
        expected.sort_unstable();
        assert_eq!(swept, expected);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn directories_that_others_may_write_to_are_refused() {
        let directory = scratch("open");
        assert!(check_directory(&directory).is_ok());
        for mode in [0o720, 0o702, 0o1777] {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            assert!(Page::new(&directory).unwrap_err().to_string().contains("others may write"));
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let link = directory.join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        for (path, said) in [(&link, "no directory"), (&directory.join("a/b"), "No such file")] {
            let refused = Page::new(path).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
        let refused = Page::new(Path::new("/sys/pages")).unwrap_err();
        assert_ne!(refused.kind(), io::ErrorKind::NotFound, "it says why it is not made");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn names_are_read_back_and_others_are_none() {
        let name = PageName { pid: 4711, started: 99, namespace: 4_026_531_836, job: 2 };
        assert_eq!(name.to_string().parse(), Ok(name));
        for other in ["", ".json", "1-2-3.json", "1-2-3-4-5.json", "a-2-3-4.json", "1-2-3-4"] {
            assert_eq!(other.parse::<PageName>(), Err(()), "{other}");
        }
    }
}
