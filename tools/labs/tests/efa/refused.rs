//! NICs on which something cannot be opened.

use std::time::Duration;

use libfabric_sys::Version;
use libtest_mimic::{Failed, Trial};

use super::{Lab, Library, counted, library_of, trial};
use crate::job::{fails, job, says};

const HIDDEN: &str = "this machine has NICs of efa (rdmap79s0, rdmap80s0, rdmap81s0), and provider tcp is used in its place: ";

const NICS: [&str; 3] = ["rdmap79s0", "rdmap80s0", "rdmap81s0"];

pub(super) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let storm = |lab: &Lab, fabric: &str| {
        let job = job("storm", 3).heap(32 << 20, 4 << 20);
        let job = job.param("operations", 2_000);
        lab.on(job, "p5", 3, fabric).env("FI_EFA_ENABLE_SHM_TRANSFER", 0)
    };
    // A NIC's queue pairs are the rail's, and on the first of the NICs that are there the host
    // lane's.
    let faults = [
        ("domain", "domain={}", "fi_domain failed: Cannot allocate memory"),
        ("endpoint", "pair={}:1", "fi_enable failed: Cannot allocate memory"),
        ("host_lane", "pair={}:2", "host lane: fi_enable failed: Cannot allocate memory"),
    ];
    for fabric in ["efa-direct", "efa"] {
        for (what, fault, reason) in faults {
            let name = format!("a_nic_that_refuses_{what}_{}", fabric.replace('-', "_"));
            // Those before list no NIC at all then: `a_device_that_refuses_hides_all` is how.
            let library = if what == "domain" && fabric == "efa" {
                Library::Since(Version::new(2, 2), "it has a domain on each NIC to list them")
            } else {
                library_of(fabric, "p5")
            };
            trials.push(trial(name, library, move |lab| {
                // No two PEs have the same rails then. Only a first NIC has the host lane.
                let second = if what == "host_lane" { 0 } else { 1 };
                let lacking = [(0, 0), (1, second)];
                let job = lacking.into_iter().fold(storm(lab, fabric), |job, (pe, nic)| {
                    job.env_of_pe(pe, "EFA_LAB_FAULTS", fault.replace("{}", &nic.to_string()))
                });
                let report = job.grace(Duration::from_secs(30)).run()?.check()?;
                for (pe, nic) in lacking {
                    let text = report.pes[pe as usize].text();
                    says(&text, &format!("rail left out: {}: {reason}", NICS[nic]))?;
                    writes_by_others(&text, nic)?;
                }
                Ok(())
            }));
        }
    }
    trials.push(trial("another_nic_for_one_that_refuses", Library::Direct("p5"), move |lab| {
        let job = storm(lab, "efa-direct").env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", 1);
        let job = job.env_of_pe(1, "EFA_LAB_FAULTS", "domain=0");
        let report = job.grace(Duration::from_secs(30)).run()?.check()?;
        let text = report.pes[1].text();
        says(&text, "other NICs are used in place of this PE's own: no rail could be opened:")?;
        says(&text, "rdmap79s0: fi_domain failed: Cannot allocate memory")?;
        writes_by_others(&text, 0)
    }));
    trials.push(trial("a_named_nic_that_refuses", Library::Direct("p5"), move |lab| {
        let job = storm(lab, "efa-direct").env("NVSHMEM_LIBFABRIC_DEVICES", NICS.join(","));
        let job = job.env_of_pe(1, "EFA_LAB_FAULTS", "domain=2");
        let report = job.grace(Duration::from_secs(30)).run()?;
        fails(&report, 1, "NVSHMEM_LIBFABRIC_DEVICES names what cannot be opened")?;
        // Who has all of its NICs hears why the job ends.
        fails(&report, 0, "rdmap81s0: fi_domain failed: Cannot allocate memory")
    }));
    trials.push(trial("a_device_that_refuses_hides_all", Library::Second, move |lab| {
        let job = storm(lab, "auto").env_of_pe(1, "EFA_LAB_FAULTS", "device=1");
        fails(&job.grace(Duration::from_secs(30)).run()?, 1, "one NIC that cannot be opened hides")
    }));
    for fabric in ["efa-direct", "efa"] {
        let on = fabric.replace('-', "_");
        // What a NIC has of each is shared by all that is open on it.
        let library = library_of(fabric, "p5");
        trials.push(trial(format!("no_address_handle_left_{on}"), library, move |lab| {
            let job = storm(lab, fabric).env_of_pe(1, "EFA_LAB_FAULTS", "handles=2");
            let report = job.grace(Duration::from_secs(30)).run()?;
            fails(&report, 1, "fi_av_insert failed: rail rdmap79s0: ")?;
            fails(&report, 1, "max_ah")
        }));
    }
    trials.push(trial("hidden_nics_are_warned_of", Library::Second, |lab| {
        // On one host what is used in its place stays on loopback.
        let job = Lab::on_one_host(lab.on(job("connect", 2), "p5", 3, "auto"));
        let job = job.env("NVSHMEM_LIBFABRIC_PROVIDER", "auto").env("EFA_LAB_FAULTS", "device=1");
        for pe in job.run()?.check()?.pes {
            let text = pe.text();
            let warned = text.lines().any(|line| line.contains(" WARN ") && line.contains(HIDDEN));
            if !warned {
                return Err(format!("no warning of {HIDDEN:?} in:\n{text}").into());
            }
            says(&text, "one NIC that cannot be opened hides all")?;
        }
        Ok(())
    }));
    trials
}

fn writes_by_others(text: &str, lacking: usize) -> Result<(), Failed> {
    let written = counted(text, " writes");
    let of = |nic: &&str| written.get(*nic).is_some_and(|writes| *writes > 0);
    let used: Vec<&str> = NICS.into_iter().filter(of).collect();
    if used.is_empty() || used.contains(&NICS[lacking]) {
        return Err(format!("written by {used:?} without {}:\n{text}", NICS[lacking]).into());
    }
    Ok(())
}
