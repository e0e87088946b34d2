//! Cases: a program with its arguments and environment, and the verdict on one run of it.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use launcher::End;

use crate::counters::Traffic;
use crate::launch::{Bootstrap, Ended};
use crate::programs::Example;

/// Evidence that a program has done its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proof {
    /// Every PE ends well and prints `RESULT <program> pe <n> ok`: the programs of `cuda/nvshmem`,
    /// and those in `clients`, which check their own data. Where something that it needs is
    /// missing, it prints `skipped: <what>` in place of `ok`.
    Result,
    /// Every PE ends well, and PE 0 prints rows of figures: NVSHMEM's perftests.
    Rows,
    /// Every PE ends well, prints a line that begins with this text, and prints no error: NVSHMEM's
    /// examples, which check their own data or print the result. `{pe}`, `{pes}`, `{before}` (the
    /// PE before it in the ring) and `{sum}` (its number added to the sum of all) stand for
    /// numbers. With an empty text the absence of errors is enough.
    Says(&'static str),
    /// PE 1 is killed in the middle, and all others log the transport's error that names it.
    /// Whether NVSHMEM then ends the process is reported as a remark.
    Death,
    /// As [`Proof::Result`], but for PE 1, which is killed in the middle.
    Survival,
}

/// The GPUs that the PEs of a program may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gpus {
    /// All of the machine, shared if there are fewer GPUs than PEs.
    Any,
    /// One for each PE.
    Own,
    /// One for all.
    One,
    /// Two, both used by one process.
    Two,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) proof: Proof,
    /// Number of PEs, if not that of the options.
    pub(crate) pes: Option<u32>,
    pub(crate) gpus: Gpus,
    pub(crate) bootstrap: Bootstrap,
    pub(crate) env: Vec<(String, String)>,
}

#[derive(Default, Debug)]
pub(crate) struct Outcome {
    /// Why it failed.
    pub(crate) fault: Option<String>,
    /// What this machine lacks, so that the case has not run.
    pub(crate) skipped: Option<String>,
    pub(crate) remark: Option<&'static str>,
    pub(crate) took: Duration,
    pub(crate) traffic: Traffic,
    pub(crate) printed: String,
}

impl Case {
    pub(crate) fn own(program: &str, args: &str) -> Self {
        let dies = program == "peer-death";
        let env = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self {
            program: program.to_owned(),
            args: args.split_whitespace().map(str::to_owned).collect(),
            proof: if dies { Proof::Death } else { Proof::Result },
            pes: None,
            gpus: Gpus::Any,
            bootstrap: Bootstrap::Uid,
            env: if dies { vec![env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "10")] } else { vec![] },
        }
    }

    pub(crate) fn perftest(program: &str, args: &str) -> Self {
        let bootstrap = Bootstrap::Pmi;
        Self { proof: Proof::Rows, pes: Some(2), bootstrap, ..Self::own(program, args) }
    }

    pub(crate) fn example(example: &Example) -> Self {
        let Example { program, args, pes, says, gpus } = *example;
        // So that many PEs find room on a small GPU.
        let mut env = vec![(String::from("NVSHMEM_SYMMETRIC_SIZE"), String::from("256M"))];
        if gpus == Gpus::One {
            env.push((String::from("CUDA_VISIBLE_DEVICES"), String::from("0")));
        }
        Self {
            proof: Proof::Says(says),
            pes: Some(pes),
            gpus,
            bootstrap: Bootstrap::Pmi,
            env,
            ..Self::own(program, args)
        }
    }

    pub(crate) fn pplx(example: &Example, pes: u32) -> Self {
        let Example { program, args, pes: fewest, says, gpus } = *example;
        // Its buffers for 256 experts.
        let heap = (String::from("NVSHMEM_SYMMETRIC_SIZE"), String::from("4G"));
        Self {
            proof: Proof::Says(says),
            pes: Some(pes.max(fewest)),
            gpus,
            env: vec![heap],
            ..Self::own(program, args)
        }
    }

    /// A program of NCCL's RMA and GIN, with its own arguments unless others are given.
    pub(crate) fn nccl(example: &Example, args: &str) -> Self {
        let Example { program, args: own, pes, says, gpus } = *example;
        let proof = match (program, says) {
            ("rank-loss", _) => Proof::Survival,
            (_, "") => Proof::Result,
            _ => Proof::Says(says),
        };
        let args = if args.is_empty() { own } else { args };
        // As many ranks as the options say, but where one process has all, or one is lost.
        let is_fixed = gpus == Gpus::Two || proof == Proof::Survival;
        let pes = is_fixed.then_some(pes);
        Self { proof, pes, gpus, ..Self::own(program, args) }
    }

    /// Returns why the case cannot run on a machine with so many GPUs, if that is known.
    pub(crate) fn missing(&self, pes: u32, gpus: Option<u32>) -> Option<String> {
        let gpus = gpus?;
        match self.gpus {
            Gpus::Own if gpus < pes => {
                Some(format!("each of its {pes} PEs wants a GPU of its own, and there are {gpus}"))
            }
            Gpus::Two if gpus < 2 => Some(format!("it takes two GPUs, and there is {gpus}")),
            _ => None,
        }
    }

    pub(crate) fn judge(&self, pes: u32, ended: &[Ended], dir: &Path) -> Outcome {
        let took = ended.iter().map(|pe| pe.after).max().unwrap_or_default();
        let printed = ended.first().map_or_else(String::new, |pe| pe.stdout.clone());
        let (mut remark, mut skipped) = (None, None);
        let (traffic, fault) = match self.proof {
            Proof::Death => {
                if ended.iter().any(|pe| pe.end == End::Killed) {
                    remark = Some("NVSHMEM has not ended the others");
                }
                (Traffic::default(), death(ended))
            }
            Proof::Survival => (Traffic::default(), self.survival(pes, ended)),
            Proof::Result | Proof::Rows | Proof::Says(_) => {
                let failed = ended_badly(ended);
                skipped = if failed.is_none() { self.skipped(ended) } else { None };
                match failed.or_else(|| self.not_done(pes, ended)) {
                    _ if skipped.is_some() => (Traffic::default(), None),
                    Some(fault) => (Traffic::default(), Some(fault)),
                    None => traffic(pes, dir),
                }
            }
        };
        Outcome { fault, skipped, remark, took, traffic, printed }
    }

    fn skipped(&self, ended: &[Ended]) -> Option<String> {
        let start = format!("RESULT {} pe 0 skipped: ", self.program);
        let mut lines = ended.first()?.stdout.lines();
        lines.find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    }

    fn not_done(&self, pes: u32, ended: &[Ended]) -> Option<String> {
        if self.proof == Proof::Rows {
            let rows = ended.first().map_or(0, |pe| rows(&pe.stdout));
            return (rows == 0).then(|| String::from("PE 0 has printed no figures"));
        }
        if let Proof::Says(line) = self.proof {
            return unsaid(line, pes, ended);
        }
        self.silent(0..pes, ended)
    }

    fn silent(&self, mut pes: Range<u32>, ended: &[Ended]) -> Option<String> {
        let said = |line: &str| ended.iter().any(|pe| pe.stdout.lines().any(|said| said == line));
        let line = |pe: u32| format!("RESULT {} pe {pe} ok", self.program);
        let silent = pes.find(|pe| !said(&line(*pe)))?;
        Some(format!("PE {silent} has not printed {:?}", line(silent)))
    }

    fn survival(&self, pes: u32, ended: &[Ended]) -> Option<String> {
        // Those that are left are counted anew.
        not_killed(ended).or_else(|| self.silent(0..pes - 1, ended))
    }
}

fn unsaid(line: &str, pes: u32, ended: &[Ended]) -> Option<String> {
    let lines = || ended.iter().flat_map(|pe| pe.stdout.lines().chain(pe.stderr.lines()));
    let wrong = |line: &&str| {
        let line = line.to_lowercase();
        (line.contains("error") || line.contains("fail")) && !line.contains("no errors")
    };
    // NVSHMEM's own words, and the transport's, are on the other stream.
    if let Some(bad) = ended.iter().flat_map(|pe| pe.stdout.lines()).find(wrong) {
        return Some(format!("a PE has printed {bad:?}"));
    }
    let missing = (0..pes)
        .map(|pe| filled(line, pe, pes))
        .find(|start| !start.is_empty() && !lines().any(|said| said.starts_with(start.as_str())))?;
    Some(format!("no PE has printed a line that begins with {missing:?}"))
}

fn filled(line: &str, pe: u32, pes: u32) -> String {
    let numbers = [
        ("{pe}", pe),
        ("{pes}", pes),
        ("{before}", (pe + pes - 1) % pes),
        ("{sum}", pes * (pes - 1) / 2 + pe),
    ];
    numbers.iter().fold(line.to_owned(), |line, (name, n)| line.replace(name, &n.to_string()))
}

/// Lines of figures in a perftest's tables: they begin with a size in bytes.
fn rows(printed: &str) -> usize {
    let is_row = |line: &&str| {
        let mut words =
            line.split(|c: char| c.is_whitespace() || c == '|').filter(|w| !w.is_empty());
        let size = words.next().is_some_and(|word| word.parse::<u64>().is_ok());
        let figure =
            words.next_back().is_some_and(|word| word.parse::<f64>().is_ok_and(|n| n > 0.0));
        size && figure
    };
    printed.lines().filter(is_row).count()
}

fn ended_badly(ended: &[Ended]) -> Option<String> {
    // The one that failed by itself says more than those killed because of it.
    let by_itself = |pe: &&(usize, &Ended)| !pe.1.end.is_success() && pe.1.end != End::Killed;
    let failed: Vec<(usize, &Ended)> = ended.iter().enumerate().collect();
    let killed = |pe: &&(usize, &Ended)| pe.1.end == End::Killed;
    let (pe, one) = failed.iter().find(by_itself).or_else(|| failed.iter().find(killed))?;
    let last = last_words(one);
    Some(format!("PE {pe} {}{last}", one.end))
}

fn last_words(pe: &Ended) -> String {
    let result =
        pe.stdout.lines().find(|line| line.starts_with("RESULT") && line.contains("FAILED"));
    let error = || pe.stderr.lines().rev().find(|line| line.contains("ERROR"));
    let last = || pe.stderr.lines().rev().find(|line| !line.trim().is_empty());
    result
        .or_else(error)
        .or_else(last)
        .map_or_else(String::new, |line| format!(": {}", line.trim()))
}

fn not_killed(ended: &[Ended]) -> Option<String> {
    let [_, one, ..] = ended else { return Some(String::from("it needs two PEs")) };
    let text = || format!("PE 1 {}, and was to kill itself{}", one.end, last_words(one));
    (one.end != End::Signalled(libc::SIGKILL)).then(text)
}

fn death(ended: &[Ended]) -> Option<String> {
    if let Some(fault) = not_killed(ended) {
        return Some(fault);
    }
    let mut survivors = ended.iter().enumerate().filter(|(pe, _)| *pe != 1);
    survivors.find_map(|(pe, survivor)| {
        if survivor.end == End::Exited(0) {
            return Some(format!("PE {pe} has not noticed that PE 1 is gone"));
        }
        let mut lines = survivor.stderr.lines();
        let named = lines.any(|line| line.contains("ERROR") && line.contains("PE 1"));
        let (end, last) = (survivor.end, last_words(survivor));
        (!named).then(|| format!("PE {pe} {end}, and does not name PE 1{last}"))
    })
}

impl Outcome {
    pub(crate) fn skipped(missing: String) -> Self {
        Self { skipped: Some(missing), ..Self::default() }
    }

    pub(crate) fn worked(&self) -> bool {
        self.fault.is_none() && self.skipped.is_none()
    }

    pub(crate) fn result(&self) -> String {
        match (&self.fault, &self.skipped, self.remark) {
            (Some(fault), ..) => fault.clone(),
            (None, Some(missing), _) => format!("skipped: {missing}"),
            (None, None, Some(remark)) => format!("ok, but {remark}"),
            (None, None, None) => String::from("ok"),
        }
    }
}

fn traffic(pes: u32, dir: &Path) -> (Traffic, Option<String>) {
    let mut all = Traffic::default();
    for pe in 0..pes {
        match Traffic::read(&dir.join(format!("counters-{pe}.json"))) {
            Ok(one) if one.is_some() => all = all.and(one),
            Ok(_) => {
                return (all, Some(format!("nothing of PE {pe} has gone through this transport")));
            }
            Err(error) => return (all, Some(format!("no counters of PE {pe}: {error}"))),
        }
    }
    (all, None)
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}
