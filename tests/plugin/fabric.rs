//! Jobs on the fabrics: provider, libfabric and rails.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout};
use test_support::built::plugin_dir;
use test_support::needs;

pub(crate) use test_support::fabric::Fabric;

pub(crate) const PROVIDER: &str = "NVSHMEM_LIBFABRIC_PROVIDER";
pub(crate) const DEVICES: &str = "NVSHMEM_LIBFABRIC_DEVICES";

pub(crate) fn devices(fabric: Fabric, rails: u8) -> String {
    let device = |rail| match fabric {
        Fabric::Shm | Fabric::Shm2 => "shm".to_owned(),
        _ => format!("127.0.0.{}", rail + 1),
    };
    (0..rails).map(device).collect::<Vec<_>>().join(",")
}

pub(crate) fn job_on(
    fabric: Fabric,
    scenario: &str,
    n_pes: u32,
    rails: u8,
    layout: Layout,
) -> JobSettings {
    let job = job(scenario, n_pes, layout)
        .env(PROVIDER, fabric.provider())
        .env(DEVICES, devices(fabric, rails));
    match fabric.library() {
        Ok(Some(library)) => job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.to_string_lossy()),
        _ => job,
    }
}

pub(crate) fn job(scenario: &str, n_pes: u32, layout: Layout) -> JobSettings {
    JobSettings::new(scenario, n_pes, layout, plugin_dir())
        .env("NVSHMEM_DEBUG", "INFO")
        // A machine that is busy with other things delays every wait.
        .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 100)
        .deadline(Duration::from_secs(900))
        .step_deadline(Duration::from_secs(600))
}

pub(crate) fn trial(
    name: String,
    fabric: Option<Fabric>,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let need = fabric.map_or(Ok(()), |fabric| fabric.library().map(drop));
    needs::trial(name, need, |()| run())
}

pub(crate) fn says(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in:\n{text}").into()) }
}
