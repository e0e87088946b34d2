//! A job of a self-test: where its PEs are, and how it has failed.

use nvshmem_sim::{BoxError, JobFailed, JobReport, JobSettings, MemoryKind, PeReport};

use super::hosts::Host;
use crate::options::Memory;

/// What a driver's allocations are multiples of.
const DEVICE_CHUNK: u64 = 2 << 20;

const MAX_LINES: usize = 40;

/// The PEs of a job, and on which hosts they are: so many on each, or all on this machine where
/// none is named.
pub(crate) struct Place<'a> {
    pub(crate) pes: u32,
    pub(crate) hosts: Vec<(&'a Host, u32)>,
}

impl<'a> Place<'a> {
    /// All PEs that the hosts take, or so many on this machine where none is named.
    pub(crate) fn on(hosts: &'a [Host], here: u32) -> Self {
        let pes = hosts.iter().map(|host| host.slots).sum();
        let pes = if hosts.is_empty() { here } else { pes };
        Self { pes, hosts: hosts.iter().map(|host| (host, host.slots)).collect() }
    }

    /// Puts a job there, on a provider and memory of a kind.
    pub(crate) fn put(&self, job: JobSettings, provider: &str, memory: Memory) -> JobSettings {
        let mut job = job
            .inherits_settings()
            .env("NVSHMEM_LIBFABRIC_PROVIDER", provider)
            .env("NVSHMEM_DEBUG", "INFO");
        if memory == Memory::Gpu {
            let whole = |bytes: u64| bytes.next_multiple_of(DEVICE_CHUNK);
            let (heap, chunk) = (whole(job.heap_bytes), whole(job.chunk_bytes));
            job = job.memory(MemoryKind::DeviceVmm).heap(heap, chunk);
        }
        let mut first = 0;
        for (host, pes) in &self.hosts {
            job = job.host(first, *pes, host.remote.clone());
            first += pes;
        }
        job
    }

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

pub(crate) fn failure(report: &JobReport) -> String {
    let mut text = report.cause.clone().unwrap_or_default();
    if let Some(pe) = failed_first(report) {
        let outcome = pe.outcome.to_string();
        if !text.contains(&outcome) {
            text.push_str(&format!("\nPE {} {outcome}", pe.pe));
        }
        if let Some(error) = first_error(pe) {
            // What a call has returned says less.
            match text.find(" failed: ") {
                Some(at) => text.replace_range(at.., &format!(": {error}")),
                None => text.push_str(&format!("\n{error}")),
            }
        }
    }
    text.trim_start().to_owned()
}

pub(crate) fn why(error: &BoxError) -> String {
    match error.downcast_ref::<JobFailed>() {
        Some(JobFailed(report)) => failure(report),
        None => error.to_string(),
    }
}

pub(crate) fn log_of_failure(report: &JobReport) -> String {
    let output = failed_first(report).map_or(&[][..], |pe| &pe.output);
    let last = &output[output.len().saturating_sub(MAX_LINES)..];
    last.iter().map(|(_, line)| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

fn failed_first(report: &JobReport) -> Option<&PeReport> {
    report.pes.iter().find(|pe| pe.pe == report.first_failure.unwrap_or(0))
}

fn first_error(pe: &PeReport) -> Option<String> {
    let mut lines = pe.output.iter().map(|(_, line)| line.as_str());
    let error = lines.by_ref().find_map(|line| Some(line.split_once(" NVSHMEM ERROR ")?.1))?;
    let error = match error.split_once(": ") {
        Some((call, error)) if call.starts_with("nvshmemt_") => error,
        _ => error,
    };
    let more = lines.take_while(|line| line.starts_with("  "));
    Some([error].into_iter().chain(more).collect::<Vec<_>>().join("\n"))
}

pub(crate) fn opened(report: &JobReport) -> Option<String> {
    let mut lines = report.pes.first()?.output.iter().map(|(_, line)| line);
    let line = lines.find(|line| line.contains("rail(s)"))?;
    Some(line.split_once(" INFO ").map_or(line.as_str(), |(_, text)| text).to_owned())
}
