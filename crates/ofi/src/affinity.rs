//! CPU affinity of threads: those that serve a NIC keep to its NUMA node, where there are several.

use std::fs;
use std::path::Path;

use crate::topology::{cpus, numa_node};

/// Most CPUs that a set of glibc's has.
const MOST: usize = libc::CPU_SETSIZE as usize;

/// Lets the calling thread run on the CPUs of a device's node alone, and gives these in words.
/// Where that is not known, or there is one node only, or the thread may not run on any of them,
/// nothing changes.
pub fn keep_near(device: &Path) -> Option<String> {
    let node = node_of(device)?;
    let cpus = cpus_of(node)?;
    let near = allowed().map(|allowed| both(&allowed, &cpus)).filter(|near| !near.is_empty())?;
    set_affinity(&near).then(|| format!("the {} CPU(s) of NUMA node {node}, its NIC's", near.len()))
}

/// The node of a device. None if the system says none, as with one node only.
fn node_of(device: &Path) -> Option<u32> {
    let nodes = fs::read_to_string("/sys/devices/system/node/online").ok()?;
    if cpus(&nodes, MOST).len() < 2 {
        return None;
    }
    let path = if device.is_absolute() {
        device.join("numa_node")
    } else {
        Path::new("/sys").join(device).join("numa_node")
    };
    numa_node(&fs::read_to_string(path).ok()?)
}

fn cpus_of(node: u32) -> Option<Vec<usize>> {
    let list = format!("/sys/devices/system/node/node{node}/cpulist");
    Some(cpus(&fs::read_to_string(list).ok()?, MOST)).filter(|cpus| !cpus.is_empty())
}

fn both(one: &[usize], other: &[usize]) -> Vec<usize> {
    one.iter().copied().filter(|cpu| other.contains(cpu)).collect()
}

/// The CPUs that this thread may run on.
fn allowed() -> Option<Vec<usize>> {
    // SAFETY: bits, for which zeroes are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of that size to write to; 0 is the calling thread.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    // SAFETY: below the size of a set.
    (status == 0).then(|| (0..MOST).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

fn set_affinity(cpus: &[usize]) -> bool {
    // SAFETY: bits, for which zeroes are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < MOST) {
        // SAFETY: below the size of a set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: a set of that size; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_kept_to_the_cpus_it_has() {
        let all = allowed().expect("the kernel tells");
        assert!(!all.is_empty());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(set_affinity(&all[..1]));
                assert_eq!(allowed().expect("the kernel tells"), all[..1]);
            });
        });
        assert_eq!(allowed().expect("the kernel tells"), all, "only that thread");
    }
}
