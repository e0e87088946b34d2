//! The configuration: what the environment says, read once.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::{env, process};

use crate::faults::Faults;
use crate::persona::Persona;

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) dir: PathBuf,
    pub(crate) persona: &'static Persona,
    pub(crate) nics: u16,
    pub(crate) host: u32,
    pub(crate) seed: u64,
    /// How many writes of a NIC to memory of devices nobody sees yet.
    pub(crate) posted: u32,
    pub(crate) faults: Faults,
}

impl Config {
    pub(crate) fn get() -> Option<&'static Self> {
        static CONFIG: OnceLock<Option<Config>> = OnceLock::new();
        CONFIG.get_or_init(Self::read).as_ref()
    }

    fn read() -> Option<Self> {
        let dir = env::var_os("EFA_LAB_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)?;
        let name = env::var("EFA_LAB_PERSONA").unwrap_or_else(|_| String::from("p5"));
        let persona = Persona::named(&name)
            .unwrap_or_else(|| refuse("EFA_LAB_PERSONA", &name, &Persona::names()));
        let nics = number("EFA_LAB_NICS", u64::from(persona.nics())) as u16;
        if nics == 0 || nics > persona.nics() {
            refuse("EFA_LAB_NICS", &nics.to_string(), &format!("1 to {}", persona.nics()))
        }
        let script = env::var("EFA_LAB_FAULTS").unwrap_or_default();
        let faults = Faults::parse(&script)
            .unwrap_or_else(|expected| refuse("EFA_LAB_FAULTS", &script, &expected));
        Some(Self {
            dir,
            persona,
            nics,
            host: number("EFA_LAB_HOST", u64::from(process::id())) as u32,
            seed: number("EFA_LAB_SEED", 1),
            posted: number("EFA_LAB_POSTED", 0) as u32,
            faults,
        })
    }
}

fn number(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| refuse(variable, &text, "a number")),
        Err(_) => default,
    }
}

fn refuse(variable: &str, value: &str, expected: &str) -> ! {
    eprintln!("efa-lab: {variable} is `{value}`; expected: {expected}");
    process::abort()
}
