//! PEs that share the NICs of a host, each with a GPU that is near to some: the NICs' own counters
//! say which are used.

use std::collections::BTreeMap;
use std::ops::Range;

use libtest_mimic::Trial;
use nvshmem_sim::{BoxError, Job, Layout, Pattern, PeReport};
use test_support::topology::{also_at, lay_out};

use super::{Lab, Library, counted, on_device, says, trial};
use crate::fabric::job;
use crate::matrix::run;

/// Puts of each PE to each other one, and their bytes: such as the NIC writes, and such as are
/// messages.
const PUTS: u64 = 32;
const BYTES: u64 = 16 << 10;
const SMALL_PUTS: u64 = 512;
const SMALL: u64 = 64;

/// PEs of one host.
struct Host {
    name: &'static str,
    /// The machine in `tests/data/topology`, the laboratory's persona with the same NICs, and how
    /// many of these are there.
    machine: &'static str,
    persona: &'static str,
    nics: u8,
    /// The GPU of each PE, by its number in the machine.
    gpus: &'static [u32],
    /// The NICs that each PE is to use, and how far they are.
    own: &'static [Range<usize>],
    distances: &'static [&'static str],
    /// Whether each of the NICs has as many PEs.
    evenly: bool,
}

impl Host {
    fn distance(&self, pe: u32) -> &'static str {
        self.distances[pe as usize % self.distances.len()]
    }
}

/// Who has decided, as the log says it.
const DECIDED: &str = "this PE's share of the nearest";

const HOSTS: [Host; 4] = [
    Host {
        name: "eight_gpus_32_nics",
        machine: "p5-32-nics",
        persona: "p5",
        nics: 32,
        gpus: &[0, 1, 2, 3, 4, 5, 6, 7],
        own: &[0..4, 4..8, 8..12, 12..16, 16..20, 20..24, 24..28, 28..32],
        distances: &["PIX"],
        evenly: true,
    },
    Host {
        name: "eight_gpus_four_nics",
        machine: "p4d-4-nics",
        persona: "p4d",
        nics: 4,
        gpus: &[0, 1, 2, 3, 4, 5, 6, 7],
        own: &[0..1, 0..1, 1..2, 1..2, 2..3, 2..3, 3..4, 3..4],
        distances: &["PHB"],
        evenly: true,
    },
    // The NICs of its own GPU are those of the other PE as well.
    Host {
        name: "two_pes_on_one_gpu",
        machine: "p5-32-nics",
        persona: "p5",
        nics: 8,
        gpus: &[1, 1],
        own: &[4..6, 6..8],
        distances: &["PIX"],
        evenly: true,
    },
    // The second PE's GPU is on the other socket, where no NIC is: all are as far.
    Host {
        name: "near_and_far",
        machine: "p5-32-nics",
        persona: "p5",
        nics: 8,
        gpus: &[0, 7],
        own: &[0..4, 0..8],
        distances: &["PIX", "SYS"],
        evenly: false,
    },
];

pub(super) fn trials(all: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for host in HOSTS.into_iter().filter(|host| all || host.gpus.len() == 2) {
        trials.push(trial(format!("nics_by_gpu_{}", host.name), Library::Second, move |lab| {
            let n_pes = host.gpus.len() as u32;
            let job = on_device(job("spread", n_pes, Layout::V7)).heap(32 << 20, 4 << 20);
            // As it is with a libfabric without CUDA.
            let job = job.env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never");
            let job = lab.on(job, host.persona, host.nics, "auto").leaves_nics();
            let root = lab.dir.path().join("sys");
            let devices = lay_out(host.machine, &root);
            for (pe, gpu) in host.gpus.iter().enumerate() {
                let name = format!("gpu{gpu}");
                let (_, address) = devices.iter().find(|(known, _)| *known == name).ok_or(name)?;
                // Where the driver's stand-in says that it is.
                also_at(&root, address, &format!("fafe:{pe:02x}:00.0"));
            }
            // Bytes are to go over NICs, as between hosts.
            let job = job
                .env("FI_EFA_ENABLE_SHM_TRANSFER", 0)
                .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never")
                .env("NVSHMEM_LIBFABRIC_DEBUG", "share_bounce=0");
            let report = run(Lab::on_one_host(job))?;
            let nics: Vec<String> = (0..usize::from(host.nics))
                .map(|nic| {
                    let name = format!("nic{nic}");
                    let found = devices.iter().find(|(known, _)| *known == name);
                    found.map(|(_, address)| kernel_name(address)).ok_or(name)
                })
                .collect::<Result<_, _>>()?;
            for (pe, own) in report.pes.iter().zip(host.own) {
                let text = pe.text();
                says(&text, &format!("; NICs {DECIDED}: "))?;
                for (nic, name) in nics.iter().enumerate() {
                    let far = format!("{name} ({})", host.distance(pe.pe));
                    let rail = format!(" ({name}): ");
                    let posts = |line: &str| line.contains(&rail) && !line.contains(": 0 segments");
                    let used =
                        text.lines().filter(|line| line.contains(" proxy lane, rail ")).any(posts);
                    if used != own.contains(&nic) || used && !text.contains(&far) {
                        let why = format!("PE {}: {name} is used: {used}", pe.pe);
                        return Err(format!("{why}; its own are {own:?}:\n{text}").into());
                    }
                }
            }
            let carried = of_host(&report.pes, " bytes");
            let sends = of_host(&report.pes, " sends");
            let is_own = |nic: usize| host.own.iter().any(|own| own.contains(&nic));
            let shared = (0..nics.len()).filter(|nic| is_own(*nic)).count() as u64;
            let share = sends.values().sum::<u64>() / shared;
            for (nic, name) in nics.iter().enumerate() {
                let of = |counts: &BTreeMap<String, u64>| counts.get(name).copied().unwrap_or(0);
                let is_right = if is_own(nic) {
                    (share / 2..share * 2).contains(&of(&sends)) || !host.evenly
                } else {
                    of(&carried) == 0
                };
                if !is_right {
                    return Err(format!("{name}: {carried:?} bytes, {sends:?} messages").into());
                }
            }
            Ok(())
        }));
    }
    trials
}

/// What all PEs of the host have sent, as its NICs have counted it; who ends last knows all of it.
fn of_host(pes: &[PeReport], kind: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (name, count) in pes.iter().flat_map(|pe| counted(&pe.text(), kind)) {
        let known = all.entry(name).or_insert(0);
        *known = count.max(*known);
    }
    all
}

/// Puts that no rail is better for than another, from each PE to each other one.
pub(crate) fn spread(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let from = host.alloc(PUTS * BYTES, 4096)?;
    let to = host.alloc(u64::from(n) * PUTS * BYTES, 4096)?;
    let area = |pe: u32| to.plus(u64::from(pe) * PUTS * BYTES);
    host.local(from, PUTS * BYTES)?.fill(Pattern::of(&[u64::from(me)]), 0)?;
    host.barrier()?;
    for (puts, bytes) in [(PUTS, BYTES), (SMALL_PUTS, SMALL)] {
        for (put, pe) in (0..puts).flat_map(|put| (0..n).map(move |pe| (put, pe))) {
            if pe != me {
                let at = put * bytes;
                host.proxy().put(pe, area(me).plus(at), from.plus(at), bytes)?;
            }
            // Of memory of devices, puts that wait together leave together, by one rail.
            if bytes == BYTES {
                host.proxy().quiet()?;
            }
        }
    }
    host.barrier()?;
    for pe in (0..n).filter(|pe| *pe != me) {
        host.local(area(pe), PUTS * BYTES)?.verify(Pattern::of(&[u64::from(pe)]), 0)?;
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

/// What the kernel calls the NIC at an address.
fn kernel_name(address: &str) -> String {
    let number = |from: usize| u8::from_str_radix(&address[from..from + 2], 16).unwrap_or(0);
    format!("rdmap{}s{}", number(5), number(8))
}
