//! A job of a self-test: between which PEs, on which plugin file, provider and memory; and how one
//! has failed.

use std::time::Duration;

use nvshmem_sim::traffic::resident::RESIDENT;
use nvshmem_sim::{JobReport, JobSettings, Layout, MemoryKind};

use super::hosts::Host;
use crate::libraries::plugins::Plugins;
use crate::options::Memory;

/// What the scenarios need, in chunks that cut operations.
const HEAP: u64 = 64 << 20;
const CHUNK: u64 = 1 << 20;
/// Chunks of device memory are multiples of this.
const DEVICE_CHUNK: u64 = 2 << 20;

/// Lines of a PE that has failed that are shown.
const MOST_LINES: usize = 40;

/// The PEs of a job, and on which hosts they are: so many on each, or all on this machine where
/// none is named.
pub(crate) struct Place<'a> {
    pub(crate) pes: u32,
    pub(crate) hosts: Vec<(&'a Host, u32)>,
}

impl Place<'_> {
    /// What probably helps hosts that do not reach each other; nothing on this host alone.
    pub(crate) fn hint(&self) -> String {
        let rails: Vec<String> = self.hosts.iter().map(|(host, _)| host.rails()).collect();
        if rails.is_empty() {
            return String::new();
        }
        format!(
            "\nhint: no way between their rails is likely: {}. NVSHMEM_LIBFABRIC_DEVICES names rails of a network that all are on; \
             a firewall, too, may stand between them",
            rails.join("; ")
        )
    }
}

/// What a job runs on.
pub(crate) struct Trial<'a> {
    pub(crate) plugins: &'a Plugins,
    pub(crate) layout: Layout,
    pub(crate) provider: &'a str,
    pub(crate) memory: Memory,
    pub(crate) deadline: Duration,
}

impl Trial<'_> {
    /// A job of one of the scenarios of traffic.
    pub(crate) fn job(&self, scenario: &str, place: &Place<'_>) -> JobSettings {
        let job = JobSettings::new(scenario, place.pes, self.layout, &self.plugins.directory)
            .deadline(self.deadline)
            .step_deadline(self.deadline);
        let job = self.on(job, place);
        match self.memory {
            Memory::Host => job.heap(HEAP, CHUNK),
            // With a kernel that stays on the GPU, which copies must not wait for.
            Memory::Gpu => job.heap(HEAP, DEVICE_CHUNK).param(RESIDENT, true),
        }
    }

    /// Any job, on the provider, the memory and the hosts, with what the environment sets.
    pub(crate) fn on(&self, job: JobSettings, place: &Place<'_>) -> JobSettings {
        let mut job = job
            .inherits_settings()
            .env("NVSHMEM_LIBFABRIC_PROVIDER", self.provider)
            .env("NVSHMEM_DEBUG", "INFO");
        if self.memory == Memory::Gpu {
            job = job.memory(MemoryKind::DeviceVmm);
        }
        let mut first = 0;
        for (host, pes) in &place.hosts {
            job = job.host(first, *pes, host.remote.clone());
            first += pes;
        }
        job
    }
}

/// How the job has failed: what the launcher saw, and the PE that failed first.
pub(crate) fn failure(report: &JobReport) -> String {
    let mut text = report.cause.clone().unwrap_or_default();
    let first = report.first_failure.unwrap_or(0);
    for pe in report.pes.iter().filter(|pe| pe.pe == first) {
        if !text.contains(&pe.outcome.to_string()) {
            text.push_str(&format!("\nPE {} {}", pe.pe, pe.outcome));
        }
        let lines = &pe.output[pe.output.len().saturating_sub(MOST_LINES)..];
        for (_, line) in lines {
            text.push_str(&format!("\n  {line}"));
        }
    }
    text.trim_start().to_owned()
}

/// The line of the log with provider and rails.
pub(crate) fn opened(report: &JobReport) -> Option<String> {
    let mut lines = report.pes.first()?.output.iter().map(|(_, line)| line);
    let line = lines.find(|line| line.contains("rail(s)"))?;
    Some(line.split_once(" INFO ").map_or(line.as_str(), |(_, text)| text).to_owned())
}
