//! Settings of a job: how many PEs, which layout and plugin, which scenario, and how long it may
//! take.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nvshmem_abi::Layout;
use serde::{Deserialize, Serialize};

use crate::launch::Remote;
use crate::memory::device_memory::{MemoryKind, UserMapped};

const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";

/// A job to launch. The setters return the settings, to be chained. What PEs need of them they get
/// as JSON; fields that are skipped there are the launcher's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobSettings {
    /// Name of the scenario every PE runs, among those given to [`crate::pe_entry`].
    pub scenario: String,
    /// Number of PEs, at least 1.
    pub n_pes: u32,
    /// Of each PE the first one of its host, of those that the job runs on, or pretends to.
    /// Default: all are on one.
    nodes: Vec<u32>,
    /// Which host library to stand in for.
    #[serde(skip, default = "newest")]
    pub layout: Layout,
    /// Directory with `nvshmem_transport_libfabric.so.N`.
    pub plugin_dir: PathBuf,
    /// Bytes of one chunk of the symmetric heap, a power of two from 4096 on. Each chunk is
    /// registered by itself, and transfers are split at its borders. Default 2 MiB.
    pub chunk_bytes: u64,
    /// Bytes of the symmetric heap, rounded up to whole chunks. Default 16 MiB.
    pub heap_bytes: u64,
    /// Whether chunks are registered when [`crate::Host::alloc`] reaches them, as NVSHMEM does with
    /// its dynamic heap, while the proxy thread runs; else all at start. Default: at start.
    pub heap_grows: bool,
    /// Whether the host leaves the choice of NICs to the plugin. Default: it picks a share for each
    /// PE of a node.
    pub leaves_nics: bool,
    /// What the heap of every PE is made of. Default: memory of the host.
    pub memory: MemoryKind,
    /// A user's buffer as the heap's last chunk, in PEs whose heap is of the VMM interface. Such a
    /// chunk has an address of the user's as well, which the plugin is told. Default: none.
    pub user_mapped: Option<UserMapped>,
    /// One collective, quiet, or other wait inside a PE. Default 60 s.
    pub step_deadline: Duration,
    pub params: BTreeMap<String, String>,
    /// The whole job; PEs that are left then are killed. Default 120 s.
    #[serde(skip)]
    pub deadline: Duration,
    /// How long the others may take to end once a PE has failed; then they are killed.
    /// Default 5 s.
    #[serde(skip)]
    pub grace: Duration,
    /// Whether PEs see what the launcher's environment sets for NVSHMEM, libfabric and CUDA's
    /// launches. Default: they do not, so that a job is the same on every machine.
    #[serde(skip)]
    pub inherits_settings: bool,
    /// Environment of every PE, on top of the launcher's own. PEs have a working directory of their
    /// own, so paths are better absolute.
    #[serde(skip)]
    pub env: BTreeMap<String, String>,
    /// Environment of single PEs, on top of [`JobSettings::env`].
    #[serde(skip)]
    pub env_of_pe: BTreeMap<u32, BTreeMap<String, String>>,
    /// Put in front of single PEs' commands, such as `valgrind`. It must end in `exec`.
    #[serde(skip)]
    pub prefix_of_pe: BTreeMap<u32, Vec<OsString>>,
    /// PEs of other hosts, which a shell there becomes.
    #[serde(skip)]
    pub remote_of_pe: BTreeMap<u32, Arc<Remote>>,
}

/// Setters of one value each, and of what is false at first.
macro_rules! setters {
    (
        { $($(#[$doc:meta])* $field:ident($type:ty);)* }
        { $($(#[$flag_doc:meta])* $flag:ident;)* }
    ) => {
        $($(#[$doc])* pub fn $field(mut self, value: $type) -> Self {
            self.$field = value;
            self
        })*
        $($(#[$flag_doc])* pub fn $flag(mut self) -> Self {
            self.$flag = true;
            self
        })*
    };
}

impl JobSettings {
    pub fn new(
        scenario: impl Into<String>,
        n_pes: u32,
        layout: Layout,
        plugin_dir: impl Into<PathBuf>,
    ) -> JobSettings {
        JobSettings {
            scenario: scenario.into(),
            n_pes,
            nodes: vec![0; n_pes as usize],
            layout,
            plugin_dir: plugin_dir.into(),
            chunk_bytes: 2 << 20,
            heap_bytes: 16 << 20,
            heap_grows: false,
            leaves_nics: false,
            memory: MemoryKind::default(),
            user_mapped: None,
            step_deadline: Duration::from_secs(60),
            params: BTreeMap::new(),
            deadline: Duration::from_secs(120),
            grace: Duration::from_secs(5),
            inherits_settings: false,
            env: BTreeMap::new(),
            env_of_pe: BTreeMap::new(),
            prefix_of_pe: BTreeMap::new(),
            remote_of_pe: BTreeMap::new(),
        }
    }

    setters! {
        {
            memory(MemoryKind);
            deadline(Duration);
            step_deadline(Duration);
            grace(Duration);
        }
        {
            /// Leaves PEs the settings of the launcher's environment, for what users start.
            inherits_settings;
            heap_grows;
            leaves_nics;
        }
    }

    pub fn env(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.env.insert(name.into(), value.to_string());
        self
    }

    pub fn env_of_pe(mut self, pe: u32, name: impl Into<String>, value: impl ToString) -> Self {
        self.env_of_pe.entry(pe).or_default().insert(name.into(), value.to_string());
        self
    }

    /// Sets a debug key of the plugin in every PE, beside those that are set already.
    pub fn debug(mut self, key: &str, value: impl ToString) -> Self {
        let keys = self.env.entry(DEBUG.into()).or_default();
        let other = |entry: &&str| entry.split_once('=').is_some_and(|(other, _)| other != key);
        let mut all: Vec<String> = keys.split(',').filter(other).map(String::from).collect();
        all.push(format!("{key}={}", value.to_string()));
        *keys = all.join(",");
        self
    }

    pub fn param(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.params.insert(name.into(), value.to_string());
        self
    }

    pub fn heap(mut self, heap_bytes: u64, chunk_bytes: u64) -> Self {
        (self.heap_bytes, self.chunk_bytes) = (heap_bytes, chunk_bytes);
        self
    }

    pub fn user_mapped(mut self, user_mapped: UserMapped) -> Self {
        self.user_mapped = Some(user_mapped);
        self
    }

    /// Has PEs load libraries from a directory before any other, such as a stand-in's
    /// `libcuda.so.1`.
    pub fn library_path(self, directory: impl AsRef<Path>) -> Self {
        const PATHS: &str = "LD_LIBRARY_PATH";
        let others = self.env.get(PATHS).cloned().or_else(|| std::env::var(PATHS).ok());
        let directory = directory.as_ref().display();
        let paths = others.map_or(directory.to_string(), |others| format!("{directory}:{others}"));
        self.env(PATHS, paths)
    }

    pub fn pes_per_node(mut self, pes_per_node: u32) -> Self {
        self.nodes = (0..self.n_pes).map(|pe| pe / pes_per_node * pes_per_node).collect();
        self
    }

    /// Puts the next PEs on a host: on this one, or on one that they are started on in another way.
    /// Called for every host of the job, in order.
    pub fn host(mut self, first: u32, pes: u32, remote: Option<Arc<Remote>>) -> Self {
        self.nodes[first as usize..][..pes as usize].fill(first);
        if let Some(remote) = remote {
            self.remote_of_pe.extend((first..first + pes).map(|pe| (pe, Arc::clone(&remote))));
        }
        self
    }

    pub(crate) fn node_of(&self, pe: u32) -> (u32, u32) {
        let first = self.nodes[pe as usize];
        (first, self.nodes.iter().filter(|of| **of == first).count() as u32)
    }
}

/// What a PE has until it is told the name of its layout.
fn newest() -> Layout {
    Layout::V7
}

/// Whether a variable is a setting of NVSHMEM, of libfabric or of CUDA's launches, or a fault of
/// the stand-in for CUDA's driver. Variables of tests are none.
pub fn is_setting(name: &str) -> bool {
    const OTHERS: [&str; 2] = ["CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"];
    let begins = |prefix| name.starts_with(prefix);
    (["NVSHMEM_", "FI_", "FAKE_CUDA_"].into_iter().any(begins) && !begins("NVSHMEM_TEST_"))
        || OTHERS.contains(&name)
}
