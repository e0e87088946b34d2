//! The report of what was opened, in words.

use std::fmt;
use std::path::PathBuf;

use libfabric_sys::Version;

use crate::discovery::immediate_data::ImmediateData;
use crate::progress_probe::Verdict;
use crate::provider::Striping;
use engine::port::Addressing;

/// What was asked for, what was got, and what is open. Its `Display` is one line.
#[derive(Clone, Debug)]
pub struct Report {
    /// The provider with its layers.
    pub provider: String,
    /// What PEs that are to reach each other have in common, the provider first.
    pub common: String,
    /// The version of libfabric.
    pub library_version: Version,
    /// The name or path libfabric was loaded by.
    pub library: String,
    /// Progress and threading asked for, when the provider accepted.
    pub asked: String,
    /// Data progress that the provider answered with.
    pub progress: String,
    /// Threading level that the provider answered with.
    pub threading: String,
    /// Memory registration mode that the provider answered with.
    pub mr_mode: String,
    /// How peers address registered memory, on every rail.
    pub addressing: Addressing,
    /// Whether data really moves by itself.
    pub verdict: Verdict,
    /// Whether writes may carry immediate data, on every rail.
    pub immediate_data: ImmediateData,
    /// How puts and gets are cut, where the settings do not say.
    pub striping: Striping,
    /// The rails of the proxy lane, in rail order. The host lane is on the first one's device.
    pub rails: Vec<RailReport>,
    /// Devices that could not be opened, one line each.
    pub failures: Vec<String>,
}

/// One open rail.
#[derive(Clone, Debug)]
pub struct RailReport {
    /// Its name in messages.
    pub name: String,
    /// Libfabric's name of the domain.
    pub domain: String,
    /// The fabric: what has the same name reaches one another. It is libfabric's name, with the
    /// rail's number where rails are separate.
    pub fabric: String,
    /// The NIC in sysfs, for NICs.
    pub pci_path: Option<PathBuf>,
    /// Connections for bulk, each with a thread.
    pub bulk: usize,
    /// Most operations in flight.
    pub depth: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "libfabric {} ({}), provider {}; asked for {}, got progress {} ({} automatic: {}), \
             threading {}; mr_mode {}; immediate data: {} ({}); {} rail(s):",
            self.library_version,
            self.library,
            self.provider,
            self.asked,
            self.progress,
            if self.verdict.truly_automatic { "truly" } else { "not" },
            self.verdict.reason,
            self.threading,
            self.mr_mode,
            if self.immediate_data.offered { "yes" } else { "no" },
            self.immediate_data.reason,
            self.rails.len()
        )?;
        for rail in &self.rails {
            write!(f, " {} (depth {}", rail.name, rail.depth)?;
            match rail.bulk {
                0 => f.write_str(")")?,
                bulk => write!(f, ", {bulk} thread(s) for bulk)")?,
            }
        }
        Ok(())
    }
}
