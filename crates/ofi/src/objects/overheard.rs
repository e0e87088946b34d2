//! Libfabric's log while something is opened: what a provider tells nobody in another way.
//!
//! Whoever takes the log has it in libfabric's place. So it is taken for one call alone, and what
//! the user has asked to see goes on to standard error, as libfabric writes it.

use std::ffi::{CStr, c_char, c_int};
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use std::{env, process, ptr};

use libfabric_sys::{
    FI_ENOSYS, FI_LOG_INFO, FI_LOG_MR, Library, fi_close, fi_ops_log, fi_provider, fid, fid_logging,
};

use crate::error::check;
use engine::port::PortError;

const MOST: usize = 1024;

static HEARD: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Makes a call, and gives what libfabric has said meanwhile, to any thread; or why it cannot be
/// heard: a library before 1.16, or the log is somebody else's.
pub(crate) fn overheard<T>(
    library: &'static Library,
    call: impl FnOnce() -> T,
) -> (T, Result<Vec<String>, PortError>) {
    // One at a time.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut table = fi_ops_log {
        size: size_of::<fi_ops_log>(),
        enabled: Some(is_wanted),
        ready: Some(is_due),
        log: Some(take),
    };
    let mut taker = fid_logging::new(&raw mut table);
    let object = &raw mut taker.fid;
    *heard() = Some(Vec::new());
    // SAFETY: taker and table live until it is closed, and their functions are of these types.
    if let Err(error) = unsafe { import(library, object) } {
        *heard() = None;
        return (call(), Err(error));
    }
    let outcome = call();
    // SAFETY: imported above, closed once. Libfabric has copied the functions, which other threads
    // may still be in: they are there as long as this library.
    unsafe { fi_close(object) };
    let said = heard().take().unwrap_or_default();
    (outcome, Ok(said))
}

/// Has libfabric hand over its log (`fi_import_log`).
///
/// # Safety
/// The object is a [`fid_logging`], and lives until it is closed.
unsafe fn import(library: &Library, taker: *mut fid) -> Result<(), PortError> {
    let mut log = ptr::null_mut::<fid>();
    // SAFETY: a place for the object, which is open after success and has a table; the taker is
    // the caller's.
    unsafe {
        check(library, "fi_open(logging)", library.open_object(c"logging", &mut log))?;
        let bind = (*(*log).ops).bind;
        let code = bind.map_or(-(FI_ENOSYS as c_int), |bind| bind(log, taker, 0));
        fi_close(log);
        check(library, "fi_import_log", code)
    }
}

fn heard() -> MutexGuard<'static, Option<Vec<String>>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_asked_for(level: u32) -> bool {
    env::var("FI_LOG_LEVEL").is_ok_and(|last| is_up_to(level, &last))
}

fn is_up_to(level: u32, last: &str) -> bool {
    let last = last.to_lowercase();
    level as usize <= LEVELS.iter().position(|name| *name == last).unwrap_or(0)
}

const LEVELS: [&str; 4] = ["warn", "trace", "info", "debug"];
const PARTS: [&str; 10] =
    ["core", "fabric", "domain", "ep_ctrl", "ep_data", "av", "cq", "eq", "mr", "cntr"];
const _: () = assert!(FI_LOG_INFO == 2 && FI_LOG_MR == 8);

unsafe extern "C" fn is_wanted(_: *const fi_provider, level: u32, _part: u32, _: u64) -> c_int {
    c_int::from(level <= FI_LOG_INFO || is_asked_for(level))
}

/// Lines that come often are none that anybody listens for.
unsafe extern "C" fn is_due(_: *const fi_provider, _: u32, _: u32, _: u64, _: *mut u64) -> c_int {
    0
}

unsafe extern "C" fn take(
    provider: *const fi_provider,
    level: u32,
    part: u32,
    function: *const c_char,
    line: c_int,
    text: *const c_char,
) {
    // SAFETY: libfabric passes a provider and texts, or null.
    let words = |text: *const c_char| match unsafe { text.as_ref() } {
        // SAFETY: as above; not null.
        Some(_) => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        None => String::new(),
    };
    let text = words(text);
    if let Some(heard) = heard().as_mut().filter(|heard| heard.len() < MOST) {
        heard.push(text.trim_end().to_owned());
    }
    if is_asked_for(level) {
        // SAFETY: as above.
        let name = unsafe { provider.as_ref() }.map_or_else(String::new, |at| words(at.name));
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let named =
            |names: &[&'static str], at: u32| names.get(at as usize).copied().unwrap_or("?");
        let (level, part) = (named(&LEVELS, level), named(&PARTS, part));
        let function = words(function);
        // Where there is nowhere to write to there is nobody to tell.
        let _ = writeln!(
            io::stderr(),
            "libfabric:{}:{now}::{name}:{part}:{function}():{line}<{level}> {}",
            process::id(),
            text.trim_end()
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::options::Options;
    use crate::provider::Provider;
    use crate::{Discovery, MemoryKinds};

    #[test]
    fn a_real_libfabric_is_heard_and_has_its_log_back() {
        let options = Options { provider: Provider::Shm, ..crate::options::tests::options() };
        let run = || Discovery::run(&options, true, MemoryKinds::Host).map(drop);
        run().unwrap();
        let library = Library::load(libfabric_sys::DEFAULT_LIBRARY).unwrap();
        for _ in 0..2 {
            let (outcome, said) = overheard(library, || {
                // It is this call's until it ends.
                let (_, other) = (run(), heard().is_some());
                other
            });
            assert!(outcome);
            let said = said.unwrap();
            assert!(said.iter().any(|line| line.contains("shm")), "{said:?}");
        }
        run().unwrap();
        assert!(heard().is_none(), "nobody listens any more");
    }

    pub(crate) fn say(line: &str) {
        let line = CString::new(line).expect("no zero");
        // SAFETY: a text, and no provider and no function.
        unsafe { take(ptr::null(), FI_LOG_INFO, 0, ptr::null(), 0, line.as_ptr()) };
    }

    #[test]
    fn what_is_kept_of_a_call_is_bounded() {
        let library = Library::load(libfabric_sys::DEFAULT_LIBRARY).unwrap();
        let (_, said) = overheard(library, || {
            (0..MOST + 1).for_each(|at| say(&format!("line {at}  \n")));
        });
        let said = said.unwrap();
        let own: Vec<_> = said.iter().filter(|line| line.starts_with("line ")).collect();
        assert_eq!(said.len(), MOST);
        assert!(own.len() > 1 && *own[1] == "line 1", "{own:?}");
    }

    #[test]
    fn lines_up_to_a_level_are_those_before_it_in_libfabric_s_order() {
        let seen = |last| (0..=4).filter(|level| is_up_to(*level, last)).collect::<Vec<u32>>();
        assert_eq!((seen("warn"), seen("whatever")), (vec![0], vec![0]));
        assert_eq!((seen("Trace"), seen("INFO")), (vec![0, 1], vec![0, 1, 2]));
        assert_eq!(seen("debug"), [0, 1, 2, 3]);
        // SAFETY: nothing is looked at but the level.
        let wanted = |level| unsafe { is_wanted(ptr::null(), level, 0, 0) };
        assert_eq!((wanted(0), wanted(FI_LOG_INFO)), (1, 1), "always");
        if env::var_os("FI_LOG_LEVEL").is_none() {
            assert_eq!((wanted(FI_LOG_INFO + 1), is_asked_for(0)), (0, false));
        }
    }
}
