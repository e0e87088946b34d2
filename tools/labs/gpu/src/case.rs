//! One program on one provider: what it is run with, and whether it did what it should.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use launcher::End;

use crate::counters::Traffic;
use crate::launch::{Bootstrap, Ended};
use crate::programs::Example;

/// What shows that a program has done its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// Every PE ends well and prints `RESULT <program> pe <n> ok`: the programs of `cuda/nvshmem`,
    /// and those in `clients`, which check their own data. Where something that it needs is
    /// missing, it prints `skipped: <what>` in place of `ok`.
    Result,
    /// Every PE ends well, and PE 0 prints rows of figures: NVSHMEM's perftests.
    Rows,
    /// Every PE ends well, prints a line that begins with this, and none with an error in it:
    /// NVSHMEM's examples, of which each checks its own data, or prints what came of it. `{pe}`,
    /// `{pes}`, `{before}` (the PE before it in the ring) and `{sum}` (of its number and of all)
    /// stand for numbers. Where this is empty, no error is enough.
    Says(&'static str),
    /// PE 1 is killed in the middle, and all others have the transport's error that names it.
    /// Whether NVSHMEM ends the process then is its own affair, and remarked.
    Death,
}

/// The GPUs that the PEs of a program may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpus {
    /// Those that there are, shared if they are fewer than the PEs.
    Any,
    /// One for each PE.
    Own,
    /// One for all.
    One,
    /// Two, for what one process does with both.
    Two,
}

/// A program to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Its file name.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What shows that it worked.
    pub proof: Proof,
    /// How many PEs it has; else as many as the options say.
    pub pes: Option<u32>,
    /// Which GPUs its PEs may have.
    pub gpus: Gpus,
    /// How its PEs find one another.
    pub bootstrap: Bootstrap,
    /// Settings of its own.
    pub env: Vec<(String, String)>,
}

/// What became of it.
#[derive(Debug)]
pub struct Outcome {
    /// What is wrong; nothing if it worked.
    pub fault: Option<String>,
    /// What is missing here, so that it has not run.
    pub skipped: Option<String>,
    /// What is to be said of it all the same.
    pub remark: Option<&'static str>,
    /// When the last PE ended.
    pub took: Duration,
    /// What all PEs have carried.
    pub traffic: Traffic,
    /// What PE 0 has printed.
    pub printed: String,
}

impl Case {
    /// A program of `cuda/nvshmem`, with its arguments.
    pub fn own(program: &str, args: &str, bootstrap: Bootstrap) -> Self {
        let dies = program == "peer-death";
        let env = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self {
            program: program.to_owned(),
            args: args.split_whitespace().map(str::to_owned).collect(),
            proof: if dies { Proof::Death } else { Proof::Result },
            pes: None,
            gpus: Gpus::Any,
            bootstrap,
            env: if dies { vec![env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "10")] } else { vec![] },
        }
    }

    /// A perftest, with its arguments in one line.
    pub fn perftest(program: &str, args: &str, bootstrap: Bootstrap) -> Self {
        Self { proof: Proof::Rows, pes: Some(2), ..Self::upstream(program, args, bootstrap) }
    }

    /// An example of NVSHMEM's.
    pub fn example(example: &Example, bootstrap: Bootstrap) -> Self {
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
            env,
            ..Self::upstream(program, args, bootstrap)
        }
    }

    /// A program of pplx-kernels, built with the stand-in for MPI of `cuda/nvshmem/mpi`, with at
    /// least the PEs that it wants.
    pub fn pplx(example: &Example, pes: u32) -> Self {
        let Example { program, args, pes: fewest, says, gpus } = *example;
        // Its buffers for 256 experts.
        let heap = (String::from("NVSHMEM_SYMMETRIC_SIZE"), String::from("4G"));
        Self {
            proof: Proof::Says(says),
            pes: Some(pes.max(fewest)),
            gpus,
            env: vec![heap],
            ..Self::own(program, args, Bootstrap::Uid)
        }
    }

    /// A program of NCCL's RMA and GIN, with its own arguments unless others are given.
    pub fn nccl(example: &Example, args: &str) -> Self {
        let Example { program, args: own, pes, says, gpus } = *example;
        let proof = if says.is_empty() { Proof::Result } else { Proof::Says(says) };
        let args = if args.is_empty() { own } else { args };
        // As many ranks as the options say, but where one process has all of them.
        let pes = (gpus == Gpus::Two).then_some(pes);
        Self { proof, pes, gpus, ..Self::own(program, args, Bootstrap::Uid) }
    }

    /// A program that knows nothing of ids in files.
    fn upstream(program: &str, args: &str, bootstrap: Bootstrap) -> Self {
        let bootstrap = if bootstrap == Bootstrap::Uid { Bootstrap::Pmi } else { bootstrap };
        Self { bootstrap, ..Self::own(program, args, bootstrap) }
    }

    /// Why it cannot run on a machine with so many GPUs, if that is known.
    pub fn missing(&self, pes: u32, gpus: Option<u32>) -> Option<String> {
        let gpus = gpus?;
        match self.gpus {
            Gpus::Own if gpus < pes => {
                Some(format!("each of its {pes} PEs wants a GPU of its own, and there are {gpus}"))
            }
            Gpus::Two if gpus < 2 => Some(format!("it takes two GPUs, and there is {gpus}")),
            _ => None,
        }
    }

    /// Judges what has happened. `dir` has the files of counters.
    pub fn judge(&self, pes: u32, ended: &[Ended], dir: &Path) -> Outcome {
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

    /// What PE 0 misses.
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
        // One output for all where mpiexec has started them.
        let said = |line: &str| ended.iter().any(|pe| pe.stdout.lines().any(|said| said == line));
        let line = |pe: u32| format!("RESULT {} pe {pe} ok", self.program);
        let silent = (0..pes).find(|pe| !said(&line(*pe)))?;
        Some(format!("PE {silent} has not printed {:?}", line(silent)))
    }
}

/// What is wrong with what an example has printed.
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

/// The line of one PE.
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

/// The last thing a PE has said that looks like a reason.
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

fn death(ended: &[Ended]) -> Option<String> {
    let [_, one, ..] = ended else { return Some(String::from("it needs two PEs")) };
    if one.end != End::Signalled(libc::SIGKILL) {
        return Some(format!("PE 1 {}, and was to kill itself{}", one.end, last_words(one)));
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
    /// It was not run, as this is missing.
    pub fn skipped(missing: String) -> Self {
        let (took, traffic) = (Duration::ZERO, Traffic::default());
        Self {
            fault: None,
            skipped: Some(missing),
            remark: None,
            took,
            traffic,
            printed: String::new(),
        }
    }

    /// Whether it has run and did what it should.
    pub fn worked(&self) -> bool {
        self.fault.is_none() && self.skipped.is_none()
    }

    /// In a few words.
    pub fn result(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::EXAMPLES;

    fn pe(end: End, stdout: &str, stderr: &str) -> Ended {
        let (stdout, stderr) = (stdout.to_owned(), stderr.to_owned());
        Ended { end, after: Duration::from_secs(1), stdout, stderr }
    }

    fn fault(case: &Case, ended: &[Ended]) -> String {
        let outcome = case.judge(2, ended, Path::new("/nowhere"));
        outcome.fault.unwrap_or_default()
    }

    const OK: End = End::Exited(0);

    #[test]
    fn an_example_for_one_gpu_sees_one_and_others_see_all() {
        for example in EXAMPLES {
            let case = Case::example(example, Bootstrap::Pmi);
            let sees = case.env.iter().find(|(name, _)| name == "CUDA_VISIBLE_DEVICES");
            let one = (example.program == "ring-reduce").then_some("0");
            assert_eq!(sees.map(|(_, value)| value.as_str()), one, "{}", example.program);
        }
    }

    #[test]
    fn a_program_has_worked_when_every_pe_says_so() {
        let case = Case::own("put", "", Bootstrap::Uid);
        let said = |n: u32| format!("a table\nRESULT put pe {n} ok\n");
        let both = [pe(OK, &said(0), ""), pe(OK, &said(1), "")];
        assert!(fault(&case, &both).contains("no counters of PE 0"), "and left its counters");
        let one = [pe(OK, &said(0), ""), pe(OK, "", "")];
        assert!(fault(&case, &one).contains("PE 1 has not printed"));
        let bad = "RESULT put pe 1 FAILED: byte 3";
        let failed = [pe(End::Killed, "", ""), pe(End::Exited(1), bad, "ERROR of no interest")];
        assert_eq!(fault(&case, &failed), format!("PE 1 ended with status 1: {bad}"));
        let missing = "RESULT put pe 0 skipped: No module named 'torch'";
        let skipped = [pe(OK, missing, ""), pe(OK, missing, "")];
        let outcome = case.judge(2, &skipped, Path::new("/nowhere"));
        assert_eq!(outcome.result(), "skipped: No module named 'torch'");
        assert!(!outcome.worked());
        let stuck = [pe(End::Killed, "", "a\nERROR: why\nb\n"), pe(End::Killed, "", "")];
        assert!(fault(&case, &stuck).starts_with("PE 0 was killed when its time was over: ERROR"));
    }

    #[test]
    fn the_death_of_a_peer_must_be_noticed_and_named() {
        let case = Case::own("peer-death", "", Bootstrap::Uid);
        let dead = || pe(End::Signalled(libc::SIGKILL), "", "");
        let named = "ERROR: put of 8 bytes to PE 1: no answer";
        assert_eq!(fault(&case, &[pe(End::Exited(255), "", named), dead()]), "");
        assert_eq!(fault(&case, &[pe(End::Signalled(6), "", named), dead()]), "");
        assert!(
            fault(&case, &[pe(End::Exited(255), "", "ERROR"), dead()]).contains("not name PE 1")
        );
        assert!(fault(&case, &[pe(OK, "", named), dead()]).contains("has not noticed"));
        assert!(fault(&case, &[pe(End::Killed, "", ""), dead()]).contains("does not name PE 1"));
        let outcome = case.judge(2, &[pe(End::Killed, "", named), dead()], Path::new("/nowhere"));
        assert_eq!(outcome.result(), "ok, but NVSHMEM has not ended the others");
        assert!(fault(&case, &[pe(OK, "", ""), pe(OK, "", "")]).contains("was to kill itself"));
        let silent = [pe(End::Exited(255), "", named), dead(), pe(End::Exited(255), "", "ERROR")];
        assert!(fault(&case, &silent).starts_with("PE 2"));
    }

    #[test]
    fn rows_of_figures_are_told_from_the_rest() {
        let table = "# put_bw\n+---+\n| size(B)   scope   BW |\n| 1024  | None | 3.250 |\n\
                     2048     thread    0.5\n4096   thread  0.000\n";
        assert_eq!(rows(table), 2);
        let case = Case::perftest("shmem_put_bw", "-n 5", Bootstrap::Uid);
        assert_eq!((case.bootstrap, case.args.len()), (Bootstrap::Pmi, 2));
        assert!(fault(&case, &[pe(OK, "nothing", ""), pe(OK, "", "")]).contains("no figures"));
        assert!(fault(&case, &[pe(OK, table, ""), pe(OK, "", "")]).contains("no counters"));
    }

    #[test]
    fn an_example_says_what_its_data_is() {
        let named = |name| EXAMPLES.iter().find(|example| example.program == name).unwrap();
        let ring = Case::example(named("dev-guide-ring"), Bootstrap::Uid);
        assert_eq!((ring.bootstrap, ring.pes), (Bootstrap::Pmi, Some(2)));
        let said = |a: &str, b: &str| fault(&ring, &[pe(OK, a, ""), pe(OK, b, "")]);
        let good = said("0: received message 1\n", "1: received message 0\n");
        assert!(good.contains("no counters of PE 0"), "{good}");
        assert!(said("0: received message 1", "1: received message 1").contains("\"1: received"));
        let bcast = Case::example(named("ring-bcast"), Bootstrap::Uid);
        let wrong = [pe(OK, "", ""), pe(OK, "PE 1 error, data[0] = 5", "")];
        assert!(fault(&bcast, &wrong).contains("data[0] = 5"));
        assert!(
            fault(&bcast, &[pe(OK, "", "WARN: no error"), pe(OK, "", "")]).contains("counters")
        );
        assert!(fault(&bcast, &[pe(End::Exited(1), "", ""), pe(OK, "", "")]).contains("status 1"));
        assert_eq!(filled(named("collective-launch").says, 1, 3), "results on device [1] is 4");
        let buffer = Case::example(named("user-buffer"), Bootstrap::Uid);
        assert!(buffer.missing(2, Some(1)).is_some_and(|why| why.contains("there are 1")));
        assert_eq!((buffer.missing(2, Some(2)), buffer.missing(2, None)), (None, None));
        assert_eq!(ring.missing(2, Some(1)), None);
    }
}
