//! The processors' load while something is measured: what other programs took of those that the PEs
//! may use, by the kernel's count.

use std::fs;
use std::ops::RangeInclusive;

use nvshmem_sim::{BoxError, JobReport};
use serde::{Deserialize, Serialize};

/// The name of a PE's value with its load.
pub(crate) const LOAD: &str = "load";

/// Less than so much of a processor is no matter.
const LITTLE: f64 = 0.25;

/// The part of the time that a hypervisor may keep for others before it matters.
const STOLEN: f64 = 0.02;

/// Processor time, in the kernel's ticks: since the machine was started, or between two moments.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Of this process and its threads.
    own: u64,
    /// Of all programs, on the processors that this process may use. What is done in interrupts is
    /// left out: over loopback that is the job's own.
    programs: u64,
    /// What a hypervisor gave to others.
    stolen: u64,
    /// All there was.
    total: u64,
    /// How many processors these are.
    processors: u64,
}

impl Load {
    /// Until now. None where the kernel does not say.
    pub(crate) fn now() -> Option<Self> {
        let read = |file: &str| fs::read_to_string(format!("/proc/{file}")).ok();
        Self::read(&read("self/stat")?, &read("self/status")?, &read("stat")?)
    }

    fn read(process: &str, status: &str, machine: &str) -> Option<Self> {
        // The program's name may have spaces; what follows its bracket is numbers, of which the
        // twelfth and thirteenth are the times in the program and in the kernel.
        let (_, numbers) = process.rsplit_once(") ")?;
        let mut times = numbers.split(' ').skip(11).map(str::parse::<u64>);
        let own = times.next()?.ok()? + times.next()?.ok()?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let allowed: Vec<RangeInclusive<u64>> = ranges(allowed.trim())?;
        let mut load = Self { own, ..Self::default() };
        for line in machine.lines() {
            let mut words = line.split_whitespace();
            let number = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
            let Some(number) = number else { continue };
            if !allowed.iter().any(|range| range.contains(&number)) {
                continue;
            }
            let times: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            // user, nice, system, idle, iowait, irq, softirq, steal; guests' is in user's.
            let [user, nice, system, _, _, _, _, stolen, ..] = times[..] else { return None };
            load.programs += user + nice + system;
            load.stolen += stolen;
            load.total += times[..8].iter().sum::<u64>();
            load.processors += 1;
        }
        (load.processors > 0).then_some(load)
    }

    /// What came since an earlier moment.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            own: self.own.saturating_sub(before.own),
            programs: self.programs.saturating_sub(before.programs),
            stolen: self.stolen.saturating_sub(before.stolen),
            total: self.total.saturating_sub(before.total),
            processors: self.processors,
        }
    }

    /// What is to be said of a host that was busy with other things than the PEs there.
    pub(crate) fn remark(self) -> Option<String> {
        if self.total == 0 {
            return None;
        }
        let processors = self.processors as f64;
        let of = |ticks: u64| ticks as f64 / self.total as f64 * processors;
        let (own, others) = (of(self.own), of(self.programs.saturating_sub(self.own)));
        let mut busy = Vec::new();
        if others >= LITTLE && others > (processors - own) / 2.0 {
            busy.push(format!("other programs took {others:.1} of {processors} processors"));
        }
        let stolen = self.stolen as f64 / self.total as f64;
        if stolen >= STOLEN {
            busy.push(format!("the hypervisor kept {:.0} % of the time", 100.0 * stolen));
        }
        (!busy.is_empty()).then(|| busy.join(", and "))
    }
}

/// What is to be said of the hosts of a job, each by the PEs that it has: those that were busy.
///
/// # Errors
/// A PE's load cannot be read.
pub(crate) fn remarks(
    report: &JobReport,
    hosts: &[Option<String>],
) -> Result<Option<String>, BoxError> {
    let mut loads: Vec<(&Option<String>, Load)> = Vec::new();
    for (pe, host) in report.pes.iter().zip(hosts) {
        let Some(text) = pe.value(LOAD) else { continue };
        let load: Load = serde_json::from_str(text)?;
        match loads.iter_mut().find(|(known, _)| *known == host) {
            Some((_, known)) => known.own += load.own,
            None => loads.push((host, load)),
        }
    }
    let said: Vec<String> = loads.into_iter().filter_map(|(_, load)| load.remark()).collect();
    Ok((!said.is_empty()).then(|| said.join("; on another host ")))
}

/// Numbers as the kernel lists them: `0-3,8`.
fn ranges(list: &str) -> Option<Vec<RangeInclusive<u64>>> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_read_for_the_processors_that_are_allowed() {
        let process = "7 (a ) b) R 1 1 1 0 -1 4194304 0 0 0 0 30 12 0 0 20 0 1 0 1 1 1";
        let status = "Name:\ta\nCpus_allowed_list:\t0,2-3\n";
        let machine = "cpu  1 1 1 1 1 1 1 1 1 1\n\
                       cpu0 10 1 5 100 0 2 3 4 0 0\ncpu1 9 9 9 9 9 9 9 9 9 9\n\
                       cpu2 20 0 5 50 0 0 0 0 0 0\ncpu3 1 0 0 9 0 0 0 0 0 0\nintr 5 5\n";
        let load = Load::read(process, status, machine).unwrap();
        let expected = Load { own: 42, programs: 42, stolen: 4, total: 210, processors: 3 };
        assert_eq!(load, expected);
        assert_eq!(Load::read(process, "Name:\ta\n", machine), None);
        assert!(Load::now().is_some_and(|load| load.processors > 0 && load.total > 0));
    }

    #[test]
    fn others_matter_where_they_take_what_the_pes_would_have() {
        let load = |own, programs, processors: u64| {
            let total = 100 * processors;
            Load { own, programs, stolen: 0, total, processors }.remark()
        };
        // Alone on two processors; beside a compiler; and beside many, where there are more.
        assert_eq!(load(190, 195, 2), None);
        assert_eq!(load(110, 185, 2), Some("other programs took 0.8 of 2 processors".to_owned()));
        assert_eq!(load(190, 1_200, 64), None);
        let before = Load { own: 5, programs: 10, stolen: 1, total: 50, processors: 2 };
        let now = Load { own: 105, programs: 110, stolen: 11, total: 250, processors: 2 };
        let said = now.since(before).remark().unwrap();
        assert_eq!(said, "the hypervisor kept 5 % of the time");
        assert_eq!(Load::default().remark(), None);
    }
}
