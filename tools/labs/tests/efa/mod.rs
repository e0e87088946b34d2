//! The plugin on emulated EFA NICs (`tools/labs/efa`), by libfabric's own efa provider.

pub(crate) mod device;
pub(crate) mod hosts;
mod refused;
pub(crate) mod signals;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use launcher::PrivateDir;
use libfabric_sys::Version;
use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, MemoryKind, PeReport};
use test_support::built::fake_cuda_dir;
use test_support::needs::{self, Need, is_set, libfabric2};
use test_support::seeds::draw;

use crate::job::{SCENARIOS, cases, cudart_names, efa_names, fails, job, run, says};

const PERSONAS: [&str; 4] = ["p5", "p4d", "p5en", "p6"];

const FABRICS: [&str; 2] = ["auto", "efa"];

const REFUSED: &str = "fi_mr_regattr failed: rail rdmap";

const SOFTWARE: &str =
    "take the target's processor and its proxy thread, as these NICs do not write";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Library {
    Second,
    /// The same, if it has fabric efa-direct on this machine.
    Direct(&'static str),
    /// The same, from this version on, and why.
    Since(Version, &'static str),
    System,
    /// One that was built with CUDA.
    Cuda,
}

impl Library {
    const ALL: [Self; 2] = [Self::Second, Self::System];

    fn name(self) -> &'static str {
        match self {
            Self::Second | Self::Direct(_) | Self::Since(..) => "second_libfabric",
            Self::System => "system_libfabric",
            Self::Cuda => "libfabric_with_cuda",
        }
    }

    fn find(self) -> Need<Option<PathBuf>> {
        reaches_other_processes()?;
        match self {
            Self::Second => libfabric2().map(Some),
            Self::Direct(persona) => {
                let library = libfabric2()?;
                let found = version(&library)?;
                match direct_since(persona).is_some_and(|since| found >= since) {
                    true => Ok(Some(library)),
                    false => Err(format!("libfabric {found} has no efa-direct for a {persona}")),
                }
            }
            Self::Since(since, why) => {
                let library = libfabric2()?;
                let found = version(&library)?;
                if found < since {
                    return Err(format!("libfabric {found}, before {since}: {why}"));
                }
                Ok(Some(library))
            }
            Self::System => system_has_efa().map(|()| None),
            Self::Cuda => needs::named_by("NVSHMEM_TEST_LIBFABRIC_CUDA").map(Some),
        }
    }
}

/// The libfabric from which on fabric efa-direct is there on a machine: before 2.4 it wants NICs
/// that know unsolicited receives.
fn direct_since(persona: &str) -> Option<Version> {
    match persona {
        "p4d" => None,
        "p5" => Some(Version::new(2, 4)),
        _ => Some(Version::new(2, 1)),
    }
}

fn version(library: &Path) -> Need<Version> {
    // SAFETY: libfabric sets nothing up before it is asked for something, and the function is as
    // its manual has it.
    let packed = unsafe {
        libloading::Library::new(library)
            .and_then(|library| Ok(library.get::<extern "C" fn() -> u32>(b"fi_version")?()))
    };
    let packed = packed.map_err(|error| format!("{}: {error}", library.display()))?;
    Ok(Version::from_packed(packed))
}

fn system_has_efa() -> Need<()> {
    // SAFETY: libfabric sets nothing up before it is asked for something.
    let library = unsafe { libloading::Library::new("libfabric.so.1") };
    let _library = library.map_err(|error| format!("no libfabric: {error}"))?;
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let path = paths.into_iter().find(|path| path.contains("/libfabric.so"));
    let bytes = path.map(fs::read).and_then(Result::ok).unwrap_or_default();
    let needed = b"libefa.so.1";
    if bytes.windows(needed.len()).any(|window| window == needed) {
        Ok(())
    } else {
        Err(String::from("the system's libfabric is without the efa provider"))
    }
}

/// Whether a process may read another's memory, as the emulated NICs do. Where it may not, it may
/// not read its own by that call either.
fn reaches_other_processes() -> Need<()> {
    let (from, mut to) = (1_u8, 0_u8);
    let part = |at: *mut u8| libc::iovec { iov_base: at.cast(), iov_len: 1 };
    let (local, remote) = (part(&raw mut to), part((&raw const from).cast_mut()));
    // SAFETY: the call copies one byte of this process to another, both of them ours.
    match unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) } {
        1 => Ok(()),
        _ => {
            let why = io::Error::last_os_error();
            Err(format!("no process here may reach another's memory: {why}"))
        }
    }
}

struct Lab {
    dir: PrivateDir,
    library: Option<PathBuf>,
    /// Of the order in which NICs do things.
    seed: u32,
}

impl Lab {
    fn new(library: Option<PathBuf>) -> Self {
        let dir = PrivateDir::new("efa-lab").expect("a directory for NICs");
        let given = std::env::var("NVSHMEM_TEST_SEED").ok().and_then(|text| text.parse().ok());
        Self { dir, library, seed: given.unwrap_or_else(draw) }
    }

    fn on_one_host(job: JobSettings) -> JobSettings {
        let all = 0..job.n_pes;
        let job = job.pes_per_node(all.end);
        all.fold(job, |job, pe| job.env_of_pe(pe, "EFA_LAB_HOST", 1))
    }

    fn on(&self, job: JobSettings, persona: &str, nics: u8, fabric: &str) -> JobSettings {
        let job = job
            .library_path(efa_names())
            .env("EFA_LAB_DIR", self.dir.path().display())
            .env("EFA_LAB_PERSONA", persona)
            .env("EFA_LAB_NICS", nics)
            .env("EFA_LAB_SEED", self.seed)
            .env("SYSFS_PATH", self.dir.path().join("sys").display())
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "efa");
        let job = if fabric == "auto" { job } else { job.env("NVSHMEM_LIBFABRIC_FABRIC", fabric) };
        // Each is a host of its own, by a number that is the same in every run.
        let hosts = 0..job.n_pes;
        let job =
            hosts.fold(job.pes_per_node(1), |job, pe| job.env_of_pe(pe, "EFA_LAB_HOST", pe + 1));
        match &self.library {
            Some(library) => job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.display()),
            None => job,
        }
    }
}

fn trial(
    name: impl std::fmt::Display,
    library: Library,
    run: impl FnOnce(&Lab) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = format!("efa::{name}");
    needs::trial(name, library.find(), move |library| {
        let lab = Lab::new(library);
        let told = |failed: Failed| {
            let reason = failed.message().unwrap_or_default();
            Failed::from(format!("with NVSHMEM_TEST_SEED={}: {reason}", lab.seed))
        };
        run(&lab).map_err(told)
    })
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = everywhere();
    trials.extend(by_machine());
    trials.extend(on_both_fabrics());
    trials.extend(staged());
    trials.push(hosts::trial());
    trials.extend(refused::trials());
    trials.extend(signals::trials());
    trials.extend(device::trials());
    trials
}

const P5EN: Library = Library::Direct("p5en");

const SHAPES: [(u32, u8); 4] = [(2, 2), (2, 1), (4, 4), (2, 8)];

fn everywhere() -> Vec<Trial> {
    let sizes = [PERSONAS.len(), FABRICS.len(), Library::ALL.len(), SHAPES.len(), SCENARIOS.len()];
    let trial_of = |[persona, fabric, library, shape, scenario]: [usize; 5]| {
        let (persona, fabric) = (PERSONAS[persona], FABRICS[fabric]);
        let (library, (n_pes, nics)) = (Library::ALL[library], SHAPES[shape]);
        let scenario = SCENARIOS[scenario];
        // Not all machines have so many.
        let nics = if persona == "p4d" { nics.min(4) } else { nics };
        let name =
            format!("{scenario}_{persona}_{fabric}_{}_{n_pes}_pes_{nics}_nics", library.name());
        trial(name, library, move |lab| {
            let job = job(scenario, n_pes).heap(64 << 20, 1 << 20);
            let job = job.param("rounds", 60).param("most", 300_000).param("operations", 4_000);
            let report = run(lab.on(job, persona, nics, fabric))?;
            for pe in &report.pes {
                let text = pe.text();
                let wanted = if fabric == "auto" { best(&text, persona) } else { fabric };
                says(&text, &format!("provider efa: fabric {wanted}: "))?;
            }
            Ok(())
        })
    };
    cases(sizes).map(trial_of).collect()
}

fn by_machine() -> Vec<Trial> {
    vec![
        trial("is_found_without_being_named", P5EN, |lab| {
            let job = lab.on(job("connect", 2), "p5en", 2, "auto");
            for pe in run(job.env("NVSHMEM_LIBFABRIC_PROVIDER", "auto"))?.pes {
                says(&pe.text(), "provider efa: fabric efa-direct: ")?;
            }
            Ok(())
        }),
        trial("nics_of_old_read_by_themselves", Library::Second, |lab| {
            // A p4d's NICs cannot write. Asked for an API before 1.18, the provider leaves their
            // reads unused as well.
            let job = job("signals", 2).heap(64 << 20, 8 << 20);
            let job = job.param("rounds", 20).param("most", 2 << 20);
            let report = run(lab.on(job, "p4d", 2, "auto"))?;
            let reads = |pe: &PeReport| counted(&pe.text(), " reads").into_values().sum::<u64>();
            if report.pes.iter().map(reads).sum::<u64>() == 0 {
                return Err(format!("no NIC has read:\n{report}").into());
            }
            says(&report.pes[0].text(), &format!("{SOFTWARE}: those of p5 and later instances do"))
        }),
        trial("nics_kept_from_writing", Library::Second, |lab| {
            let job = lab.on(job("connect", 2), "p5en", 2, "efa");
            for (by_nics, device_rdma) in [(true, 1), (false, 0)] {
                let job = job.clone().env("FI_EFA_USE_DEVICE_RDMA", device_rdma);
                let report = job.run()?.check()?;
                let text = report.pes[0].text();
                let warned =
                    text.lines().any(|line| line.contains(" WARN ") && line.contains(SOFTWARE));
                if warned == by_nics {
                    return Err(format!("writes by NICs: {by_nics}:\n{text}").into());
                }
            }
            Ok(())
        }),
        // All NICs of a machine at once, more than a PE takes unless it is told to.
        trial("all_nics_of_a_p5", Library::Second, |lab| {
            let job = lab.on(storm().heap(64 << 20, 8 << 20), "p5", 32, "auto");
            let report = run(job.env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", 32))?;
            for pe in &report.pes {
                let written = counted(&pe.text(), " writes");
                let used = written.values().filter(|writes| **writes > 0).count();
                if used != 32 {
                    let told = format!("PE {} has written by {used} NICs: {written:?}", pe.pe);
                    return Err(told.into());
                }
            }
            Ok(())
        }),
    ]
}

fn storm() -> JobSettings {
    job("storm", 2).heap(32 << 20, 4 << 20).param("operations", 4_000)
}

fn on_both_fabrics() -> Vec<Trial> {
    let mut trials = Vec::new();
    for fabric in ["efa-direct", "efa"] {
        let on = fabric.replace('-', "_");
        // A real NIC never says so to those before: they count what they post.
        let busy = "it takes a full send queue for an error";
        let library = if fabric == "efa" { Library::Since(Version::new(2, 1), busy) } else { P5EN };
        trials.push(trial(format!("busy_queues_{on}"), library, move |lab| {
            run(lab.on(storm(), "p5en", 2, fabric).env("EFA_LAB_FAULTS", "busy=50:20")).map(drop)
        }));
        let library = library_of(fabric, "p5en");
        trials.push(trial(format!("memory_that_is_refused_{on}"), library, move |lab| {
            // The first registrations are of the endpoints; this is one of the heap's chunks.
            let job = job("connect", 2).heap(64 << 20, 1 << 20);
            // PEs that fail do not close their endpoints, of which fabric efa's shm would leave
            // files.
            let job = job.env("FI_EFA_ENABLE_SHM_TRANSFER", 0);
            let job = lab.on(job, "p5en", 2, fabric).env_of_pe(1, "EFA_LAB_FAULTS", "register=60");
            fails(&job.grace(Duration::from_secs(30)).run()?, 1, REFUSED)
        }));
        // Two PEs that share the NICs of a host. Fabric efa would leave these for libfabric's shm.
        trials.push(trial(format!("pes_of_one_host_{on}"), library_of(fabric, "p5"), move |lab| {
            let report = run(Lab::on_one_host(lab.on(storm(), "p5", 2, fabric)))?;
            for pe in &report.pes {
                let writes: u64 = counted(&pe.text(), " writes").into_values().sum();
                if writes < 500 {
                    return Err(format!("NICs have written {writes} times:\n{report}").into());
                }
            }
            Ok(())
        }));
        // On a p4d most of what fabric efa sends is of its own protocol. What fails of it belongs
        // to no operation.
        let (persona, at) = if fabric == "efa" { ("p4d", 100) } else { ("p5en", 200) };
        let name = format!("a_nic_that_dies_{on}");
        trials.push(trial(name, library_of(fabric, persona), move |lab| {
            let job = lab.on(storm(), persona, 2, fabric).env("FI_EFA_ENABLE_SHM_TRANSFER", 0);
            // Fabric efa writes by software of the target, whose proxy thread has failed: its peer
            // waits until this.
            let job = job.env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 20);
            let job = job.env_of_pe(0, "EFA_LAB_FAULTS", format!("kill=1:{at}"));
            let report = job.grace(Duration::from_secs(30)).run()?;
            // PE 1 may be the first to see it, and end: then its other NIC is gone as well.
            fails(&report, 0, "rail 1 (rdmap").or_else(|why| {
                let ended = fails(&report, 0, "Unresponsive receiver");
                ended.and_then(|()| fails(&report, 1, "on rail 1 (rdmap")).map_err(|_| why)
            })
        }));
    }
    trials
}

fn staged() -> Vec<Trial> {
    let sizes = [PERSONAS.len(), FABRICS.len(), Library::ALL.len(), SCENARIOS.len()];
    let trial_of = |[persona, fabric, library, scenario]: [usize; 4]| {
        let (persona, fabric) = (PERSONAS[persona], FABRICS[fabric]);
        let (library, scenario) = (Library::ALL[library], SCENARIOS[scenario]);
        let name = format!("staged_{scenario}_{persona}_{fabric}_{}", library.name());
        trial(name, library, move |lab| {
            let job = on_device(job(scenario, 2)).heap(96 << 20, 2 << 20);
            let job = job.param("rounds", 40).param("most", 300_000).param("operations", 4_000);
            // Bytes are to go over NICs, as between hosts.
            let mut job = job.env("NVSHMEM_LIBFABRIC_DEBUG", "share_bounce=0");
            // A libfabric with CUDA has the NICs reach it, unless that is not wanted.
            let reaches = library == Library::Second && is_set("NVSHMEM_TEST_LIBFABRIC_CUDA");
            if reaches {
                job = job.env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never");
            }
            let report = lab.on(job, persona, 2, fabric).run()?.check()?;
            for pe in &report.pes {
                let text = pe.text();
                says(&text, "staged")?;
                // One PE of the host for all.
                let warned = text.matches("do not reach GPU memory").count();
                if warned != usize::from(pe.pe == 0 && !reaches) {
                    return Err(format!("PE {} warns {warned} times:\n{text}", pe.pe).into());
                }
            }
            Ok(())
        })
    };
    cases(sizes).map(trial_of).collect()
}

fn on_device(job: JobSettings) -> JobSettings {
    job.memory(MemoryKind::Device).library_path(fake_cuda_dir()).library_path(cudart_names())
}

fn counted(text: &str, kind: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("efa-lab: ")) {
        let Some((nic, counts)) = line.split_once(": ") else { continue };
        let count = counts.split(", ").find_map(|count| count.strip_suffix(kind)?.parse().ok());
        // A NIC that is opened twice says it twice.
        let known = found.entry(nic.to_owned()).or_insert(0);
        *known = count.unwrap_or(0).max(*known);
    }
    found
}

/// The second libfabric, where it has this fabric for a machine.
fn library_of(fabric: &str, persona: &'static str) -> Library {
    if fabric == "efa-direct" { Library::Direct(persona) } else { Library::Second }
}

fn best(text: &str, persona: &str) -> &'static str {
    let found = text.split("INFO libfabric ").nth(1).and_then(|rest| {
        let (major, minor) = rest.split(' ').next()?.split_once('.')?;
        Some(Version::new(major.parse().ok()?, minor.parse().ok()?))
    });
    match direct_since(persona) {
        Some(since) if found >= Some(since) => "efa-direct",
        _ => "efa",
    }
}
