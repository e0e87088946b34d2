//! The host: limits, cores, the network that PEs meet on, shared memory.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use ofi::Interface;

use super::Check;
use crate::info::Info;

pub(super) fn checks(info: &Info) -> Vec<Check> {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let fabric = info.fabric.clone().unwrap_or_default();
    let rdma = fabric.across_hosts.rails.iter().any(|rail| rail.pci.is_some());
    let gpus = info.gpus.as_ref().map_or(0, |gpus| gpus.devices.len());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let shm = Path::new("/dev/shm");
    let namespace = ofi::pid_namespace().to_string();
    vec![
        memlock(&limits, rdma),
        descriptors(&limits, rdma, fabric.across_hosts.rails.len().max(1)),
        cores_for(cores, gpus),
        bootstrap(&Interface::all(), env::var("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME").ok().as_deref()),
        loopback(&Interface::all()),
        shared_memory(
            &fs::read_to_string("/proc/self/mounts").unwrap_or_default(),
            ofi::free_bytes(),
        ),
        left_behind(shm, &namespace, &|pid| Path::new("/proc").join(pid.to_string()).exists()),
    ]
}

fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}

fn memlock(limits: &str, rdma: bool) -> Check {
    const ID: &str = "memlock";
    let Some(bytes) = soft_limit(limits, "Max locked memory") else {
        return Check::ok(ID, "memory that may be locked is not limited");
    };
    let reason = format!("{} KiB of memory may be locked", bytes >> 10);
    if rdma {
        let reason =
            format!("{reason}, and NICs lock all that is registered, the whole symmetric heap");
        return Check::warning(
            ID,
            reason,
            "ulimit -l unlimited, LimitMEMLOCK=infinity for services, --ulimit memlock=-1 for containers",
        );
    }
    Check::ok(ID, format!("{reason}; no NIC here that locks it is used"))
}

const OTHER_DESCRIPTORS: u64 = 128;
const USUAL_PES: u64 = 64;

fn descriptors(limits: &str, rdma: bool, rails: usize) -> Check {
    const ID: &str = "descriptors";
    let Some(limit) = soft_limit(limits, "Max open files") else {
        return Check::ok(ID, "open files are not limited");
    };
    if rdma {
        return Check::ok(ID, format!("{limit} files may be open; RDMA needs few"));
    }
    // Over sockets, each PE has connections of every rail and of the host lane to each other, in
    // either direction.
    let pes = limit.saturating_sub(OTHER_DESCRIPTORS) / (2 * (rails as u64 + 1));
    let reason =
        format!("{limit} files may be open, enough for jobs of about {pes} PEs over sockets");
    if pes < USUAL_PES {
        return Check::warning(
            ID,
            reason,
            "ulimit -n 65536, LimitNOFILE= for services, --ulimit nofile= for containers",
        );
    }
    Check::ok(ID, reason)
}

fn cores_for(cores: usize, gpus: usize) -> Check {
    const ID: &str = "cores";
    // The program's thread and NVSHMEM's proxy thread, which is always awake.
    let wanted = 2 * gpus;
    let reason = format!("this process may use {cores} cores");
    if cores < wanted {
        return Check::warning(
            ID,
            format!("{reason}; a PE on each of {gpus} GPUs keeps two busy"),
            "give the job more cores (srun --cpus-per-task, cgroups), or start fewer PEs; idle proxy threads give theirs up \
             (NVSHMEM_LIBFABRIC_YIELD)",
        );
    }
    if gpus == 0 && cores < 4 {
        return Check::note(
            ID,
            format!("{reason}; two PEs on this host want four, and share these"),
        );
    }
    Check::ok(ID, format!("{reason}; a PE wants two"))
}

fn bootstrap(interfaces: &[Interface], named: Option<&str>) -> Check {
    const ID: &str = "bootstrap-interface";
    const NAME: &str = "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";
    let describe = |interface: &Interface| format!("{} ({})", interface.name, interface.address);
    let there: Vec<&Interface> = interfaces.iter().filter(|interface| interface.running).collect();
    let details: Vec<String> = there.iter().map(|interface| describe(interface)).collect();
    let named = named.unwrap_or_default().trim();
    if !named.is_empty() {
        // As in NCCL, from which it comes: names begin with one of these, or '=' is in front for
        // whole names, '^' for all others.
        let (list, others) = match named.strip_prefix('^') {
            Some(list) => (list, true),
            None => (named, false),
        };
        let (list, whole) = match list.strip_prefix('=') {
            Some(list) => (list, true),
            None => (list, false),
        };
        let fits = |interface: &&&Interface| {
            let is = list.split(',').any(|name| {
                if whole { interface.name == name } else { interface.name.starts_with(name) }
            });
            is != others
        };
        return match there.iter().find(fits) {
            Some(interface) => Check::ok(ID, format!("{NAME}={named} is {}", describe(interface))),
            None => Check::warning(
                ID,
                format!(
                    "{NAME}={named} is no interface that is up, so PEs do not find one another"
                ),
                "name one of these, or unset it",
            )
            .details(details),
        };
    }
    let outside = there.iter().find(|interface| !interface.loopback);
    match outside {
        None => {
            Check::note(ID, "only loopback is up: PEs of this host find one another, and no others")
                .details(details)
        }
        Some(first) if Interface::is_virtual_bridge(&first.name) => Check::warning(
            ID,
            format!(
                "the first is {}, which leads to this host's containers alone",
                describe(first)
            ),
            format!("name the right one, such as {NAME}=eth0"),
        )
        .details(details),
        Some(first) => Check::ok(ID, format!("the first is {}", describe(first))).details(details),
    }
}

const LEAST_SHM: u64 = 256 << 20;

/// `free`: bytes that can still be written there.
fn shared_memory(mounts: &str, free: Option<u64>) -> Check {
    const ID: &str = "shared-memory";
    // What was mounted last is what programs see.
    if !mounts.lines().any(|line| line.split(' ').nth(1) == Some("/dev/shm")) {
        return Check::note(
            ID,
            "/dev/shm is no file system of its own; the provider shm keeps its files there",
        );
    }
    match free {
        Some(bytes) if bytes < LEAST_SHM => Check::warning(
            ID,
            format!(
                "/dev/shm has {} MiB left; the provider shm, and NVSHMEM on one host, want more",
                bytes >> 20
            ),
            "--shm-size=1g for containers; remove files of processes that have ended",
        ),
        Some(bytes) => Check::ok(ID, format!("/dev/shm has {} MiB left", bytes >> 20)),
        None => Check::note(ID, "how much of /dev/shm is free cannot be told"),
    }
}

fn loopback(interfaces: &[Interface]) -> Check {
    const ID: &str = "loopback-interface";
    if interfaces.iter().any(|interface| interface.loopback && interface.running) {
        return Check::ok(ID, "it is up");
    }
    Check::error(
        ID,
        "no loopback interface is up, and PEs of this host find one another by it",
        "ip link set lo up",
    )
}

pub(super) const LEFT_BEHIND: &str = "left-behind";

fn left_behind(directory: &Path, namespace: &str, lives: &dyn Fn(u32) -> bool) -> Check {
    const ID: &str = LEFT_BEHIND;
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut dead = BTreeSet::new();
    let mut bytes = 0;
    for entry in entries {
        // Directories are not of processes.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if maker(&name, namespace).is_some_and(|pid| !lives(pid)) {
            bytes += entry.metadata().map_or(0, |metadata| 512 * metadata.blocks());
            dead.insert(name);
        }
    }
    if dead.is_empty() {
        return Check::ok(ID, format!("nothing of ended jobs is in {}", directory.display()));
    }
    Check::warning(
        ID,
        format!("{} has {} files of processes that have ended, {} MiB", directory.display(), dead.len(), bytes >> 20),
        "when no job runs here: rm them; they take memory, and may be in the way of processes that get the same number",
    )
    .details(dead.into_iter().take(20).map(|name| directory.join(name).display().to_string()).collect())
}

/// The process of a file by its name, unless that is of another PID namespace.
fn maker(name: &str, namespace: &str) -> Option<u32> {
    let numbers: Vec<u32> = name
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    // libfabric's shm: PID:UID:NUMBER, with or without something in front.
    let parts: Vec<&str> =
        name.rsplit("fi_shm_").next().unwrap_or(name).split([':', '_']).collect();
    // The transport has the number of the PID namespace behind that of the process.
    let process = |part: &str| {
        part.split_once('-').map_or(plain(part), |(pid, of)| plain(pid) && of == namespace)
    };
    let libfabric = parts.len() >= 3 && process(parts[0]) && plain(parts[1]) && plain(parts[2]);
    let named = ["nvshmem", "fi_shm", "nlf-"].iter().any(|word| name.contains(word));
    if libfabric || named { numbers.first().copied() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max open files            1024                 1048576              files     \n\
         Max locked memory         8388608              unlimited            bytes     \n\
         Max cpu time              unlimited            unlimited            seconds   \n";

    #[test]
    fn only_binding_limits_are_reported() {
        assert_eq!(memlock(LIMITS, false).verdict, Verdict::Ok);
        let locked = memlock(LIMITS, true);
        assert!(
            locked.verdict == Verdict::Warning && locked.reason.contains("8192 KiB"),
            "{locked:?}"
        );
        assert_eq!(memlock("", true).verdict, Verdict::Ok);
        let few = descriptors(LIMITS, false, 8);
        assert!(few.verdict == Verdict::Warning && few.reason.contains("about 49 PEs"), "{few:?}");
        assert_eq!(descriptors(LIMITS, false, 1).verdict, Verdict::Ok);
        assert_eq!(descriptors(LIMITS, true, 8).verdict, Verdict::Ok);
    }

    #[test]
    fn cores_are_counted_by_gpu() {
        let verdict = |cores, gpus| cores_for(cores, gpus).verdict;
        assert_eq!((verdict(16, 8), verdict(15, 8)), (Verdict::Ok, Verdict::Warning));
        assert_eq!((verdict(4, 0), verdict(2, 0)), (Verdict::Ok, Verdict::Note));
    }

    #[test]
    fn named_interface_must_exist() {
        let interface = |name: &str, loopback| Interface {
            name: name.to_owned(),
            address: std::net::IpAddr::from([192, 0, 2, 1]),
            loopback,
            running: name != "down0",
        };
        let all = [
            interface("lo", true),
            interface("docker0", false),
            interface("eth0", false),
            interface("down0", false),
        ];
        let verdict = |named| bootstrap(&all, named).verdict;
        assert_eq!((verdict(Some("eth")), verdict(Some("=eth0"))), (Verdict::Ok, Verdict::Ok));
        assert_eq!(
            (verdict(Some("=eth")), verdict(Some("down0"))),
            (Verdict::Warning, Verdict::Warning)
        );
        assert_eq!(verdict(Some("^lo,docker")), Verdict::Ok);
        assert_eq!((verdict(None), verdict(Some(""))), (Verdict::Warning, Verdict::Warning));
        assert_eq!(bootstrap(&all[2..], None).verdict, Verdict::Ok);
        assert_eq!(bootstrap(&all[..1], None).verdict, Verdict::Note);
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
    fn loopback_has_to_be_up() {
        let lo = |running| Interface {
            name: String::from("lo"),
            address: std::net::IpAddr::from([127, 0, 0, 1]),
            loopback: true,
            running,
        };
        assert_eq!(loopback(&[lo(true)]).verdict, Verdict::Ok);
        assert_eq!(loopback(&[lo(false)]).verdict, Verdict::Error);
    }

    #[test]
    fn leftovers_of_ended_jobs_are_recognised() {
        let of = [
            "4711:0:1",
            "4711-7:0:1",
            "fi_shm_4711:0:1",
            "4711_0_2",
            "nvshmem-shm-4711-x",
            "nlf-heap-4711",
        ];
        let maker = |name| maker(name, "7");
        assert!(of.iter().all(|name| maker(name) == Some(4711)), "{:?}", of.map(maker));
        for other in
            ["4711", "4711-8:0:1", "sem.4711", "pulse-shm-4711", "PostgreSQL.4711", "x:y:z"]
        {
            assert_eq!(maker(other), None, "{other}");
        }
        let scratch = launcher::PrivateDir::new("tool-shm").unwrap();
        let directory = scratch.path();
        for name in ["4711:0:1", "4712:0:1", "others-4711"] {
            fs::write(directory.join(name), "").unwrap();
        }
        fs::create_dir_all(directory.join("nvshmem-4711")).unwrap();
        let check = left_behind(directory, "7", &|pid| pid == 4712);
        let clean = left_behind(directory, "7", &|_| true);
        assert_eq!((check.verdict, clean.verdict), (Verdict::Warning, Verdict::Ok));
        assert_eq!(check.details, [directory.join("4711:0:1").display().to_string()]);
    }
}
