//! `trace`: what a job records, as a timeline, and what is found in it: nothing in what is in order, over the real transport and in
//! the replay, and the first read of what is not.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, JobReport, JobSettings, Layout};
use nvshmem_transport_libfabric::job::recording::format::{Caller, Kind, Record, Recording, done};
use serde_json::Value;

use crate::bed::{Scratch, bad, expect, good, json, plugins, tool, tree, trial};

const PES: u32 = 3;
const BYTES: u64 = 256 << 10;
const ROUNDS: u64 = 6;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("trace::timeline_of_a_job", timeline),
        trial("trace::nothing_is_found_in_what_is_in_order", in_order),
        trial("trace::missing_quiets_and_fences_are_found", not_in_order),
        trial("trace::recordings_are_bounded", bounded),
        trial("trace::jobs_that_cannot_record_run", cannot_record),
        trial("trace::bad_input_changes_nothing", bad_input),
    ]
}

/// Each sends to the next one in every way there is, with what orders it.
pub(crate) fn program(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let (data, words) = (host.alloc(4 * BYTES, 4096)?, host.alloc(4096, 4096)?);
    let source = host.alloc(BYTES, 4096)?;
    host.barrier()?;
    let next = (me + 1) % n;
    for round in 1..=job.param_or("rounds", ROUNDS)? {
        host.proxy().put(next, data, source, BYTES)?;
        host.proxy().amo(next, words, Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1))?;
        while host.local(words, 8)?.load_acquire()? < round {
            std::thread::yield_now();
        }
        let signal = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, round);
        host.proxy().put_signal(next, data.plus(BYTES), source, 4096, words.plus(8), signal)?;
        host.user().put(next, data.plus(2 * BYTES), source, 100)?;
        host.user().fence()?;
        host.user().p(next, words.plus(16), round, 8)?;
        host.barrier()?;
        host.proxy().get(next, data, source.plus(1024), 512)?;
        host.barrier()?;
    }
    host.finalize()?;
    Ok(())
}

/// What is wrong with a program.
const CARELESS: [(&str, &str); 3] = [
    ("get", "a missing quiet: PE 0's get"),
    ("send-on", "a missing quiet: PE 0's put"),
    ("flag", "and nothing had ordered it"),
];

/// One mistake, and the same without.
pub(crate) fn careless(job: &mut Job) -> Result<(), BoxError> {
    let (what, well) = (job.param::<String>("what")?, job.param::<u32>("well")? == 1);
    let me = job.pe();
    let host = job.init()?;
    let (data, flag) = (host.alloc(BYTES, 4096)?, host.alloc(4096, 4096)?);
    let (source, other) = (host.alloc(BYTES, 4096)?, host.alloc(BYTES, 4096)?);
    host.barrier()?;
    let proxy = host.proxy();
    let wait = |word| -> Result<(), BoxError> {
        while host.local(word, 8)?.load_acquire()? == 0 {
            std::thread::yield_now();
        }
        Ok(())
    };
    match (what.as_str(), me) {
        ("get", 0) => {
            proxy.put(1, data, source, BYTES)?;
            if well {
                proxy.quiet()?;
            }
            proxy.get(1, data.plus(64), other, 64)?;
        }
        ("send-on", 0) => {
            proxy.get(1, data, source, BYTES)?;
            if well {
                proxy.quiet()?;
            }
            proxy.put(2, other, source, BYTES)?;
        }
        ("flag", 0) => {
            proxy.put(1, data, source, BYTES)?;
            if well {
                proxy.fence()?;
            }
            proxy.p(1, flag, 1, 8)?;
            // It has waited for no quiet by then.
            wait(flag.plus(8))?;
        }
        ("flag", 1) => {
            wait(flag)?;
            proxy.put(2, other, data, BYTES)?;
            proxy.p(0, flag.plus(8), 1, 8)?;
        }
        _ => {}
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

/// A job of one of these programs, or of the simulator's, which records or is to.
fn record(pattern: &str, layout: Layout, settings: &[(&str, &str)]) -> Result<JobReport, Failed> {
    let scenario = settings.iter().find(|(name, _)| *name == "scenario");
    let scenario = scenario.map_or("trace", |(_, scenario)| *scenario);
    let mut job = JobSettings::new(scenario, PES, layout, plugins())
        .heap(64 << 20, 1 << 20)
        .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")
        .env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1,127.0.0.2")
        .env("NVSHMEM_LIBFABRIC_TRACE", pattern);
    for (name, value) in settings {
        job = match *name {
            "scenario" => job,
            "rounds" | "what" | "well" => job.param(*name, value),
            name => job.env(name, value),
        };
    }
    Ok(job.run()?.check()?)
}

/// Records, and gives the files.
fn recorded(
    scratch: &Scratch,
    layout: Layout,
    settings: &[(&str, &str)],
) -> Result<Vec<PathBuf>, Failed> {
    record(&scratch.at("pe-%p.trace").display().to_string(), layout, settings)?;
    Ok((0..PES).map(|pe| scratch.at(&format!("pe-{pe}.trace"))).collect())
}

fn read(path: &PathBuf) -> Result<Recording, Failed> {
    Ok(Recording::decode(&fs::read(path)?)?)
}

fn trace(what: &str, files: &[PathBuf]) -> Command {
    let mut command = tool(&["trace", what]);
    command.args(files);
    command
}

fn timeline() -> Result<(), Failed> {
    for layout in [Layout::V3b, Layout::V7] {
        let scratch = Scratch::new();
        let files = recorded(&scratch, layout, &[])?;
        let out = scratch.at("timeline.json");
        good(trace("show", &files).arg("--out").arg(&out))?;
        let shown: Value = serde_json::from_slice(&fs::read(&out)?)?;
        let events = shown["traceEvents"].as_array().ok_or("no list of events")?;
        events.iter().try_for_each(is_event)?;
        for (pe, file) in files.iter().enumerate() {
            expect(fs::metadata(file)?.mode() & 0o777 == 0o600, || String::from("its mode"))?;
            let recording = read(file)?;
            let pe = pe as u32;
            let kept = (recording.pe, recording.n_pes, recording.overwritten, recording.torn);
            expect(kept == (pe, PES, 0, 0) && recording.ended.is_some(), || format!("{kept:?}"))?;
            expect(recording.provider.starts_with("tcp"), || recording.provider.clone())?;
            let next = (pe + 1) % PES;
            let count = |kind, caller, peer: u32| {
                let same = |record: &&Record| {
                    (record.kind, record.caller, record.pe) == (kind, caller, peer)
                        && record.status == 0
                        && record.took.is_some()
                };
                recording.records.iter().filter(same).count() as u64
            };
            // Before layout 4 a put with signal is a put, a fence and an atomic.
            let apart = if layout == Layout::V3b { ROUNDS } else { 0 };
            // A chunk of the heap is a call of its own.
            let expected = [
                (Kind::Amo, Caller::Proxy, ROUNDS + apart),
                (Kind::PutSignal, Caller::Proxy, ROUNDS - apart),
                (Kind::Put, Caller::Host, ROUNDS),
                (Kind::Fence, Caller::Host, ROUNDS),
                (Kind::P, Caller::Host, ROUNDS),
                (Kind::Get, Caller::Proxy, ROUNDS),
            ];
            for (kind, caller, times) in expected {
                let found = count(kind, caller, next);
                expect(found == times, || format!("{layout:?}: {found} {kind:?} by {caller:?}"))?;
            }
            expect(count(Kind::Put, Caller::Proxy, next) >= ROUNDS + apart, || {
                String::from("puts")
            })?;
            let put = recording.records.iter().find(|record| record.kind == Kind::Put);
            let put = put.ok_or("no put")?;
            // The same place in the heap of the one as in that of the other, by what both have registered.
            let there = read(&files[next as usize])?.place(put.remote, u64::MAX);
            let here = recording.place(put.local, u64::MAX);
            expect(there.is_some() && here.is_some(), || format!("{put:?}: {there:?} {here:?}"))?;
            let ends = recording.records.iter().filter(|record| record.kind == Kind::Done);
            let seen = ends.fold(0, |seen, record| seen | record.op);
            expect(seen == done::PUTS | done::WORDS | done::GETS, || format!("ends {seen}"))?;
            let calls = recording.records.iter().filter(|record| record.kind != Kind::Done).count();
            let of_it = events.iter().filter(|event| event["ph"] == "X" && event["pid"] == pe);
            expect(of_it.count() == calls, || format!("{calls} calls of PE {pe}"))?;
        }
        // What is there is not overwritten, and to standard output goes the same.
        let before = tree(&scratch.0);
        bad(trace("show", &files).arg("--out").arg(&out), 2)?;
        expect(json(&mut trace("show", &files))? == shown, || String::from("another one"))?;
        expect(tree(&scratch.0) == before, || String::from("something was written"))?;
    }
    Ok(())
}

/// That it has what the format of trace events asks of one of its kind.
fn is_event(event: &Value) -> Result<(), Failed> {
    let numbers: &[&str] = match event["ph"].as_str() {
        Some("M") => &["pid", "tid"],
        Some("X") => &["pid", "tid", "ts", "dur"],
        Some("b" | "e" | "i" | "B") => &["pid", "tid", "ts"],
        _ => &["none of its kind"],
    };
    let whole = numbers.iter().all(|name| event[*name].is_number()) && event["name"].is_string();
    let has_id = !matches!(event["ph"].as_str(), Some("b" | "e")) || event["id"].is_string();
    let later = event["ts"].as_f64().is_none_or(|ts| ts >= 0.0);
    expect(whole && has_id && later, || event.to_string())
}

/// The program here, and those that the transport is tested with.
fn in_order() -> Result<(), Failed> {
    let jobs: [(Layout, &[(&str, &str)]); 4] = [
        (Layout::V3b, &[]),
        (Layout::V7, &[("rounds", "10")]),
        (Layout::V7, &[("scenario", "order"), ("rounds", "10")]),
        (Layout::V6, &[("scenario", "operations")]),
    ];
    for (layout, settings) in jobs {
        let scratch = Scratch::new();
        let files = recorded(&scratch, layout, settings)?;
        let before = tree(&scratch.0);
        let output = trace("check", &files).args(["--json", "--seeds", "4"]).output()?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        expect(output.status.success() && report["findings"] == Value::Array(Vec::new()), || {
            format!("{layout:?}, {settings:?}: {report:#}")
        })?;
        expect(report["replayed"].as_u64() > Some(20) && report["seeds"] == 4, || {
            format!("{report:#}")
        })?;
        expect(tree(&scratch.0) == before, || String::from("something was written"))?;
    }
    Ok(())
}

fn not_in_order() -> Result<(), Failed> {
    for (what, said) in CARELESS {
        for (well, status) in [("1", 0), ("0", 1)] {
            let scratch = Scratch::new();
            let settings = [("scenario", "careless"), ("what", what), ("well", well)];
            let files = recorded(&scratch, Layout::V7, &settings)?;
            let output = trace("check", &files).output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            expect(output.status.code() == Some(status), || format!("{what}, {well}: {text}"))?;
            expect(text.contains(said) == (status == 1), || format!("{what}, {well}: {text}"))?;
            let nothing = text.contains("nothing was read that was not ordered");
            expect(nothing == (status == 0), || format!("{what}, {well}: {text}"))?;
        }
    }
    Ok(())
}

fn bounded() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let settings = [("NVSHMEM_LIBFABRIC_TRACE_RECORDS", "1K"), ("rounds", "80")];
    for file in recorded(&scratch, Layout::V7, &settings)? {
        let recording = read(&file)?;
        let most = fs::metadata(&file)?.len();
        expect(recording.records.len() == 1024 && recording.overwritten > 0, || {
            format!("{} and {}", recording.records.len(), recording.overwritten)
        })?;
        expect(most < (1024 + 1024) * 64, || format!("{most} bytes"))?;
        let said = tool(&["trace", "show"]).arg(&file).output()?;
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        expect(said.contains("older records were overwritten"), || said.clone())?;
        expect(said.contains("of 3 PEs 2 have no recording here"), || said.clone())?;
    }
    Ok(())
}

fn cannot_record() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let report = record(&scratch.at("nowhere/%p").display().to_string(), Layout::V7, &[])?;
    let said = report.pes[0].text();
    expect(said.contains("nothing is recorded: No such file"), || said.to_string())?;
    expect(tree(&scratch.0).is_empty(), || String::from("something was written"))
}

fn bad_input() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let files = recorded(&scratch, Layout::V7, &[("rounds", "1")])?;
    let bytes = fs::read(&files[0])?;
    let mut other = bytes.clone();
    other[8] = 77;
    fs::write(scratch.at("other"), other)?;
    fs::write(scratch.at("short"), &bytes[..bytes.len() - 1])?;
    let mut damaged = bytes.clone();
    let last = damaged.len() - 4;
    damaged[last] = 99;
    fs::write(scratch.at("damaged"), damaged)?;
    scratch.write("text", "some text");
    scratch.write("empty", "");
    fs::copy(&files[1], scratch.at("again"))?;
    let before = tree(&scratch.0);
    for what in ["show", "check"] {
        for (name, why) in [
            ("nowhere", "No such file"),
            ("text", "it is no recording"),
            ("empty", "it is no recording"),
            ("other", "it has format 77"),
            ("short", "it ends after"),
            ("damaged", "it is damaged"),
            ("", "directory"),
        ] {
            let said = bad(&mut trace(what, &[scratch.at(name)]), 2)?;
            expect(said.contains(why) && said.contains(name), || format!("{name}: {said}"))?;
        }
        let said = bad(&mut trace(what, &[files[1].clone(), scratch.at("again")]), 2)?;
        expect(said.contains("there is one of PE 1 already"), || said.clone())?;
        bad(&mut trace(what, &[]), 2)?;
    }
    bad(&mut tool(&["trace"]), 2)?;
    for wrong in [["--seeds", "-1"], ["--seeds", "x"], ["--calls", "0"]] {
        bad(trace("check", &files).args(wrong), 2)?;
    }
    bad(trace("show", &files).args(["--out", "/nonexistent/x.json"]), 2)?;
    expect(tree(&scratch.0) == before, || String::from("something was written"))
}
