//! The demo: launches the PEs, then shows what they measured and what the plugin said of itself.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nvshmem_sim::{BoxError, JobReport, JobSettings, Layout, PeReport};

use crate::default_plugin_dir;
use crate::table::{Row, print_machine_readable, print_tables};

/// What the user may change. Settings of the plugin go through its environment variables.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Directory with the installed plugin files
    #[arg(long, default_value_os_t = default_plugin_dir())]
    plugin_dir: PathBuf,
    /// Interface layout to drive the plugin through: 3a, 3b, 4, 5, 6 or 7
    #[arg(long, default_value = "7", value_parser = layout)]
    layout: Layout,
    /// libfabric provider; NVSHMEM_LIBFABRIC_PROVIDER for the PEs
    #[arg(long, default_value = "tcp")]
    provider: String,
    /// Rails; NVSHMEM_LIBFABRIC_DEVICES for the PEs
    #[arg(long, default_value = "127.0.0.1,127.0.0.2")]
    devices: String,
    /// Milliseconds to measure each row for
    #[arg(long, default_value_t = 100)]
    milliseconds: u64,
    /// Largest transfer in bytes
    #[arg(long, default_value_t = 4 << 20, value_parser = clap::value_parser!(u64).range(8..=1 << 28))]
    max: u64,
}

fn layout(name: &str) -> Result<Layout, String> {
    Layout::from_name(name)
        .ok_or_else(|| format!("{} are known", Layout::ALL.map(Layout::name).join(", ")))
}

/// Runs the demo.
///
/// # Errors
/// A PE failed, or a byte was wrong.
pub(crate) fn run(options: &Options) -> Result<(), BoxError> {
    let chunk = options.max.next_power_of_two().max(4096);
    let report = JobSettings::new("measure", 2, options.layout, &options.plugin_dir)
        .env("NVSHMEM_LIBFABRIC_PROVIDER", &options.provider)
        .env("NVSHMEM_LIBFABRIC_DEVICES", &options.devices)
        .env("NVSHMEM_DEBUG", "INFO")
        .param("milliseconds", options.milliseconds)
        .param("max", options.max)
        .heap(4 * chunk, chunk)
        .deadline(Duration::from_secs(600))
        .inherits_settings()
        .run()?
        .check()?;

    println!(
        "2 PEs on this host; {}; NVSHMEM's interface in layout {} ({})",
        options.plugin_dir.join(options.layout.soname()).display(),
        options.layout,
        options.layout.releases().join(", "),
    );
    for line in said(&report) {
        println!("{line}");
    }
    let rows: Vec<Row> = report.pes[0]
        .values
        .iter()
        .filter(|(name, _)| name == "row")
        .map(|(_, text)| text.parse())
        .collect::<Result<_, _>>()?;
    print_tables(&rows);
    print_machine_readable(&rows);
    let verified = |pe: &PeReport| pe.value("verified")?.parse::<u64>().ok();
    let checked: u64 = report.pes.iter().filter_map(verified).sum();
    println!("\nEvery byte arrived as it was sent: {checked} bytes compared, 0 wrong.");
    Ok(())
}

/// What PE 0's plugin logged about provider, progress and rails.
fn said(report: &JobReport) -> Vec<String> {
    let lines = report.pes[0].output.iter().map(|(_, line)| line);
    lines
        .filter(|line| line.contains("rail(s)"))
        .map(|line| line.split_once(" INFO ").map_or(line.as_str(), |(_, text)| text).to_owned())
        .collect()
}
