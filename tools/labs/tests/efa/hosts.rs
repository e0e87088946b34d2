//! PEs that share the NICs of a host, each with a GPU that is near to some: the NICs' own counters
//! say which are used.

use libtest_mimic::Trial;
use nvshmem_sim::{BoxError, Job, Pattern};
use test_support::topology::{also_at, lay_out};

use super::{Lab, Library, counted, on_device};
use crate::job::{job, run, says};

/// Puts of each PE to each other one, and their bytes.
const PUTS: u64 = 32;
const BYTES: u64 = 16 << 10;

const NICS: u8 = 8;
/// The GPU of each PE, by its number in `tests/data/topology/p5-32-nics.txt`, the NICs that the PE
/// is to use, and how far they are. The last GPU is on the socket without a NIC.
const PES: [(u32, std::ops::Range<usize>, &str); 3] =
    [(0, 0..4, "PIX"), (1, 4..8, "PIX"), (7, 0..8, "SYS")];

pub(super) fn trial() -> Trial {
    super::trial("nics_near_each_gpu", Library::Second, |lab| {
        let job = on_device(job("spread", PES.len() as u32)).heap(32 << 20, 4 << 20);
        let job = lab.on(job, "p5", NICS, "auto").leaves_nics();
        let root = lab.dir.path().join("sys");
        let devices = lay_out("p5-32-nics", &root);
        let address = |name: String| {
            let found = devices.iter().find(|(known, _)| *known == name);
            found.map(|(_, address)| address.clone()).ok_or(name)
        };
        for (pe, (gpu, ..)) in PES.iter().enumerate() {
            // Where the driver's stand-in says that it is.
            also_at(&root, &address(format!("gpu{gpu}"))?, &format!("fafe:{pe:02x}:00.0"));
        }
        // Bytes are to go over NICs, as between hosts.
        let job = job
            .env("FI_EFA_ENABLE_SHM_TRANSFER", 0)
            .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never")
            .env("NVSHMEM_LIBFABRIC_DEBUG", "share_bounce=0");
        let report = run(Lab::on_one_host(job))?;
        for (pe, (_, own, distance)) in report.pes.iter().zip(&PES) {
            let text = pe.text();
            says(&text, "; NICs this PE's share of the nearest: ")?;
            for nic in 0..usize::from(NICS) {
                let name = kernel_name(&address(format!("nic{nic}"))?);
                let rail = format!(" ({name}): ");
                let posts = |line: &str| line.contains(&rail) && !line.contains(": 0 segments");
                let used =
                    text.lines().filter(|line| line.contains(" proxy lane, rail ")).any(posts);
                let is_told = text.contains(&format!("{name} ({distance})"));
                if used != own.contains(&nic) || used && !is_told {
                    let why = format!("PE {}: {name} is used: {used}", pe.pe);
                    return Err(format!("{why}; its own are {own:?}:\n{text}").into());
                }
            }
        }
        // Who ends last knows what all have sent.
        let all = report.pes.iter().map(|pe| counted(&pe.text(), " bytes").len()).max();
        if all == Some(usize::from(NICS)) { Ok(()) } else { Err(format!("{all:?} NICs").into()) }
    })
}

pub(crate) fn spread(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe, job.n_pes());
    let host = job.init()?;
    let from = host.alloc(PUTS * BYTES, 4096)?;
    let to = host.alloc(u64::from(n) * PUTS * BYTES, 4096)?;
    let area = |pe: u32| to.plus(u64::from(pe) * PUTS * BYTES);
    host.local(from, PUTS * BYTES)?.fill(Pattern::of(&[u64::from(me)]), 0)?;
    host.barrier()?;
    for put in 0..PUTS {
        for pe in (0..n).filter(|pe| *pe != me) {
            host.proxy.put(pe, area(me).plus(put * BYTES), from.plus(put * BYTES), BYTES)?;
        }
        // Puts from memory of devices that wait together leave together, by one rail.
        host.proxy.quiet()?;
    }
    host.barrier()?;
    for pe in (0..n).filter(|pe| *pe != me) {
        host.local(area(pe), PUTS * BYTES)?.verify(Pattern::of(&[u64::from(pe)]), 0)?;
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

fn kernel_name(address: &str) -> String {
    let number = |from: usize| u8::from_str_radix(&address[from..from + 2], 16).unwrap_or(0);
    format!("rdmap{}s{}", number(5), number(8))
}
