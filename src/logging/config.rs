//! The user's choice of log lines: `NVSHMEM_DEBUG`, `NVSHMEM_DEBUG_SUBSYS`, `NVSHMEM_DEBUG_FILE`.

use std::ffi::OsStr;

use log::LevelFilter;

use super::{INIT, MEM, PROXY, TOPO, TRANSPORT};

/// One of NVSHMEM's variables for logging, for the documentation.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    pub accepts: &'static str,
    pub default: &'static str,
    /// Text of its row in `docs/settings.md`.
    pub doc: &'static str,
}

/// NVSHMEM's variables that are honoured here.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "NVSHMEM_DEBUG",
        accepts: "VERSION, WARN, INFO, ABORT, TRACE",
        default: "warnings and errors only",
        doc: "How much is logged beside warnings and errors. VERSION adds the version of this \
              transport, INFO what was chosen and why, TRACE everything. ABORT lies between INFO \
              and TRACE; the transport does not end the process on a warning.",
    },
    Variable {
        name: "NVSHMEM_DEBUG_SUBSYS",
        accepts: "a list of INIT, COLL, P2P, PROXY, TRANSPORT, MEM, BOOTSTRAP, TOPO, UTIL, ALL, \
                  separated by commas; '^' in front leaves the named ones out",
        default: "all",
        doc: "Which subsystems are logged below the level of warnings. This transport logs under \
              INIT, TRANSPORT, MEM, TOPO and PROXY.",
    },
    Variable {
        name: "NVSHMEM_DEBUG_FILE",
        accepts: "a path, in which %h stands for the host's name, %p for the process id and %% \
                  for a percent sign",
        default: "the standard error stream",
        doc: "Where the log goes. The transport adds `.libfabric` to the name and appends, as \
              NVSHMEM's library would overwrite what others write to the file itself. Errors go \
              to the standard error stream as well.",
    },
];

pub(super) const OURS: [&str; 5] = [INIT, TRANSPORT, MEM, TOPO, PROXY];

const OTHERS: [&str; 4] = ["COLL", "P2P", "BOOTSTRAP", "UTIL"];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Config {
    pub(super) level: LevelFilter,
    pub(super) version: bool,
    /// Which subsystems are shown, in the order of [`OURS`]. Warnings are shown whatever it says.
    pub(super) subsystems: [bool; OURS.len()],
    /// `NVSHMEM_DEBUG_FILE` as given.
    pub(super) file: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            level: LevelFilter::Warn,
            version: false,
            subsystems: [true; OURS.len()],
            file: None,
        }
    }
}

impl Config {
    /// Reads the configuration. Wrong values count as not set and are reported, but are no error.
    pub(super) fn load(
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> (Self, Vec<String>) {
        let mut config = Self::default();
        let mut complaints = Vec::new();
        for (name, value) in variables {
            let value = value.as_ref().to_string_lossy();
            let value = value.trim();
            if value.is_empty() {
                continue;
            }
            match name.as_ref().to_str() {
                Some("NVSHMEM_DEBUG") => config.set_level(value, &mut complaints),
                Some("NVSHMEM_DEBUG_SUBSYS") => config.set_subsystems(value, &mut complaints),
                Some("NVSHMEM_DEBUG_FILE") => config.file = Some(String::from(value)),
                _ => {}
            }
        }
        (config, complaints)
    }

    fn set_level(&mut self, value: &str, complaints: &mut Vec<String>) {
        self.level = match value.to_ascii_uppercase().as_str() {
            "VERSION" | "WARN" => LevelFilter::Warn,
            "INFO" => LevelFilter::Info,
            "ABORT" => LevelFilter::Debug,
            "TRACE" => LevelFilter::Trace,
            _ => {
                complaints.push(format!(
                    "NVSHMEM_DEBUG={value:?} is not known and is ignored. Accepted: VERSION, \
                     WARN, INFO, ABORT, TRACE"
                ));
                return;
            }
        };
        self.version = true;
    }

    fn set_subsystems(&mut self, value: &str, complaints: &mut Vec<String>) {
        // As in NVSHMEM: '^' before the list is for the whole list, later for one entry.
        let all_out = value.starts_with('^');
        let mut subsystems = [all_out; OURS.len()];
        for entry in value.split(',') {
            let entry = entry.trim();
            let shown = !(all_out || entry.starts_with('^'));
            let name = entry.trim_start_matches('^').trim().to_ascii_uppercase();
            if name == "ALL" {
                subsystems = [shown; OURS.len()];
            } else if let Some(i) = OURS.iter().position(|&ours| ours == name) {
                subsystems[i] = shown;
            } else if !OTHERS.contains(&name.as_str()) {
                complaints.push(format!(
                    "NVSHMEM_DEBUG_SUBSYS: {entry:?} is not known and is ignored. Accepted: {}, \
                     {}, ALL",
                    OURS.join(", "),
                    OTHERS.join(", ")
                ));
            }
        }
        self.subsystems = subsystems;
    }
}

pub(super) fn expand(template: &str, host: &str, pid: u32) -> String {
    let mut path = String::new();
    let mut letters = template.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            path.push(letter);
            continue;
        }
        match letters.next() {
            Some('h') => path.push_str(host),
            Some('p') => path.push_str(&pid.to_string()),
            Some('%') => path.push('%'),
            Some(other) => path.extend(['%', other]),
            None => path.push('%'),
        }
    }
    path.push_str(".libfabric");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)]) -> (Config, Vec<String>) {
        Config::load(variables.iter().copied())
    }

    fn shown(list: &str) -> Vec<&'static str> {
        let (config, complaints) = load(&[("NVSHMEM_DEBUG_SUBSYS", list)]);
        assert_eq!(complaints, [] as [&str; 0]);
        OURS.into_iter()
            .zip(config.subsystems)
            .filter(|(_, on)| *on)
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn levels_are_those_of_nvshmem() {
        assert_eq!(load(&[]), (Config::default(), vec![]));
        for (value, level) in [
            ("VERSION", LevelFilter::Warn),
            ("warn", LevelFilter::Warn),
            ("Info", LevelFilter::Info),
            ("ABORT", LevelFilter::Debug),
            ("TRACE", LevelFilter::Trace),
        ] {
            let (config, complaints) = load(&[("NVSHMEM_DEBUG", value)]);
            assert_eq!((config.level, config.version), (level, true), "{value}");
            assert!(complaints.is_empty());
        }
    }

    #[test]
    fn subsystems_are_named_or_left_out() {
        assert_eq!(shown("MEM,topo"), [MEM, TOPO]);
        assert_eq!(shown("ALL"), OURS);
        assert_eq!(shown("^MEM,TOPO"), [INIT, TRANSPORT, PROXY]);
        assert_eq!(shown("^MEM,^TOPO"), [INIT, TRANSPORT, PROXY]);
        assert_eq!(shown("ALL,^PROXY"), [INIT, TRANSPORT, MEM, TOPO]);
        assert_eq!(shown("COLL,BOOTSTRAP"), [] as [&str; 0]);
        assert_eq!(shown("^ALL"), [] as [&str; 0]);
    }

    #[test]
    fn unknown_subsystem_is_reported() {
        let (config, complaints) = load(&[("NVSHMEM_DEBUG_SUBSYS", "MEMORY,TOPO")]);
        assert_eq!(config.subsystems, [false, false, false, true, false]);
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("\"MEMORY\""));
    }

    #[test]
    fn file_name_expands_host_and_pid() {
        assert_eq!(expand("/tmp/n-%h-%p.log", "node7", 42), "/tmp/n-node7-42.log.libfabric");
        assert_eq!(expand("100%%-%x%", "h", 1), "100%-%x%.libfabric");
    }
}
