//! What there is, for somebody who cannot see the machine: kinds, versions, counts and switches.
//!
//! Each line is made of fields that say nothing of who and where: no names of users, hosts and
//! files, no addresses. What is not named here is not told.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use nvshmem_transport_libfabric::settings::Settings;

use super::known::known;
use crate::doctor::Diagnosis;
use crate::info::Info;
use crate::probe::{Choice, Gpu, Rail};

const MODULES: &str =
    "efa cxi_user cxi_ss1 mlx5_ib bnxt_re irdma rdma_rxe nvidia nvidia_peermem gdrdrv";

/// Variables whose values may be told, beside settings of the transport.
const TOLD: &str = include_str!("told.txt");

const NOT_TOLD: [&str; 5] = [
    "NVSHMEM_LIBFABRIC_LIBRARY",
    "NVSHMEM_LIBFABRIC_FABRIC",
    "NVSHMEM_LIBFABRIC_DEVICES",
    "NVSHMEM_LIBFABRIC_COUNTERS",
    "NVSHMEM_LIBFABRIC_BOOTSTRAP",
];

pub(super) fn there(info: &Info) -> String {
    let diagnosis = Diagnosis::of(info);
    let checks = diagnosis.checks.iter().map(|check| {
        format!("{:<8} {:<20} {}", check.verdict.name(), check.id, known(&check.reason))
    });
    let checks: Vec<String> = [diagnosis.summary.clone()].into_iter().chain(checks).collect();
    let sysfs = Path::new("/sys");
    section("machine", &[host(), of_sysfs(sysfs), libraries(info)].concat())
        + &section("doctor", &checks)
        + &section("environment", &environment())
}

pub(super) fn section(name: &str, lines: &[String]) -> String {
    let lines = lines.iter().map(|line| format!("{}\n", line.trim_end()));
    format!("\n==== {name}\n{}", lines.collect::<String>())
}

fn host() -> Vec<String> {
    let first = |path: &str, prefix: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        String::from(text.lines().find(|line| line.starts_with(prefix)).unwrap_or_default())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    vec![
        format!("kernel {}", first("/proc/sys/kernel/osrelease", "")),
        first("/etc/os-release", "PRETTY_NAME"),
        first("/proc/cpuinfo", "model name"),
        first("/proc/meminfo", "MemTotal"),
        format!("processors of this process: {cores}"),
    ]
}

fn of_sysfs(sysfs: &Path) -> Vec<String> {
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let told = |kind: &str, at: &Path, files: &[&str]| {
        let value = |file: &&str| Some(format!("{file} {}", read(at.join(file))?));
        format!("{kind}: {}", files.iter().filter_map(value).collect::<Vec<_>>().join(", "))
    };
    let mut lines = Vec::new();
    for nic in below(&sysfs.join("class/infiniband")) {
        let files = ["hca_type", "fw_ver", "device/vendor", "device/device"];
        lines.push(told("RDMA device", &nic, &files));
        let ports = below(&nic.join("ports")).into_iter();
        lines.extend(ports.map(|at| told("port", &at, &["state", "rate", "link_layer"])));
    }
    let cxi = below(&sysfs.join("class/cxi")).into_iter();
    lines.extend(cxi.map(|nic| told("cxi", &nic, &["device/vendor", "device/device"])));
    for module in MODULES.split_whitespace() {
        let at = sysfs.join("module").join(module);
        if at.is_dir() {
            let version = read(at.join("version")).unwrap_or_else(|| String::from("is loaded"));
            lines.push(format!("module {module}: {version}"));
        }
    }
    lines
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut below: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    below.sort();
    below
}

fn libraries(info: &Info) -> Vec<String> {
    let mut lines = Vec::new();
    for nvshmem in info.nvshmem.iter().flatten() {
        let release = nvshmem.release.as_deref().unwrap_or("unknown");
        lines.push(format!("NVSHMEM {release}, plugin file {:?}", nvshmem.number));
    }
    if let Some(fabric) = &info.fabric {
        lines.push(format!("libfabric {}", fabric.version.as_deref().unwrap_or("none")));
        lines.extend(fabric.providers.iter().map(provider));
    }
    if let Some(gpus) = &info.gpus {
        let (driver, gdrcopy) = (gpus.driver.as_deref(), gpus.gdrcopy_error.is_none());
        lines.push(format!("CUDA's driver {}, GDRCopy {gdrcopy}", driver.unwrap_or("none")));
        lines.extend(
            gpus.devices
                .iter()
                .map(|gpu| format!("{:?}", Gpu { pci: String::new(), ..gpu.clone() })),
        );
    }
    lines
}

fn provider(Choice { asked, provider, rails, reaches_gpus, refused }: &Choice) -> String {
    let reasons: Vec<String> = refused.iter().map(|refused| known(&refused.reason)).collect();
    match provider {
        Some(name) => {
            let rails = speeds(rails);
            format!("provider {asked}: {name}, {rails}, reaches GPUs: {reaches_gpus}")
        }
        None => format!("provider {asked}: none. {}", reasons.join(" ")),
    }
}

pub(super) fn speeds(rails: &[Rail]) -> String {
    let speeds = rails.iter().filter_map(|rail| rail.link_speed);
    let speeds = speeds.map(|mbit| format!(", {} Gbit/s", f64::from(mbit) / 1e3));
    format!("{} rail(s){}", rails.len(), speeds.collect::<String>())
}

fn environment() -> Vec<String> {
    let settings = Settings::default().describe();
    let settings = settings.iter().map(|row| row.name).filter(|name| !NOT_TOLD.contains(name));
    let names = TOLD.split_whitespace().chain(settings);
    names.filter_map(|name| Some(format!("{name}={}", told(&env::var(name).ok()?)))).collect()
}

/// A value that is a word, a number or a list of these. Paths and addresses are neither.
fn told(value: &str) -> &str {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-=,;".contains(letter);
    if value.chars().all(plain) { value } else { "(not told)" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nics_ports_and_modules_are_told() {
        let sysfs = test_support::scratch::Scratch::new();
        sysfs.write("class/infiniband/mlx5_0/fw_ver", "28.39\n");
        sysfs.write("class/infiniband/mlx5_0/node_guid", "0c42:a103\n");
        sysfs.write("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
        sysfs.write("module/gdrdrv/version", "2.4\n");
        sysfs.write("module/efa/initstate", "live\n");
        let expected = [
            "RDMA device: fw_ver 28.39",
            "port: rate 400 Gb/sec (4X NDR)",
            "module efa: is loaded",
            "module gdrdrv: 2.4",
        ];
        assert_eq!(of_sysfs(&sysfs), expected);
    }

    #[test]
    fn settings_that_are_not_told_exist() {
        let settings = Settings::default().describe();
        assert!(NOT_TOLD.iter().all(|name| settings.iter().any(|row| row.name == *name)));
    }
}
