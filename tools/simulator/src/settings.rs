//! Settings of a job: how many PEs, which layout and plugin, which scenario, and how long it may
//! take.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nvshmem_abi::Layout;
use serde::{Deserialize, Serialize};

use crate::launch::remote::Remote;
use crate::memory::device_memory::{MemoryKind, UserMapped};

/// The plugin's variable of debug keys.
const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";

/// Marks a process as a PE and has its [`PeSettings`]; set by the launcher only.
const ENV_PE: &str = "NVSHMEM_SIM_PE";

/// A job to launch. The setters return the settings, to be chained.
#[derive(Clone, Debug)]
pub struct JobSettings {
    /// Name of the scenario every PE runs, among those given to [`crate::pe_entry`].
    pub scenario: String,
    /// Number of PEs, at least 1.
    pub n_pes: u32,
    /// How the PEs lie on the hosts that the job runs on, or pretends to. Default: all on one.
    pub nodes: Nodes,
    /// Which host library to stand in for.
    pub layout: Layout,
    /// Directory with `nvshmem_transport_libfabric.so.N`.
    pub plugin_dir: PathBuf,
    /// Whether PEs ask for the plugin by its name alone, as NVSHMEM does, so that the dynamic
    /// linker's rules say which file it is. Default: it is in `plugin_dir`.
    pub by_name: bool,
    /// Bytes of one chunk of the symmetric heap, a power of two. Each chunk is registered by
    /// itself, and transfers are split at its borders. Default 2 MiB.
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
    /// What the heap of single PEs is made of, instead of [`JobSettings::memory`].
    pub memory_of_pe: BTreeMap<u32, MemoryKind>,
    /// A user's buffer as the heap's last chunk, in PEs whose heap is of the VMM interface. Such a
    /// chunk has an address of the user's as well, which the plugin is told. Default: none.
    pub user_mapped: Option<UserMapped>,
    /// A directory with the `libcuda.so.1` that PEs with device memory load. Default: the loader
    /// finds one.
    pub cuda_driver: Option<PathBuf>,
    /// The whole job; PEs that are left then are killed. Default 120 s.
    pub deadline: Duration,
    /// One collective, quiet, or other wait inside a PE. Default 60 s.
    pub step_deadline: Duration,
    /// How long the others may take to end once a PE has failed; then they are killed.
    /// Default 5 s.
    pub grace: Duration,
    /// Whether PEs see what the launcher's environment sets for NVSHMEM, libfabric and CUDA's
    /// launches. Default: they do not, so that a job is the same on every machine.
    pub inherits_settings: bool,
    /// Environment of every PE, on top of the launcher's own. PEs have a working directory of their
    /// own, so paths are better absolute.
    pub env: BTreeMap<String, String>,
    /// Environment of single PEs, on top of [`JobSettings::env`].
    pub env_of_pe: BTreeMap<u32, BTreeMap<String, String>>,
    /// Values for the scenario; see [`crate::Job::param`].
    pub params: BTreeMap<String, String>,
    /// Put in front of every PE's command, such as `valgrind`. It must end in `exec`, or run the
    /// PE as a child that dies with it.
    pub prefix: Vec<OsString>,
    /// Put in front of single PEs' commands instead of [`JobSettings::prefix`].
    pub prefix_of_pe: BTreeMap<u32, Vec<OsString>>,
    /// PEs of other hosts, which a shell there becomes.
    pub remote_of_pe: BTreeMap<u32, Arc<Remote>>,
}

impl JobSettings {
    /// A job of `n_pes` PEs that run `scenario` on the plugin in `plugin_dir`.
    pub fn new(
        scenario: impl Into<String>,
        n_pes: u32,
        layout: Layout,
        plugin_dir: impl Into<PathBuf>,
    ) -> JobSettings {
        JobSettings {
            scenario: scenario.into(),
            n_pes,
            nodes: Nodes(vec![n_pes]),
            layout,
            plugin_dir: plugin_dir.into(),
            by_name: false,
            chunk_bytes: 2 << 20,
            heap_bytes: 16 << 20,
            heap_grows: false,
            leaves_nics: false,
            memory: MemoryKind::default(),
            memory_of_pe: BTreeMap::new(),
            user_mapped: None,
            cuda_driver: None,
            deadline: Duration::from_secs(120),
            step_deadline: Duration::from_secs(60),
            grace: Duration::from_secs(5),
            env: BTreeMap::new(),
            env_of_pe: BTreeMap::new(),
            params: BTreeMap::new(),
            prefix: Vec::new(),
            prefix_of_pe: BTreeMap::new(),
            remote_of_pe: BTreeMap::new(),
            inherits_settings: false,
        }
    }

    /// Leaves PEs the settings of the launcher's environment, for what users start.
    pub fn inherits_settings(mut self) -> Self {
        self.inherits_settings = true;
        self
    }

    /// Leaves it to the dynamic linker which file the plugin is.
    pub fn by_name(mut self) -> Self {
        self.by_name = true;
        self
    }

    /// Sets an environment variable of every PE.
    pub fn env(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.env.insert(name.into(), value.to_string());
        self
    }

    /// Sets a debug key of the plugin in every PE, beside those that are set already.
    pub fn debug(mut self, key: &str, value: impl ToString) -> Self {
        let keys = self.env.entry(DEBUG.into()).or_default();
        let others = keys.split(',').filter(|entry| {
            !entry.is_empty() && entry.split_once('=').is_none_or(|(other, _)| other != key)
        });
        let all: Vec<String> =
            others.map(String::from).chain([format!("{key}={}", value.to_string())]).collect();
        *keys = all.join(",");
        self
    }

    /// Sets an environment variable of one PE.
    pub fn env_of_pe(mut self, pe: u32, name: impl Into<String>, value: impl ToString) -> Self {
        self.env_of_pe.entry(pe).or_default().insert(name.into(), value.to_string());
        self
    }

    /// Sets a value for the scenario.
    pub fn param(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.params.insert(name.into(), value.to_string());
        self
    }

    /// Sets the size of the heap and of its chunks.
    pub fn heap(mut self, heap_bytes: u64, chunk_bytes: u64) -> Self {
        self.heap_bytes = heap_bytes;
        self.chunk_bytes = chunk_bytes;
        self
    }

    /// Registers chunks of the heap when they are first needed.
    pub fn heap_grows(mut self) -> Self {
        self.heap_grows = true;
        self
    }

    /// Leaves the choice of NICs to the plugin.
    pub fn leaves_nics(mut self) -> Self {
        self.leaves_nics = true;
        self
    }

    /// Sets what the heaps are made of.
    pub fn memory(mut self, kind: MemoryKind) -> Self {
        self.memory = kind;
        self
    }

    /// Sets what the heap of one PE is made of.
    pub fn memory_of_pe(mut self, pe: u32, kind: MemoryKind) -> Self {
        self.memory_of_pe.insert(pe, kind);
        self
    }

    /// Maps a user's buffer as the last chunk of the heap.
    pub fn user_mapped(mut self, user_mapped: UserMapped) -> Self {
        self.user_mapped = Some(user_mapped);
        self
    }

    /// Sets the directory of the `libcuda.so.1` that PEs with device memory load.
    pub fn cuda_driver(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cuda_driver = Some(directory.into());
        self
    }

    /// Pretends that the PEs are on several hosts.
    pub fn pes_per_node(mut self, pes_per_node: u32) -> Self {
        self.nodes = Nodes(vec![pes_per_node]);
        self
    }

    /// Puts the next PEs on a host: on this one, or on one that they are started on in another way.
    /// Call it for every host of the job, in order.
    pub fn host(mut self, first: u32, pes: u32, remote: Option<Arc<Remote>>) -> Self {
        if first == 0 {
            self.nodes.0.clear();
        }
        self.nodes.0.push(pes);
        let pes = first..first + pes;
        self.remote_of_pe.extend(
            remote
                .into_iter()
                .flat_map(|remote| pes.clone().map(move |pe| (pe, Arc::clone(&remote)))),
        );
        self
    }

    /// Sets the deadline of the whole job.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the deadline of each wait inside a PE.
    pub fn step_deadline(mut self, deadline: Duration) -> Self {
        self.step_deadline = deadline;
        self
    }

    /// Sets how long the others may take to end once a PE has failed.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Refuses what no job can be made of.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.n_pes == 0 || self.nodes.0.is_empty() || self.nodes.0.contains(&0) {
            return Err("a job has at least one PE, and so has each of its hosts".into());
        }
        if !self.chunk_bytes.is_power_of_two() || self.chunk_bytes < 4096 {
            return Err(format!(
                "a chunk is a power of two of at least 4096 bytes, not {}",
                self.chunk_bytes
            ));
        }
        Ok(())
    }

    /// The environment that tells a PE all this.
    pub(crate) fn env_for(&self, pe: u32, socket: &str) -> BTreeMap<String, OsString> {
        let mut env: BTreeMap<String, OsString> = BTreeMap::new();
        env.insert("NVSHMEM_REMOTE_TRANSPORT".into(), "libfabric".into());
        let own = self.env_of_pe.get(&pe);
        for (name, value) in self.env.iter().chain(own.into_iter().flatten()) {
            env.insert(name.clone(), value.into());
        }
        let memory = self.memory_of_pe.get(&pe).copied().unwrap_or(self.memory);
        let settings = PeSettings {
            pe,
            n_pes: self.n_pes,
            nodes: self.nodes.clone(),
            socket: socket.to_owned(),
            scenario: self.scenario.clone(),
            layout: self.layout,
            // PEs have a working directory of their own.
            plugin_dir: match self.remote_of_pe.get(&pe) {
                Some(remote) => remote.plugin_dir.clone(),
                None => std::path::absolute(&self.plugin_dir)
                    .unwrap_or_else(|_| self.plugin_dir.clone()),
            },
            by_name: self.by_name,
            chunk_bytes: self.chunk_bytes,
            heap_bytes: self.heap_bytes,
            heap_grows: self.heap_grows,
            leaves_nics: self.leaves_nics,
            memory,
            user_mapped: self.user_mapped,
            step_deadline: self.step_deadline,
            params: self.params.clone(),
        };
        // Numbers, names and a path: a path that is no text is the PE's to complain of.
        let settings = serde_json::to_string(&settings).unwrap_or_default();
        env.insert(ENV_PE.into(), settings.into());
        if let (true, Some(directory)) = (memory != MemoryKind::Host, &self.cuda_driver) {
            const PATHS: &str = "LD_LIBRARY_PATH";
            let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
            let mut paths = directory.into_os_string();
            let others = env.get(PATHS).cloned().or_else(|| std::env::var_os(PATHS));
            if let Some(others) = others.filter(|others| !others.is_empty()) {
                paths.push(":");
                paths.push(others);
            }
            env.insert(PATHS.into(), paths);
        }
        env
    }
}

/// How the PEs of a job lie on its hosts, in order: so many on each, and on all behind those that
/// are told as many as on the last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Nodes(Vec<u32>);

/// The host of a PE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    pub(crate) number: u32,
    /// The first of its PEs.
    pub(crate) first: u32,
    /// How many there are at most: the job may end before.
    pub(crate) pes: u32,
}

impl Nodes {
    /// The host of a PE.
    pub(crate) fn of(&self, pe: u32) -> Node {
        let last = self.0.last().copied().unwrap_or(u32::MAX);
        let (mut number, mut first) = (0, 0);
        for pes in self.0.iter().copied() {
            if pe < first + pes {
                return Node { number, first, pes };
            }
            (number, first) = (number + 1, first + pes);
        }
        let more = (pe - first) / last;
        Node { number: number + more, first: first + more * last, pes: last }
    }
}

/// Whether a variable is a setting of NVSHMEM, of libfabric or of CUDA's launches, or a fault of
/// the stand-in for CUDA's driver. Variables of tests are none.
pub fn is_setting(name: &str) -> bool {
    const OTHERS: [&str; 2] = ["CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"];
    let begins = |prefix| name.starts_with(prefix);
    (["NVSHMEM_", "FI_", "FAKE_CUDA_"].into_iter().any(begins) && !begins("NVSHMEM_TEST_"))
        || OTHERS.contains(&name)
}

/// What a PE knows of its job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeSettings {
    pub(crate) pe: u32,
    pub(crate) n_pes: u32,
    pub(crate) nodes: Nodes,
    pub(crate) socket: String,
    pub(crate) scenario: String,
    #[serde(with = "layout_name")]
    pub(crate) layout: Layout,
    pub(crate) plugin_dir: PathBuf,
    pub(crate) by_name: bool,
    pub(crate) chunk_bytes: u64,
    pub(crate) heap_bytes: u64,
    pub(crate) heap_grows: bool,
    pub(crate) leaves_nics: bool,
    pub(crate) memory: MemoryKind,
    pub(crate) user_mapped: Option<UserMapped>,
    pub(crate) step_deadline: Duration,
    pub(crate) params: BTreeMap<String, String>,
}

impl PeSettings {
    /// Reads back what [`JobSettings::env_for`] wrote; none when this process is no PE.
    pub(crate) fn from_env() -> Result<Option<PeSettings>, String> {
        let Ok(text) = std::env::var(ENV_PE) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|e| format!("{ENV_PE}: {e}"))
    }
}

/// Layouts, written by name.
mod layout_name {
    use nvshmem_abi::Layout;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(layout: &Layout, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(layout.name())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Layout, D::Error> {
        let name = String::deserialize(from)?;
        Layout::from_name(&name).ok_or_else(|| Error::custom(format!("no layout is named {name}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pe_has_its_host() {
        let place = |nodes: &Nodes, pe| {
            let Node { number, first, pes } = nodes.of(pe);
            (number, first, pes)
        };
        let even = Nodes(vec![2]);
        assert_eq!(
            [0, 1, 2, 5].map(|pe| place(&even, pe)),
            [(0, 0, 2), (0, 0, 2), (1, 2, 2), (2, 4, 2)]
        );
        let uneven = Nodes(vec![1, 3, 2]);
        let found = [0, 1, 3, 4, 5, 6].map(|pe| place(&uneven, pe));
        assert_eq!(found, [(0, 0, 1), (1, 1, 3), (1, 1, 3), (2, 4, 2), (2, 4, 2), (3, 6, 2)]);
    }

    #[test]
    fn debug_keys_are_joined() {
        let job = JobSettings::new("life", 1, Layout::V7, "plugins");
        let job = job.env(DEBUG, "signals=chained").debug("queue_depth", 1);
        let job = job.debug("words", "stream").debug("queue_depth", 2);
        assert_eq!(job.env[DEBUG], "signals=chained,words=stream,queue_depth=2");
    }

    #[test]
    fn settings_of_a_user_are_told_from_those_of_tests() {
        for name in ["NVSHMEM_DEBUG", "FI_PROVIDER", "FAKE_CUDA_COPY_NS", "CUDA_MODULE_LOADING"] {
            assert!(is_setting(name), "{name}");
        }
        for name in ["NVSHMEM_TEST_GPU", "PATH", "CUDA_VISIBLE_DEVICES", "FINAL"] {
            assert!(!is_setting(name), "{name}");
        }
    }
}
