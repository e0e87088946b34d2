//! The host: limits, cores, the network that PEs meet on, shared memory.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use ofi::Interface;

use super::{Check, Row, error, note, ok, warning};
use crate::info::Info;

pub(super) const LEFT_BEHIND: &str = "left-behind";

pub(super) fn checks(info: &Info) -> Vec<Row> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (limits, mounts) = (read("/proc/self/limits"), read("/proc/self/mounts"));
    let rails = info.fabric.as_ref().map_or(&[][..], |fabric| &fabric.across_hosts.rails);
    let rdma = rails.iter().any(|rail| rail.pci.is_some());
    let gpus = info.gpus.as_ref().map_or(0, |gpus| gpus.devices.len());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let interfaces = Interface::all();
    let named = env::var(INTERFACE).unwrap_or_default();
    let namespace = ofi::namespace("pid").to_string();
    let lives = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
    vec![
        ("memlock", memlock(&limits, rdma)),
        ("descriptors", descriptors(&limits, rdma, rails.len().max(1))),
        ("cores", cores_for(cores, gpus)),
        ("bootstrap-interface", bootstrap(&interfaces, named.trim())),
        ("loopback-interface", loopback(&interfaces)),
        ("shared-memory", shared_memory(&mounts, ofi::free_bytes())),
        (LEFT_BEHIND, left_behind(Path::new("/dev/shm"), &namespace, &lives)),
    ]
}

fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let limit = limits.lines().find_map(|line| line.strip_prefix(name))?;
    limit.split_whitespace().next()?.parse().ok()
}

fn memlock(limits: &str, rdma: bool) -> Check {
    let Some(bytes) = soft_limit(limits, "Max locked memory") else {
        return ok("memory that may be locked is not limited");
    };
    let reason = format!("{} KiB of memory may be locked", bytes >> 10);
    if !rdma {
        return ok(format!("{reason}; no NIC here that locks it is used"));
    }
    warning(
        format!("{reason}, and NICs lock all that is registered, the whole symmetric heap"),
        "ulimit -l unlimited, LimitMEMLOCK=infinity for services, --ulimit memlock=-1 for containers",
    )
}

fn descriptors(limits: &str, rdma: bool, rails: usize) -> Check {
    const OTHERS: u64 = 128;
    const USUAL_PES: u64 = 64;
    let Some(limit) = soft_limit(limits, "Max open files") else {
        return ok("open files are not limited");
    };
    if rdma {
        return ok(format!("{limit} files may be open; RDMA needs few"));
    }
    // Over sockets, each PE has connections of every rail and of the host lane to each other, in
    // either direction.
    let pes = limit.saturating_sub(OTHERS) / (2 * (rails as u64 + 1));
    let reason =
        format!("{limit} files may be open, enough for jobs of about {pes} PEs over sockets");
    if pes >= USUAL_PES {
        return ok(reason);
    }
    let remedy = "ulimit -n 65536, LimitNOFILE= for services, --ulimit nofile= for containers";
    warning(reason, remedy)
}

fn cores_for(cores: usize, gpus: usize) -> Check {
    let reason = format!("this process may use {cores} cores");
    // The program's thread and NVSHMEM's proxy thread, which is always awake.
    if cores < 2 * gpus {
        return warning(
            format!("{reason}; a PE on each of {gpus} GPUs keeps two busy"),
            "give the job more cores (srun --cpus-per-task, cgroups), or start fewer PEs; idle proxy threads give theirs up \
             (NVSHMEM_LIBFABRIC_YIELD)",
        );
    }
    if gpus == 0 && cores < 4 {
        return note(format!("{reason}; two PEs on this host want four, and share these"));
    }
    ok(format!("{reason}; a PE wants two"))
}

const INTERFACE: &str = "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";

fn bootstrap(interfaces: &[Interface], named: &str) -> Check {
    let describe = |interface: &Interface| format!("{} ({})", interface.name, interface.address);
    let there: Vec<&Interface> = interfaces.iter().filter(|interface| interface.running).collect();
    let details: Vec<String> = there.iter().map(|interface| describe(interface)).collect();
    if !named.is_empty() {
        // As in NCCL, from which it comes: names begin with one of these, or '=' is in front for
        // whole names, '^' for all others.
        let list = named.trim_start_matches('^');
        let names = list.trim_start_matches('=');
        let fits = |interface: &&&Interface| {
            let is = names.split(',').any(|name| match list.starts_with('=') {
                true => interface.name == name,
                false => interface.name.starts_with(name),
            });
            is != named.starts_with('^')
        };
        if let Some(interface) = there.iter().find(fits) {
            return ok(format!("{INTERFACE}={named} is {}", describe(interface)));
        }
        let what = "is no interface that is up, so PEs do not find one another";
        let reason = format!("{INTERFACE}={named} {what}");
        return warning(reason, "name one of these, or unset it").details(details);
    }
    let check = match there.iter().find(|interface| !interface.loopback) {
        None => note("only loopback is up: PEs of this host find one another, and no others"),
        Some(first) if Interface::is_virtual_bridge(&first.name) => {
            let first = describe(first);
            let reason =
                format!("the first is {first}, which leads to this host's containers alone");
            warning(reason, format!("name the right one, such as {INTERFACE}=eth0"))
        }
        Some(first) => ok(format!("the first is {}", describe(first))),
    };
    check.details(details)
}

fn loopback(interfaces: &[Interface]) -> Check {
    if interfaces.iter().any(|interface| interface.loopback && interface.running) {
        return ok("it is up");
    }
    let reason = "no loopback interface is up, and PEs of this host find one another by it";
    error(reason, "ip link set lo up")
}

/// `free`: bytes that can still be written there.
fn shared_memory(mounts: &str, free: Option<u64>) -> Check {
    const LEAST: u64 = 256 << 20;
    if !mounts.lines().any(|line| line.split(' ').nth(1) == Some("/dev/shm")) {
        return note(
            "/dev/shm is no file system of its own; the provider shm keeps its files there",
        );
    }
    let Some(bytes) = free else { return note("how much of /dev/shm is free cannot be told") };
    let reason = format!("/dev/shm has {} MiB left", bytes >> 20);
    if bytes >= LEAST {
        return ok(reason);
    }
    warning(
        format!("{reason}; the provider shm, and NVSHMEM on one host, want more"),
        "--shm-size=1g for containers; remove files of processes that have ended",
    )
}

fn left_behind(directory: &Path, namespace: &str, lives: &dyn Fn(u32) -> bool) -> Check {
    let (mut dead, mut bytes) = (BTreeSet::new(), 0);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_dead =
            maker(&entry.file_name().to_string_lossy(), namespace).is_some_and(|pid| !lives(pid));
        let file = entry.metadata().ok().filter(|found| is_dead && !found.is_dir());
        if let Some(file) = file {
            bytes += 512 * file.blocks();
            dead.insert(entry.path().display().to_string());
        }
    }
    let place = directory.display();
    if dead.is_empty() {
        return ok(format!("nothing of ended jobs is in {place}"));
    }
    let (files, size) = (dead.len(), bytes >> 20);
    warning(
        format!("{place} has {files} files of processes that have ended, {size} MiB"),
        "when no job runs here: rm them; they take memory, and may be in the way of processes that get the same number",
    )
    .details(dead.into_iter().take(20).collect())
}

/// Returns the process of a file by its name, unless that is of another PID namespace.
fn maker(name: &str, namespace: &str) -> Option<u32> {
    let is_number = |part: &str| part.parse::<u32>().is_ok();
    // libfabric's shm: PID:UID:NUMBER, with or without something in front.
    let parts = name.rsplit("fi_shm_").next().unwrap_or(name).split([':', '_']);
    let parts: Vec<&str> = parts.collect();
    // The transport has the number of the PID namespace behind that of the process.
    let (pid, of) = parts[0].split_once('-').unwrap_or((parts[0], namespace));
    let is_endpoint =
        parts.len() >= 3 && of == namespace && [pid, parts[1], parts[2]].into_iter().all(is_number);
    let is_named = ["nvshmem", "fi_shm", "nlf-"].iter().any(|word| name.contains(word));
    let mut numbers = name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    if is_endpoint || is_named { numbers.next() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max open files            1024                 1048576              files     \n\
         Max locked memory         8388608              unlimited            bytes     \n";

    #[test]
    fn only_binding_limits_are_reported() {
        for (check, verdict, says) in [
            (memlock(LIMITS, false), Verdict::Ok, "8192 KiB"),
            (memlock(LIMITS, true), Verdict::Warning, "8192 KiB"),
            (memlock("", true), Verdict::Ok, "not limited"),
            (descriptors(LIMITS, false, 8), Verdict::Warning, "about 49 PEs"),
            (descriptors(LIMITS, false, 1), Verdict::Ok, "about 224 PEs"),
            (descriptors(LIMITS, true, 8), Verdict::Ok, "RDMA needs few"),
            (cores_for(16, 8), Verdict::Ok, ""),
            (cores_for(15, 8), Verdict::Warning, "8 GPUs"),
            (cores_for(4, 0), Verdict::Ok, ""),
            (cores_for(2, 0), Verdict::Note, ""),
        ] {
            assert!(check.verdict == verdict && check.reason.contains(says), "{check:?}");
        }
    }

    #[test]
    fn named_interface_must_exist() {
        let mut all = ["lo", "docker0", "eth0", "down0"].map(|name| Interface {
            name: name.to_owned(),
            address: std::net::IpAddr::from([192, 0, 2, 1]),
            loopback: name == "lo",
            running: name != "down0",
            last_resort: false,
        });
        for (from, to, named, verdict) in [
            (0, 4, "eth", Verdict::Ok),
            (0, 4, "=eth0", Verdict::Ok),
            (0, 4, "=eth", Verdict::Warning),
            (0, 4, "down0", Verdict::Warning),
            (0, 4, "^lo,docker", Verdict::Ok),
            (0, 4, "", Verdict::Warning),
            (2, 4, "", Verdict::Ok),
            (0, 1, "", Verdict::Note),
        ] {
            assert_eq!(bootstrap(&all[from..to], named).verdict, verdict, "{named}");
        }
        assert_eq!(loopback(&all[..1]).verdict, Verdict::Ok);
        all[0].running = false;
        assert_eq!(loopback(&all).verdict, Verdict::Error);
    }

    #[test]
    fn little_free_shared_memory_is_told() {
        let mounts = "shm /dev/shm tmpfs rw,size=1g 0 0\n";
        let verdict = |mounts, free| shared_memory(mounts, free).verdict;
        assert_eq!(verdict(mounts, Some(64 << 20)), Verdict::Warning);
        assert_eq!(verdict(mounts, Some(1 << 30)), Verdict::Ok);
        assert_eq!((verdict(mounts, None), verdict("", Some(0))), (Verdict::Note, Verdict::Note));
    }

    #[test]
    fn leftovers_of_ended_jobs_are_recognised() {
        let ours = "4711:0:1 4711-7:0:1 fi_shm_4711:0:1 4711_0_2 nvshmem-shm-4711-x nlf-heap-4711";
        for name in ours.split(' ') {
            assert_eq!(maker(name, "7"), Some(4711), "{name}");
        }
        for name in "4711 4711-8:0:1 sem.4711 pulse-shm-4711 PostgreSQL.4711 x:y:z".split(' ') {
            assert_eq!(maker(name, "7"), None, "{name}");
        }
        let directory = test_support::scratch::Scratch::new();
        for name in ["4711:0:1", "4712:0:1", "others-4711", "nvshmem-4711/file"] {
            directory.write(name, "");
        }
        let check = left_behind(&directory, "7", &|pid| pid == 4712);
        assert_eq!(check.details, [directory.join("4711:0:1").display().to_string()]);
        assert_eq!(left_behind(&directory, "7", &|_| true).verdict, Verdict::Ok);
    }
}
