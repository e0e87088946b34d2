//! CPU affinity: threads that serve a NIC are bound to its NUMA node, if there are several.

use std::fs;
use std::path::Path;

use crate::topology::{cpus, numa_node};

const MAX_CPUS: usize = libc::CPU_SETSIZE as usize;

/// Restricts the calling thread to the CPUs of a device's NUMA node, and returns a description.
/// Does nothing if the node is unknown, the only one, or outside the thread's affinity.
pub fn keep_near(device: &Path) -> Option<String> {
    keep_near_in(Path::new("/sys"), device)
}

fn keep_near_in(sysfs: &Path, device: &Path) -> Option<String> {
    let (node, cpus) = near(sysfs, device)?;
    let near = allowed().map(|allowed| both(&allowed, &cpus)).filter(|near| !near.is_empty())?;
    set_affinity(&near).then(|| format!("the {} CPU(s) of NUMA node {node}, its NIC's", near.len()))
}

/// Returns the NUMA node of a device, given by an absolute path or one relative to `sysfs`, and its
/// CPUs, if known.
fn near(sysfs: &Path, device: &Path) -> Option<(u32, Vec<usize>)> {
    let nodes = sysfs.join("devices/system/node");
    if cpus(&fs::read_to_string(nodes.join("online")).ok()?, MAX_CPUS).len() < 2 {
        return None;
    }
    let node = numa_node(&fs::read_to_string(sysfs.join(device).join("numa_node")).ok()?)?;
    let list = fs::read_to_string(nodes.join(format!("node{node}/cpulist"))).ok()?;
    Some((node, cpus(&list, MAX_CPUS))).filter(|(_, cpus)| !cpus.is_empty())
}

fn both(one: &[usize], other: &[usize]) -> Vec<usize> {
    one.iter().copied().filter(|cpu| other.contains(cpu)).collect()
}

fn allowed() -> Option<Vec<usize>> {
    // SAFETY: bits, for which zeroes are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of that size to write to; 0 is the calling thread.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    // SAFETY: below the size of a set.
    (status == 0)
        .then(|| (0..MAX_CPUS).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

fn set_affinity(cpus: &[usize]) -> bool {
    // SAFETY: bits, for which zeroes are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < MAX_CPUS) {
        // SAFETY: below the size of a set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: a set of that size; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0 }
}

#[cfg(test)]
mod tests {
    use test_support::scratch::Scratch;

    use super::*;

    const NIC: &str = "devices/pci0000:80/0000:81:00.0";
    const NODE: &str = "devices/pci0000:80/0000:81:00.0/numa_node";
    const SECOND: &str = "devices/system/node/node1/cpulist";

    fn two_nodes() -> Scratch {
        let sysfs = Scratch::new();
        sysfs.write("devices/system/node/online", "0-1\n");
        sysfs.write("devices/system/node/node0/cpulist", "0-1\n");
        sysfs.write(SECOND, "2-3,6\n");
        sysfs
    }

    #[test]
    fn near_cpus_are_on_device_node() {
        let sysfs = two_nodes();
        assert_eq!(near(&sysfs, Path::new(NIC)), None, "nothing is known of the device");
        for (node, expected) in [
            ("1\n", Some((1, vec![2, 3, 6]))),
            ("0\n", Some((0, vec![0, 1]))),
            ("-1\n", None),
            ("2\n", None),
        ] {
            sysfs.write(NODE, node);
            assert_eq!(near(&sysfs, Path::new(NIC)), expected, "{node}");
            assert_eq!(near(&sysfs, &sysfs.join(NIC)), expected, "{node}");
        }
        sysfs.write(NODE, "1\n");
        sysfs.write(SECOND, "\n");
        assert_eq!(near(&sysfs, Path::new(NIC)), None, "memory alone");
        sysfs.write(SECOND, "2-3,6\n");
        sysfs.write("devices/system/node/online", "0\n");
        assert_eq!(near(&sysfs, Path::new(NIC)), None, "one node");
    }

    #[test]
    fn threads_stay_near_within_affinity() {
        let sysfs = two_nodes();
        sysfs.write(NODE, "1\n");
        let all = allowed().expect("the kernel tells");
        let elsewhere = (0..MAX_CPUS).find(|cpu| !all.contains(cpu)).expect("not so many");
        let kept = || {
            let kept =
                || (keep_near_in(&sysfs, Path::new(NIC)), allowed().expect("the kernel tells"));
            std::thread::scope(|scope| scope.spawn(kept).join().expect("no panic"))
        };
        sysfs.write(SECOND, format!("{},{elsewhere}\n", all[0]));
        let said = String::from("the 1 CPU(s) of NUMA node 1, its NIC's");
        assert_eq!(kept(), (Some(said), vec![all[0]]));
        assert_eq!(allowed().expect("the kernel tells"), all, "only that thread");
        sysfs.write(SECOND, format!("{elsewhere}\n"));
        assert_eq!(kept(), (None, all));
    }
}
