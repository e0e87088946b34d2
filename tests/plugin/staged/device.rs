//! The device that the cases run on.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use cuda::{DEFAULT_LIBRARY, Device, Driver, Ordinal};
use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobSettings, Layout, MemoryKind, Outcome};
use test_support::built::fake_cuda_dir;
use test_support::needs;

use crate::fabric::{Fabric, job_on, trial};
use nvshmem_sim::traffic::RESIDENT;

const GPU: &str = "NVSHMEM_TEST_GPU";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    /// Memory and copies.
    Any,
    /// That it can be made slow or fail, or more devices than a machine has PEs to spare.
    StandIn,
}

#[derive(Clone, Debug)]
enum Found {
    /// The stand-in that was built with this program, in this directory.
    StandIn(PathBuf),
    /// What the loader finds by itself.
    Gpu,
}

fn device() -> &'static Result<Found, String> {
    static DEVICE: OnceLock<Result<Found, String>> = OnceLock::new();
    DEVICE.get_or_init(|| {
        if needs::is_set(GPU) {
            return look_for_gpu().map(|name| {
                println!("staged cases run on {name}");
                Found::Gpu
            });
        }
        Ok(Found::StandIn(fake_cuda_dir()))
    })
}

/// Asks the machine's driver in a process of its own: this one must not load it.
fn look_for_gpu() -> Result<String, String> {
    let job = JobSettings::new("probe", 1, Layout::V7, "");
    let report = job.deadline(Duration::from_secs(60)).run().map_err(|error| error.to_string())?;
    match &report.pes[0].outcome {
        Outcome::Finished => Ok(report.pes[0].value("device").unwrap_or("a device").to_owned()),
        Outcome::Failed(text) => Err(format!("no GPU here: {text}")),
        other => Err(format!("looking for a GPU: PE 0 {other}")),
    }
}

pub(crate) fn probe(job: &mut Job) -> Result<(), BoxError> {
    let driver = Driver::load(DEFAULT_LIBRARY)?;
    driver.initialise()?;
    job.report("device", Device::new(driver, Ordinal(0))?.name()?)?;
    Ok(())
}

pub(crate) fn staged(
    name: String,
    fabric: Fabric,
    needs: Needs,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = format!("staged::{name}");
    let reason = match (device(), needs) {
        (Err(reason), _) => reason.clone(),
        (Ok(Found::Gpu), Needs::StandIn) => "it needs a device that fails on demand".to_owned(),
        _ => return trial(name, Some(fabric), run),
    };
    needs::trial(name, Err(reason), |()| run())
}

pub(crate) fn is_gpu() -> bool {
    matches!(device(), Ok(Found::Gpu))
}

/// A job on this fabric whose PEs have memory of this kind, by the device of this run.
pub(crate) fn job(
    fabric: Fabric,
    kind: MemoryKind,
    scenario: &str,
    n_pes: u32,
    rails: u8,
    layout: Layout,
) -> JobSettings {
    let job = job_on(fabric, scenario, n_pes, rails, layout).memory(kind).heap(64 << 20, 2 << 20);
    // Half of the jobs have what goes between PEs of this host go through the fabric, as between
    // hosts.
    let shares = (u32::from(rails) + layout as u32) % 2;
    let job = job.debug("share_bounce", shares);
    match device() {
        Ok(Found::StandIn(directory)) => job.library_path(directory),
        _ => job.param(RESIDENT, true),
    }
}
