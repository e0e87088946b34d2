//! The machine of a report: kernel, processor, NICs as the kernel knows them, and the versions of
//! the modules that stand between a NIC and a GPU.

use std::fs;
use std::path::Path;

/// Classes of NICs in sysfs.
const CLASSES: [&str; 2] = ["infiniband", "cxi"];
/// What is told of a NIC and of each of its ports; nothing that says which one of its kind it is.
const OF_NIC: [&str; 5] =
    ["hca_type", "fw_ver", "device/vendor", "device/device", "device/numa_node"];
const OF_PORT: [&str; 3] = ["state", "rate", "link_layer"];
/// Modules of the kernel: without a version they are told as loaded.
const MODULES: [&str; 10] = [
    "efa",
    "cxi_user",
    "cxi_ss1",
    "mlx5_ib",
    "bnxt_re",
    "irdma",
    "rdma_rxe",
    "nvidia",
    "nvidia_peermem",
    "gdrdrv",
];

/// The first line of a file that begins like this; nothing where there is none.
fn first(path: &str, prefix: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    String::from(text.lines().find(|line| line.starts_with(prefix)).unwrap_or_default())
}

/// Lines about it.
pub(super) fn describe() -> String {
    let mut lines = vec![
        first("/proc/sys/kernel/osrelease", ""),
        first("/etc/os-release", "PRETTY_NAME"),
        first("/proc/cpuinfo", "model name"),
        first("/proc/meminfo", "MemTotal"),
    ];
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    lines.push(format!("processors of this process: {cores}"));
    lines.extend(of_sysfs(Path::new("/sys")));
    lines.join("\n")
}

fn of_sysfs(sysfs: &Path) -> Vec<String> {
    let read = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let told = |at: &Path, files: &[&str]| -> String {
        let values =
            files.iter().filter_map(|file| Some(format!("{file} {}", read(&at.join(file))?)));
        values.collect::<Vec<_>>().join(", ")
    };
    let mut lines = Vec::new();
    for class in CLASSES {
        for nic in names(&sysfs.join("class").join(class)) {
            let at = sysfs.join("class").join(class).join(&nic);
            lines.push(format!("{class} {nic}: {}", told(&at, &OF_NIC)));
            for port in names(&at.join("ports")) {
                let at = at.join("ports").join(&port);
                lines.push(format!("  port {port}: {}", told(&at, &OF_PORT)));
            }
        }
    }
    for module in MODULES {
        let at = sysfs.join("module").join(module);
        if at.is_dir() {
            let version = read(&at.join("version")).unwrap_or_else(|| String::from("is loaded"));
            lines.push(format!("module {module}: {version}"));
        }
    }
    lines
}

/// What a directory has, in order; nothing where there is none.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nics_ports_and_modules_are_told_and_no_guid() {
        let scratch = launcher::PrivateDir::new("nvshmem-libfabric-sysfs").unwrap();
        let sysfs = scratch.path();
        let file = |path: &str, text: &str| {
            let path = sysfs.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("class/infiniband/mlx5_0/fw_ver", "28.39\n");
        file("class/infiniband/mlx5_0/node_guid", "0c42:a103\n");
        file("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
        file("module/gdrdrv/version", "2.4\n");
        file("module/efa/initstate", "live\n");
        let lines = of_sysfs(sysfs);
        let expected = [
            "infiniband mlx5_0: fw_ver 28.39",
            "  port 1: rate 400 Gb/sec (4X NDR)",
            "module efa: is loaded",
            "module gdrdrv: 2.4",
        ];
        assert_eq!(lines, expected);
    }
}
