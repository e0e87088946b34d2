//! `trace`: what the recorder in front of a transport records, as a timeline, and what is found in
//! it: nothing in what is in order, and the first read of what is not.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_recording::{Caller, Kind, Record, Recording};
use nvshmem_sim::{Amo, BoxError, Job, JobReport, JobSettings, Layout};
use serde_json::Value;

use crate::bed::{Scratch, TOOL, bad, expect, file_name, good, json, plugins, tool, tree, trial};

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
        trial("trace::without_a_transport_there_is_no_job", no_transport),
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

/// A job of one of these programs, or of the simulator's, that asks for its transport by name.
fn job(layout: Layout, settings: &[(&str, &str)]) -> JobSettings {
    let scenario = settings.iter().find(|(name, _)| *name == "scenario");
    let scenario = scenario.map_or("trace", |(_, scenario)| *scenario);
    let mut job = JobSettings::new(scenario, PES, layout, plugins())
        .by_name()
        .heap(64 << 20, 1 << 20)
        .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")
        .env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1,127.0.0.2");
    for (name, value) in settings {
        job = match *name {
            "scenario" => job,
            "rounds" | "what" | "well" => job.param(*name, value),
            name => job.env(name, value),
        };
    }
    job
}

/// Such a job, each PE of which `run --record` starts.
fn start(pattern: &str, layout: Layout, settings: &[(&str, &str)]) -> Result<JobReport, Failed> {
    let mut job = job(layout, settings);
    // The variable that makes a PE of the program would make one of the tool.
    let line = "tool=$1 pattern=$2 dir=$3 pe=$NVSHMEM_SIM_PE; shift 3; unset NVSHMEM_SIM_PE; \
                exec \"$tool\" run --any-nvshmem --record \"$pattern\" --plugin-dir \"$dir\" -- \
                env NVSHMEM_SIM_PE=\"$pe\" \"$@\"";
    // What `run` refuses is set behind it.
    let taken = if pattern.contains("%p") { pattern } else { "%p" };
    job.prefix = ["/bin/sh", "-c", line, "sh", TOOL, taken].map(OsString::from).to_vec();
    job.prefix.push(plugins().into());
    if taken != pattern {
        job.prefix.push(format!("NVSHMEM_RECORDER_FILE={pattern}").into());
    }
    Ok(job.run()?)
}

/// Records, and gives the files.
fn recorded(
    scratch: &Scratch,
    layout: Layout,
    settings: &[(&str, &str)],
) -> Result<Vec<PathBuf>, Failed> {
    start(&scratch.at("pe-%p.trace").display().to_string(), layout, settings)?.check()?;
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
    for layout in Layout::ALL {
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
            let name = file_name(layout.major().number().unsigned_abs());
            expect(recording.transport == name, || recording.transport.clone())?;
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
            let apart = if layout < Layout::V4 { ROUNDS } else { 0 };
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
            // The same place in the heap of the one as in that of the other, by what both have
            // registered.
            let there = read(&files[next as usize])?.place(put.remote, u64::MAX);
            let here = recording.place(put.local, u64::MAX);
            expect(there.is_some() && here.is_some(), || format!("{put:?}: {there:?} {here:?}"))?;
            let calls = recording.records.len();
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
        Some("i" | "B") => &["pid", "tid", "ts"],
        _ => &["none of its kind"],
    };
    let whole = numbers.iter().all(|name| event[*name].is_number()) && event["name"].is_string();
    let later = event["ts"].as_f64().is_none_or(|ts| ts >= 0.0);
    expect(whole && later, || event.to_string())
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
        let output = trace("check", &files).arg("--json").output()?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        expect(output.status.success() && report["findings"] == Value::Array(Vec::new()), || {
            format!("{layout:?}, {settings:?}: {report:#}")
        })?;
        expect(report["calls"].as_u64() > Some(20), || format!("{report:#}"))?;
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
    let settings = [("NVSHMEM_RECORDER_RECORDS", "1024"), ("rounds", "80")];
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
    let nowhere = scratch.at("nowhere/%p").display().to_string();
    for (pattern, settings, why) in [
        (nowhere.as_str(), &[][..], "cannot be made: No such file"),
        ("trace", &[][..], "there is no %p in trace"),
        ("%p.trace", &[("NVSHMEM_RECORDER_RECORDS", "5")][..], "`5` is no number from 1024"),
    ] {
        let report = start(pattern, Layout::V7, settings)?.check()?;
        let said = report.pes[0].text();
        expect(said.contains("nothing is recorded: ") && said.contains(why), || said.to_string())?;
    }
    expect(tree(&scratch.0).is_empty(), || String::from("something was written"))
}

fn no_transport() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let text = scratch.write("text", "no library").display().to_string();
    let recorder = plugins().join(nvshmem_abi::file_name("recorder", 7));
    let copy = scratch.at("copy.so").display().to_string();
    fs::copy(&recorder, &copy)?;
    for (named, why) in [
        ("libfabric", "libfabric: it is no path"),
        (&recorder.display().to_string(), "the recorder itself is no transport"),
        (&copy, "the recorder itself is no transport"),
        (&text, "text"),
        ("/nowhere/file.so", "/nowhere/file.so: cannot open"),
    ] {
        let report = start("%p", Layout::V7, &[("NVSHMEM_RECORDER_TRANSPORT", named)])?;
        refused(&report, why)?;
    }
    // Preloaded by hand, with nothing beside it, or with itself in the place of the plugin.
    let alone = scratch.at("alone.so");
    fs::copy(&recorder, &alone)?;
    let itself = scratch.at("itself").join(file_name(7));
    fs::create_dir(scratch.at("itself"))?;
    fs::copy(&recorder, &itself)?;
    let missing = format!("{}: cannot open", scratch.at(&file_name(7)).display());
    for (file, why) in [(alone, missing.as_str()), (itself, "the recorder itself is no transport")]
    {
        let file = file.display().to_string();
        refused(&job(Layout::V7, &[("LD_PRELOAD", &file)]).run()?, why)?;
    }
    Ok(())
}

/// That no PE has a transport, and why.
fn refused(report: &JobReport, why: &str) -> Result<(), Failed> {
    let said = report.pes[0].text();
    let told = said.contains("NVSHMEM_RECORDER_TRANSPORT: ") && said.contains(why);
    expect(told && !report.succeeded(), || format!("{why}: {report}"))
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
    bad(trace("show", &files).args(["--out", "/nonexistent/x.json"]), 2)?;
    expect(tree(&scratch.0) == before, || String::from("something was written"))
}
