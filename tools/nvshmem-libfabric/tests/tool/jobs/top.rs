//! `top`: what a running job has published, as the job counts it; what processes have left; what is
//! another user's.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout};
use serde_json::Value;
use test_support::needs::{self, Need};

use crate::bed::{Scratch, TOOL, bad, expect, good, json, plugins, signal, tool, trial, wait};
use crate::terminal::OnTerminal;

/// What the job does.
const PUTS: u64 = 100;
const BYTES: u64 = 4096;
const RAILS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// A user that is nobody.
const NOBODY: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("top::counters_of_a_running_job", running),
        trial("top::pages_of_ended_processes", ended),
        trial("top::table_on_a_terminal", terminal),
        trial("top::bad_input", bad_input),
        needs::trial("top::two_users", two_users_here(), two_users),
    ]
}

/// Both put to the other, and then wait for a file.
pub(crate) fn hold(job: &mut Job) -> Result<(), BoxError> {
    let gate: PathBuf = job.param("gate")?;
    let host = job.init()?;
    let (target, source) = (host.alloc(BYTES, 4096)?, host.alloc(BYTES, 4096)?);
    host.barrier()?;
    for _ in 0..PUTS {
        host.proxy().put(1 - job.pe(), target, source, BYTES)?;
    }
    host.proxy().quiet()?;
    host.barrier()?;
    wait("the file that ends the job", || gate.exists().then_some(()))?;
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

/// A job that runs until it is let go.
struct Held {
    gate: PathBuf,
    run: JoinHandle<Result<JobReport, String>>,
}

impl Held {
    fn start(scratch: &Scratch, page: &Path) -> Self {
        let gate = scratch.at("gate");
        let job = JobSettings::new("hold", 2, Layout::V7, plugins())
            .heap(1 << 20, 1 << 20)
            .param("gate", gate.display())
            .env("NVSHMEM_DEBUG", "INFO")
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")
            .env("NVSHMEM_LIBFABRIC_DEVICES", RAILS.join(","))
            .env("NVSHMEM_LIBFABRIC_COUNTERS", scratch.at("pe-%p.json").display().to_string())
            .env("NVSHMEM_LIBFABRIC_COUNTERS_SIGNAL", "USR1")
            .env("NVSHMEM_LIBFABRIC_COUNTERS_PAGE", page.display().to_string());
        let run = thread::spawn(move || {
            let report = job.run().map_err(|error| error.to_string())?;
            report.check().map_err(|failed| failed.to_string())
        });
        Self { gate, run }
    }

    fn end(self) -> Result<JobReport, Failed> {
        fs::write(&self.gate, "")?;
        Ok(self.run.join().map_err(|_| "the job's thread has panicked")??)
    }
}

fn top(directory: &Path, options: &[&str]) -> Command {
    let mut command = tool(&["top", "--dir"]);
    command.arg(directory).args(options);
    command
}

/// What a page has of a lane with a peer.
fn with(pe: &Value, lane: usize, peer: u64) -> Option<&Value> {
    pe["lanes"][lane]["peers"].as_array()?.iter().find(|other| other["pe"] == peer)
}

/// The PEs, once both have counted all of their puts.
fn counted(directory: &Path) -> Result<Vec<Value>, Failed> {
    wait("the counters of the puts", || {
        if !directory.exists() {
            return None;
        }
        let look = json(&mut top(directory, &["--json"]));
        let pes = look.map(|look| look["pes"].as_array().cloned().unwrap_or_default());
        let Ok(pes) = pes else { return Some(pes) };
        let writes = |at: usize| with(pes.get(at)?, 0, 1 - at as u64)?["writes"].as_u64();
        let all = [0, 1].iter().all(|at| writes(*at) >= Some(PUTS));
        (pes.len() == 2 && all).then_some(Ok(pes))
    })?
}

fn running() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let pages = scratch.at("pages");
    let job = Held::start(&scratch, &pages);
    let checked = counted(&pages).and_then(|pes| look_at(&scratch, &pages, &pes).map(|()| pes));
    let report = job.end()?;
    let pes = checked?;
    expect(report.pes[0].text().contains("counters are published in"), || report.to_string())?;
    for (number, pe) in pes.iter().enumerate() {
        let text = fs::read_to_string(scratch.at(&format!("pe-{number}.json")))?;
        let last: Value = serde_json::from_str(&text)?;
        let other = 1 - number as u64;
        for what in ["writes", "reads"] {
            let (page, end) = (with(pe, 0, other), with(&last, 0, other));
            let same = page.map(|peer| &peer[what]) == end.map(|peer| &peer[what]);
            expect(same, || format!("PE {number}, {what}: {page:?} and in the end {end:?}"))?;
        }
        for rail in 0..RAILS.len() {
            let bytes = |of: &Value| of["lanes"][0]["rails"][rail]["bytes"].as_u64();
            expect(bytes(pe).is_some() && bytes(pe) == bytes(&last), || {
                format!("{pe:#} {last:#}")
            })?;
        }
    }
    expect(fs::read_dir(&pages)?.next().is_none(), || String::from("a page is left"))?;
    let none = json(&mut top(&pages, &["--json"]))?;
    expect(none["pes"] == Value::Array(Vec::new()), || none.to_string())
}

/// What `top` shows of the job, in all its forms.
fn look_at(scratch: &Scratch, pages: &Path, pes: &[Value]) -> Result<(), Failed> {
    expect(fs::metadata(pages)?.mode() & 0o777 == 0o700, || String::from("the directory's mode"))?;
    for entry in fs::read_dir(pages)? {
        let mode = entry?.metadata()?.mode() & 0o777;
        expect(mode == 0o600, || format!("a page has mode {mode:o}"))?;
    }
    for (number, pe) in pes.iter().enumerate() {
        let named = pe["pe"] == number && pe["state"] == "running" && pe["provider"].is_string();
        expect(named && with(pe, 0, 1 - number as u64).is_some(), || format!("{pe:#}"))?;
        let mut bytes = 0;
        for (rail, name) in RAILS.iter().enumerate() {
            let told = &pe["lanes"][0]["rails"][rail];
            let has_name = told["name"].as_str().is_some_and(|told| told.contains(name));
            expect(has_name, || format!("no {name}: {told:#}"))?;
            bytes += told["bytes"].as_u64().unwrap_or(0);
        }
        // Beside the puts there may be what ends them.
        let data = PUTS * BYTES;
        expect((data..data + data / 10).contains(&bytes), || format!("{bytes} bytes for {data}"))?;
    }
    let table = good(&mut top(pages, &["--once"]))?;
    for text in ["PE 0: ", "PE 1: ", "proxy lane", "host lane", "rail 1", RAILS[1], "its peers"] {
        expect(table.contains(text), || format!("no {text:?} in\n{table}"))?;
    }
    let metrics = good(&mut top(pages, &["--prometheus"]))?;
    let writes = with(&pes[0], 0, 1).map(|peer| peer["writes"].clone()).unwrap_or_default();
    let sample = metrics.lines().find(|line| {
        line.starts_with("nvshmem_libfabric_peer_writes_total{pe=\"0\",")
            && line.contains(",lane=\"proxy\",peer=\"1\"}")
    });
    expect(sample.is_some_and(|line| line.ends_with(&format!(" {writes}"))), || metrics.clone())?;
    at_a_signal(scratch, &pes[0])
}

/// The file of the end is there before the end.
fn at_a_signal(scratch: &Scratch, pe: &Value) -> Result<(), Failed> {
    let file = scratch.at("pe-0.json");
    expect(!file.exists(), || String::from("it is there without a signal"))?;
    signal(&pe["pid"], "-USR1")?;
    // Nobody promises that it is written at once.
    let written: Value = wait("the file", || serde_json::from_slice(&fs::read(&file).ok()?).ok())?;
    let writes = with(&written, 0, 1).and_then(|peer| peer["writes"].as_u64());
    expect(writes >= Some(PUTS), || format!("{written:#}"))
}

/// The table is drawn, and drawn anew.
fn terminal() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let pages = scratch.at("pages");
    let job = Held::start(&scratch, &pages);
    let checked = counted(&pages).and_then(|_| drawn(&pages));
    job.end()?;
    checked
}

fn drawn(pages: &Path) -> Result<(), Failed> {
    let mut command = tool(&["top", "--interval", "0.1", "--dir"]);
    command.arg(pages).env("TERM", "xterm");
    let mut top = OnTerminal::start(command, 80)?;
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    let is_drawn = loop {
        let read = top.read(&mut piece)?;
        seen.extend(&piece[..read]);
        let text = String::from_utf8_lossy(&seen);
        let screens = text.matches("\x1b[H").count();
        if read == 0 || screens > 2 {
            let heads = text.split("\r\n").filter(|line| line.contains("proxy lane"));
            let matter = heads.clone().all(|head| head.contains("failed") && head.contains(" /s"));
            let longest = text.split("\r\n").map(plain).map(|line| line.chars().count()).max();
            let fits = heads.count() >= 2 && matter && longest <= Some(80);
            break screens > 2 && text.matches("PE 0: ").count() >= 2 && fits;
        }
    };
    expect(is_drawn, || String::from_utf8_lossy(&seen).into_owned())
}

/// A line without what moves a terminal's cursor.
fn plain(line: &str) -> String {
    ["\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"]
        .iter()
        .fold(line.to_owned(), |line, code| line.replace(code, ""))
}

fn ended() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let (pages, kept) = (scratch.at("pages"), scratch.at("kept"));
    let job = Held::start(&scratch, &pages);
    let checked = counted(&pages).and_then(|_| keep(&pages, &kept));
    job.end()?;
    let names = checked?;
    let output = top(&kept, &["--once"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    for name in &names {
        expect(said.contains(&format!("{name}: its process has ended; removed")), || {
            said.to_string()
        })?;
    }
    expect(said.contains("\nhint: "), || said.to_string())?;
    expect(output.status.success() && fs::read_dir(&kept)?.next().is_none(), || said.to_string())
}

/// Copies the pages of a job that runs, as if it would not remove them. One of them is spoilt for a
/// while.
fn keep(pages: &Path, kept: &Path) -> Result<Vec<String>, Failed> {
    fs::create_dir(kept)?;
    fs::set_permissions(kept, fs::Permissions::from_mode(0o700))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(pages)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".json") {
            fs::copy(entry.path(), kept.join(&name))?;
            names.push(name);
        }
    }
    expect(names.len() == 2, || format!("{names:?}"))?;
    let spoilt = kept.join(&names[0]);
    for (text, why) in [
        (String::from("{\"format\": 1, \"pe\": "), "no page of counters"),
        (String::from("{\"format\": 9}"), "another version's"),
        ("x".repeat(1 << 20), "which no page has"),
    ] {
        fs::write(&spoilt, text)?;
        let output = top(kept, &["--once"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        let told =
            output.status.code() == Some(1) && said.contains(&names[0]) && said.contains(why);
        expect(told && table.matches("PE ").count() > 0, || format!("{said}\n{table}"))?;
    }
    Ok(names)
}

fn bad_input() -> Result<(), Failed> {
    let scratch = Scratch::new();
    bad(&mut top(&scratch.at("nowhere"), &["--once"]), 2)?;
    bad(&mut top(&scratch.write("file", ""), &["--once"]), 2)?;
    let open = scratch.at("open");
    fs::create_dir(&open)?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777))?;
    let said = bad(&mut top(&open, &["--once"]), 2)?;
    expect(said.contains("others may write to it"), || said.clone())?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755))?;
    let said = bad(&mut top(&open, &[]), 2)?;
    expect(said.contains("needs a terminal"), || said.clone())?;
    bad(&mut top(&open, &["--json", "--prometheus"]), 2)?;
    for interval in ["0", "nan", "soon"] {
        bad(&mut top(&open, &["--interval", interval]), 2)?;
    }
    Ok(())
}

/// That a command starts, and ends well.
fn starts(command: &str, arguments: &[&str]) -> Need<()> {
    match Command::new(command).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(format!("{command} does not work here: {said}"))
        }
        Err(error) => Err(format!("{command} does not start: {error}")),
    }
}

/// That another user can be had: by root.
fn two_users_here() -> Need<()> {
    starts("setpriv", &["--reuid", &NOBODY.to_string(), "--clear-groups", "true"])
}

fn two_users((): ()) -> Result<(), Failed> {
    // Where any user gets to.
    let place = std::env::temp_dir().join(format!("nvshmem-two-users-{}", std::process::id()));
    fs::create_dir(&place)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    let scratch = Scratch(place);
    let copy = scratch.at("nvshmem-libfabric");
    fs::copy(TOOL, &copy)?;
    let (mine, theirs) = (scratch.at("mine"), scratch.at("theirs"));
    for directory in [&mine, &theirs] {
        fs::create_dir(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    std::os::unix::fs::chown(&theirs, Some(NOBODY), None)?;
    let as_nobody = |directory: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &NOBODY.to_string(), "--clear-groups"]).arg(&copy);
        command.args(["top", "--once", "--dir"]).arg(directory);
        command
    };
    let said = bad(&mut as_nobody(&mine), 2)?;
    expect(said.contains(&format!("this is user {NOBODY}")), || said.clone())?;
    good(&mut as_nobody(&theirs))?;
    bad(&mut top(&theirs, &["--once"]), 2)?;
    // Nor does a job publish there. It runs on.
    let job = Held::start(&scratch, &theirs);
    let report = job.end()?;
    let warned = format!("it is user {NOBODY}'s, and this is user 0");
    expect(report.pes[0].text().contains(&warned), || report.to_string())?;
    expect(fs::read_dir(&theirs)?.next().is_none(), || String::from("something was written"))
}
