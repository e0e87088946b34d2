//! Capture of libfabric's log lines during one call: a provider states some facts nowhere else.
//!
//! An imported log replaces libfabric's own. So it is imported for one call only, and captured
//! lines still go to standard error if the user has enabled the log.

use std::ffi::{CStr, c_char, c_int};
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, process, ptr};

use libfabric_sys::{
    FI_ENOSYS, FI_LOG_INFO, Library, fi_close, fi_ops_log, fi_provider, fid, fid_logging,
};

use crate::error::check;
use engine::port::PortError;

const MAX_LINES: usize = 1024;

static CAPTURED: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Makes a call and returns its result with the lines that libfabric logs meanwhile, on any thread;
/// an error if the library is older than 1.16, or the program has imported the log itself.
pub(crate) fn capture_log<T>(
    library: &'static Library,
    call: impl FnOnce() -> T,
) -> (T, Result<Vec<String>, PortError>) {
    // One capture at a time.
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
    *captured() = Some(Vec::new());
    // SAFETY: `taker` and `table` live until it is closed; the functions have these types.
    if let Err(error) = unsafe { import(library, object) } {
        *captured() = None;
        return (call(), Err(error));
    }
    let outcome = call();
    // SAFETY: imported above, closed once. Other threads may still execute the functions, whose
    // addresses libfabric has copied; this library stays loaded.
    unsafe { fi_close(object) };
    let said = captured().take().unwrap_or_default();
    (outcome, Ok(said))
}

/// # Safety
/// `taker` is a [`fid_logging`] that lives until it is closed.
unsafe fn import(library: &Library, taker: *mut fid) -> Result<(), PortError> {
    let mut log = ptr::null_mut::<fid>();
    // SAFETY: a pointer to the object, which has a table after success; `taker` by the caller's
    // promise.
    unsafe {
        check(library, "fi_open(logging)", library.open_object(c"logging", &mut log))?;
        let bind = (*(*log).ops).bind;
        let code = bind.map_or(-(FI_ENOSYS as c_int), |bind| bind(log, taker, 0));
        fi_close(log);
        check(library, "fi_import_log", code)
    }
}

fn captured() -> MutexGuard<'static, Option<Vec<String>>> {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn is_wanted(_: *const fi_provider, level: u32, _part: u32, _: u64) -> c_int {
    c_int::from(level <= FI_LOG_INFO)
}

/// Suppresses rate-limited lines, which nobody needs.
unsafe extern "C" fn is_due(_: *const fi_provider, _: u32, _: u32, _: u64, _: *mut u64) -> c_int {
    0
}

unsafe extern "C" fn take(
    provider: *const fi_provider,
    _level: u32,
    _part: u32,
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
    let text = words(text).trim_end().to_owned();
    // The user wants to see libfabric's log.
    if env::var_os("FI_LOG_LEVEL").is_some_and(|level| !level.is_empty()) {
        // SAFETY: as above.
        let name = unsafe { provider.as_ref() }.map_or_else(String::new, |at| words(at.name));
        let (process, function) = (process::id(), words(function));
        // Without standard error there is nowhere to report it.
        let _ = writeln!(io::stderr(), "libfabric:{process}:{name}:{function}():{line} {text}");
    }
    if let Some(lines) = captured().as_mut().filter(|lines| lines.len() < MAX_LINES) {
        lines.push(text);
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
    fn log_capture_ends_with_the_call() {
        let options = Options { provider: Provider::Shm, ..crate::options::tests::options() };
        let run = || Discovery::run(&options, true, MemoryKinds::Host).map(drop);
        run().unwrap();
        let library = Library::load(&crate::options::tests::options().library).unwrap();
        for _ in 0..2 {
            let (outcome, said) = capture_log(library, || {
                // It is this call's until it ends.
                let (_, other) = (run(), captured().is_some());
                other
            });
            assert!(outcome);
            let said = said.unwrap();
            assert!(said.iter().any(|line| line.contains("shm")), "{said:?}");
        }
        run().unwrap();
        assert!(captured().is_none(), "nobody listens any more");
    }

    pub(crate) fn say(line: &str) {
        let line = CString::new(line).expect("no zero");
        // SAFETY: a text, and no provider and no function.
        unsafe { take(ptr::null(), FI_LOG_INFO, 0, ptr::null(), 0, line.as_ptr()) };
    }

    #[test]
    fn lines_of_a_call_are_bounded() {
        let library = Library::load(&crate::options::tests::options().library).unwrap();
        let (_, said) = capture_log(library, || {
            (0..MAX_LINES + 1).for_each(|at| say(&format!("line {at}  \n")));
        });
        let said = said.unwrap();
        let own: Vec<_> = said.iter().filter(|line| line.starts_with("line ")).collect();
        assert_eq!(said.len(), MAX_LINES);
        assert!(own.len() > 1 && *own[1] == "line 1", "{own:?}");
    }
}
