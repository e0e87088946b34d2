//! `perf`: the plugin measured between two PEs, of this machine or of two, in the layout of
//! NVSHMEM's perftests.

use std::path::Path;
use std::time::Duration;

use nvshmem_bench::{Figure, measure_by_size};
use nvshmem_sim::{BoxError, JobSettings};

use crate::error::ToolError;
use crate::info::{check_settings, print_json};
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, PerfOptions};
use crate::probe;
use crate::selftest::{NEWEST, PROVIDER, Place, hosts, opened, why};

const PES: u32 = 2;

pub(crate) fn run(options: &PerfOptions) -> Result<bool, ToolError> {
    check_settings(options.provider.as_deref().map(|_| PROVIDER))?;
    let job = &options.job;
    let plugins = Plugins::find(job.plugin_dir.as_deref())?;
    let number = NEWEST.major().number().unsigned_abs();
    plugins.of(number)?;
    let hosts = hosts::find(job, &[number])?;
    let place = Place::on(&hosts, PES);
    if place.pes != PES {
        let message = format!("the hosts take {} PE(s), and {PES} are measured", place.pes);
        return Err(ToolError::new(message, "name two hosts, or one for both: --hosts a:2"));
    }
    let provider = if hosts.is_empty() {
        let fabric = probe::fabric(job.memory == Memory::Gpu);
        let provider = options.provider.clone().unwrap_or(fabric.one_host.asked.clone());
        hosts::check_here(&fabric, std::slice::from_ref(&provider))?;
        provider
    } else {
        hosts::providers(&hosts, options.provider.as_slice())?.swap_remove(0)
    };
    match measured(options, &plugins.directory, &provider, &place) {
        Ok(()) => Ok(true),
        Err(error) => {
            let error = ToolError::new(why(&error), place.hint());
            error.print_json();
            eprintln!("nvshmem-libfabric: {error}{}", error.hint);
            Ok(false)
        }
    }
}

fn measured(
    options: &PerfOptions,
    directory: &Path,
    provider: &str,
    place: &Place<'_>,
) -> Result<(), BoxError> {
    let made = |job: JobSettings| {
        let job = place.put(job, provider, options.job.memory);
        options.devices.iter().fold(job, |job, names| job.env("NVSHMEM_LIBFABRIC_DEVICES", names))
    };
    let time = Duration::from_millis(options.milliseconds);
    let (report, rows) = measure_by_size(options.max, NEWEST, directory, time, &made)?;
    let (uneven, all) = (rows.iter().filter(|row| row.p90 > 2.0 * row.p10).count(), rows.len());
    if uneven > 0 {
        let what = "rows differ by more than a factor of two in their rounds";
        eprintln!("warning: {uneven} of {all} {what}");
    }
    if options.job.json {
        print_json(&rows)?;
        return Ok(());
    }
    let hosts = if place.hosts.len() > 1 { "two hosts" } else { "one host" };
    let memory = match options.job.memory {
        Memory::Host => "memory of the host",
        Memory::Gpu => "memory of GPUs",
    };
    println!("two PEs on {hosts}, {memory}; {}", directory.join(NEWEST.soname()).display());
    opened(&report).iter().for_each(|opened| println!("{opened}"));
    for rows in rows.chunk_by(|one, next| one.test == next.test) {
        let Figure { test, unit, .. } = &rows[0];
        let metric = match unit.as_str() {
            "us" => "latency",
            "GB/sec" => "BW",
            _ => "rate",
        };
        let head = format!("{metric} ({unit})");
        println!("\n#{test}\n{:<12}{:<8}{head:<18}p10..p90 of the rounds", "size(B)", "scope");
        for Figure { bytes, value, p10, p90, .. } in rows {
            println!("{bytes:<12}{:<8}{value:<18.6}{p10:.6}..{p90:.6}", "host");
        }
    }
    println!("\nEvery byte of each row was compared: 0 wrong.");
    Ok(())
}
