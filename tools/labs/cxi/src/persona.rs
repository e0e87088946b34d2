//! The persona: what the environment says, the real library, and how a broken rule ends.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, process};

use libfabric_sys::{Library, Version};

/// What there is one of in a process.
#[derive(Debug)]
pub(crate) struct Persona {
    pub(crate) library: &'static Library,
    pub(crate) version: Version,
    pub(crate) nics: u8,
}

impl Persona {
    pub(crate) fn get() -> &'static Self {
        static PERSONA: OnceLock<Persona> = OnceLock::new();
        PERSONA.get_or_init(|| {
            let path = env::var("CXI_LAB_LIBFABRIC");
            let path = path.unwrap_or_else(|_| libfabric_sys::DEFAULT_LIBRARY.to_owned());
            let library = Library::load(&path).unwrap_or_else(|error| refuse(&error.to_string()));
            let text = env::var("CXI_LAB_VERSION").unwrap_or_else(|_| String::from("2.6"));
            let parts: Vec<u16> = text.split('.').filter_map(|part| part.parse().ok()).collect();
            let [major, minor] = parts[..] else {
                refuse(&format!("CXI_LAB_VERSION is `{text}`; expected: a version such as 2.6"))
            };
            let nics = number("CXI_LAB_NICS", 2) as u8;
            Self { library, version: Version::new(major, minor), nics }
        })
    }

    pub(crate) fn optimises(&self) -> bool {
        flag("FI_CXI_OPTIMIZED_MRS", true)
    }

    pub(crate) fn copies_by_cuda(&self) -> bool {
        let told =
            self.version >= Version::new(2, 3) && flag("FI_CXI_DISABLE_NON_INJECT_RMA_IDC", false);
        self.optimises() && !told
    }
}

pub(crate) fn flag(name: &str, default: bool) -> bool {
    match env::var(name).unwrap_or_default().to_lowercase().as_str() {
        "" => default,
        "0" | "false" | "no" | "off" => false,
        "1" | "true" | "yes" | "on" => true,
        other => refuse(&format!("{name} is `{other}`; expected: 0 or 1")),
    }
}

pub(crate) fn number(name: &str, default: usize) -> usize {
    let Ok(text) = env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| refuse(&format!("{name} is `{text}`; expected: a number")))
}

fn refuse(what: &str) -> ! {
    eprintln!("cxi-lab: {what}");
    process::abort()
}

pub(crate) fn broken(rule: &str) -> ! {
    eprintln!("cxi-lab: broken: {rule}");
    process::abort()
}

pub(crate) fn error_text(code: c_int) -> *const c_char {
    static TEXTS: Mutex<BTreeMap<c_int, CString>> = Mutex::new(BTreeMap::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = || CString::new(Persona::get().library.strerror(code)).unwrap_or_default();
    texts.entry(code).or_insert_with(text).as_ptr()
}
