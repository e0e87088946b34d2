//! PEs in namespaces of their own, as containers are: their bytes are right, or the reason why the
//! job does not start names what they do not share.

use std::ffi::OsString;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{Layout, MemoryKind};
use test_support::full;
use test_support::needs::{self, Need};
use test_support::network::{self, Network};

use crate::counters::counted;
use crate::fabric::DEVICES;
use crate::fabric::Fabric::{self, Rxm, Rxm2, Shm, Shm2, Tcp2};
use crate::peers::connects_nobody;
use crate::staged::device::{is_gpu, job};

/// Each is a bit of a row's number.
const NAMES: [&str; 6] = ["pid", "mount", "ipc", "net", "user", "unlinked"];
const PID: u8 = 1;
const MOUNT: u8 = 2;
const IPC: u8 = 4;
const NET: u8 = 8;
const USER: u8 = 16;
/// A network of nothing but `lo`.
const UNLINKED: u8 = 32;

pub(crate) fn trials() -> Vec<Trial> {
    let all =
        (0..=UNLINKED).flat_map(|set| [Tcp2, Rxm, Rxm2, Shm, Shm2].map(|fabric| (set, fabric)));
    // Containers of a pod; containers with a network each; and what is refused.
    let few = [(PID | MOUNT | IPC, Tcp2), (PID | IPC | NET, Rxm), (MOUNT, Shm), (UNLINKED, Tcp2)];
    let rows = if full() { all.collect() } else { few.to_vec() };
    let trial = |(set, fabric): (u8, Fabric)| {
        let isolated = NAMES.iter().enumerate().filter(|(bit, _)| set >> bit & 1 != 0);
        let isolated: String = isolated.map(|(_, name)| format!("{name}_")).collect();
        let name = format!("staged::namespaces::{isolated}{}", fabric.name());
        needs::trial(name, fabric.library().and_then(|_| possible(set)), move |()| run(set, fabric))
    };
    rows.into_iter().map(trial).collect()
}

/// The command that starts a program in such namespaces, but for the network's.
fn prefix(set: u8) -> Vec<String> {
    let has = |bit| set & bit != 0;
    let mut words: Vec<&str> = Vec::new();
    // Of the first user's, as where something covers a part of /proc the others may not mount it.
    if has(PID) {
        words.extend(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    }
    words.extend(["unshare", "--mount"]);
    words.extend(has(IPC).then_some("--ipc"));
    words.extend(has(USER).then_some("--map-root-user"));
    words.extend(has(UNLINKED).then_some("--net"));
    // Docker's 64 MiB.
    let mount = if has(MOUNT) { "mount -t tmpfs -o size=64m tmpfs /dev/shm && " } else { "" };
    let script = format!("{mount}exec \"$@\"");
    words
        .into_iter()
        .map(String::from)
        .chain(["sh", "-c", &script, "sh"].map(String::from))
        .collect()
}

fn possible(set: u8) -> Need<()> {
    if is_gpu() {
        return Err(String::from("it has the stand-in"));
    }
    if set & NET != 0 {
        network::possible()?;
    }
    let words = prefix(set);
    let tried = Command::new(&words[0]).args(&words[1..]).arg("true").output();
    let made = tried.is_ok_and(|output| output.status.success());
    made.then_some(()).ok_or_else(|| String::from("there can be no such namespaces here"))
}

fn run(set: u8, fabric: Fabric) -> Result<(), Failed> {
    let network = (set & NET != 0).then(|| Network::new(2, 1)).transpose()?;
    let mut job = job(fabric, MemoryKind::DeviceVmm, "same_host", 2, 2, Layout::V7);
    job = job.debug("share_bounce", 1);
    job.env.remove(DEVICES);
    for pe in 0..2 {
        let enter = network.as_ref().map(|of| of.hosts[pe].prefix()).unwrap_or_default();
        let own = prefix(set).into_iter().map(OsString::from);
        job.prefix_of_pe.insert(pe as u32, enter.into_iter().chain(own).collect());
    }
    let shm = ["PE 1 uses libfabric provider \"shm, libfabric", ", /dev/shm "];
    let lo = ["no usable libfabric device", "loopback reaches no other host"];
    let (isolated, parts) =
        if matches!(fabric, Shm | Shm2) { (PID | MOUNT, shm) } else { (UNLINKED, lo) };
    if set & isolated != 0 {
        return connects_nobody(job, &parts);
    }
    let (report, all) = counted(job)?;
    let bytes = |name: &str| -> u64 {
        all.iter().filter_map(|of| of["lanes"][0]["staged"][name].as_u64()).sum()
    };
    // They meet in the network or in /dev/shm.
    let shares = set & (MOUNT | NET) != MOUNT | NET;
    if (bytes("shared") > 0, bytes("by_fabric") > 0) != (shares, !shares) {
        return Err(format!("shared: not {shares}: {all:?}\n{report}").into());
    }
    Ok(())
}
