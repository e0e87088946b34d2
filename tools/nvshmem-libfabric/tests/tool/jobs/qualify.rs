//! `qualify`: a verdict on each row, one file that can be sent, and no row that keeps others from
//! being tried.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libtest_mimic::{Failed, Trial};
use test_support::needs::{self, is_set, libfabric2};
use test_support::{built, full};

use crate::bed::{Scratch, TOOL, bad, expect, good, plugins, signal, tool, tree, trial, wait};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("qualify::every_row_over_shm", shm),
        trial("qualify::rails_over_tcp_and_no_secrets", tcp),
        trial("qualify::memory_of_gpus", gpus),
        trial("qualify::a_row_that_hangs_is_ended_and_the_others_are_tried", hangs),
        trial("qualify::an_interrupted_run_leaves_a_file", interrupted),
        trial("qualify::bad_input", bad_input),
    ];
    if full() || is_set("NVSHMEM_TEST_CXI_LAB") {
        trials.push(needs::trial("cxi::qualify", libfabric2(), |library| cxi(&library)));
        let gpus = |library: PathBuf| cxi_gpus(&library);
        trials.push(needs::trial("cxi::qualify_of_gpus", libfabric2(), gpus));
    }
    if full() || is_set("NVSHMEM_TEST_EFA_LAB") {
        trials.push(needs::trial("efa::qualify", libfabric2(), |library| efa(&library)));
        if is_set("NVSHMEM_TEST_LIBFABRIC_CUDA") {
            let library = needs::named_by("NVSHMEM_TEST_LIBFABRIC_CUDA");
            let gpus = |library: PathBuf| efa_gpus(&library);
            trials.push(needs::trial("efa::qualify_of_gpus", library, gpus));
        }
    }
    trials
}

/// The tool, in short form.
fn qualify(out: &Path, options: &[&str]) -> Command {
    let mut command = tool(&["qualify", "--short", "--plugin-dir"]);
    command.arg(plugins()).arg("--out").arg(out).args(options);
    command
}

/// The verdict of each row, as the lines of JSON in the file have it.
pub(crate) fn verdicts(out: &Path) -> Result<Vec<(String, String)>, Failed> {
    let text = fs::read_to_string(out)?;
    let lines =
        text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let rows = lines.filter_map(|row| {
        Some((row["name"].as_str()?.to_owned(), row["verdict"].as_str()?.to_owned()))
    });
    Ok(rows.collect())
}

/// That rows have ended so: all whose names begin with one of these.
fn all_are(
    verdicts: &[(String, String)],
    names: &[&str],
    as_one_of: &[&str],
) -> Result<(), Failed> {
    for begins in names {
        let mut of = verdicts.iter().filter(|(name, _)| name.starts_with(begins)).peekable();
        let some = of.peek().is_some();
        expect(some && of.all(|(_, verdict)| as_one_of.contains(&verdict.as_str())), || {
            format!("{begins}: {verdicts:?}")
        })?;
    }
    Ok(())
}

/// Rows on memory of the host but for figures, which may be slow anywhere.
const TRAFFIC: [&str; 13] = [
    "put",
    "get",
    "p",
    "put-signal",
    "atomics-",
    "fence",
    "quiet",
    "storm",
    "signals-eager",
    "signals-chained",
    "order-under-load",
    "many-to-one",
    "machine",
];
const RIGHT: [&str; 2] = ["ok", "slow"];

/// Rows on memory of GPUs.
const GPUS: [&str; 2] = ["--only", "gpu,staged-,direct-"];
const ON_GPUS: [&str; 3] = ["gpu", "staged-", "direct-"];

fn shm() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("shm.txt");
    let said = good(&mut qualify(&out, &["--provider", "shm"]))?;
    expect(said.contains(" 0 failed, ") && said.contains("read it before you send it"), || {
        said.clone()
    })?;
    let verdicts = verdicts(&out)?;
    all_are(&verdicts, &TRAFFIC, &RIGHT)?;
    all_are(&verdicts, &["one-rail"], &RIGHT)?;
    all_are(&verdicts, &["all-rails", "gpu", "staged-", "direct-"], &["skipped"])?;
    // The verdict comes first, with no row left out.
    let text = fs::read_to_string(&out)?;
    let first = text.split("\n==== ").nth(1).unwrap_or_default();
    let shown = verdicts.iter().all(|(name, _)| first.contains(&format!(" {name} ")));
    expect(first.starts_with("verdict\n") && shown && !text.contains("NOT FINISHED"), || {
        text.clone()
    })
}

fn tcp() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("tcp.txt");
    let rows = "put-signal,signals-,one-rail,all-rails,order-under-load,many-to-one";
    let mut command = qualify(&out, &["--provider", "tcp", "--only", rows]);
    command.env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1,127.0.0.2");
    command.env("NVSHMEM_PW", "of-great-value").env("NVSHMEM_SOME_TOKEN", "of-great-value");
    for name in ["HOME", "USER", "LOGNAME"] {
        command.env(name, "a-user-of-this-test");
    }
    good(&mut command)?;
    let text = fs::read_to_string(&out)?;
    all_are(
        &verdicts(&out)?,
        &["put-signal", "signals-", "one-rail", "all-rails", "many-to-one"],
        &RIGHT,
    )?;
    for part in [
        "rails: 127.0.0.1, 127.0.0.2",
        "==== this host",
        "\n== doctor",
        "\n== info",
        "\n== environment",
        "==== log of put-signal",
        "rail(s)",
        "put_bw",
        "NVSHMEM_PW is set",
    ] {
        expect(text.contains(part), || format!("{part} is not in\n{text}"))?;
    }
    for secret in ["of-great-value", "a-user-of-this-test"] {
        expect(!text.contains(secret), || format!("{secret} is in\n{text}"))?;
    }
    let mode = fs::metadata(&out)?.permissions().mode() & 0o777;
    expect(mode == 0o600, || format!("others may read it: {mode:o}"))?;
    let before = tree(&scratch.0);
    bad(&mut qualify(&out, &[]), 2)?;
    expect(tree(&scratch.0) == before, || {
        String::from("nothing is changed, and nothing else is left")
    })
}

fn gpus() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("gpus.txt");
    let mut command = qualify(&out, &["--provider", "shm", "--only", "gpu,staged-,direct-"]);
    good(command.env("LD_LIBRARY_PATH", built::fake_cuda_dir()))?;
    let verdicts = verdicts(&out)?;
    all_are(&verdicts, &["gpu", "staged-"], &RIGHT)?;
    all_are(&verdicts, &["direct-"], &["skipped"])
}

/// A PE of the tool: the tool again, started without a word.
fn pe_of(tool: &Child) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", tool.id())).ok()?;
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
        let words = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.iter().filter(|byte| **byte == 0).count() == 1 && words.starts_with(TOOL.as_bytes())
    })
}

fn hangs() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("out.txt");
    let mut command =
        qualify(&out, &["--provider", "shm", "--only", "put,get,p,storm", "--deadline", "10"]);
    let mut tool = command.stdout(Stdio::null()).spawn()?;
    signal(wait("a PE", || pe_of(&tool))?, "-STOP")?;
    let status = tool.wait()?;
    expect(status.code() == Some(1), || format!("{status}"))?;
    let verdicts = verdicts(&out)?;
    let failed: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict == "failed").collect();
    // What doctor warns of is no matter here.
    let good = verdicts.iter().filter(|(_, verdict)| RIGHT.contains(&verdict.as_str())).count();
    expect(failed.len() == 1 && good + 1 == verdicts.len() && good > 3, || {
        format!("{verdicts:?}")
    })?;
    let text = fs::read_to_string(&out)?;
    expect(text.contains("the deadline of 10s has passed"), || text.clone())
}

fn interrupted() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("out.txt");
    let mut tool = qualify(&out, &["--provider", "shm"]).stdout(Stdio::null()).spawn()?;
    wait("a row that is over", || {
        fs::read_to_string(&out).ok()?.contains("\nok       put ").then_some(())
    })?;
    // Not SIGINT, which a shell has processes in the background ignore.
    signal(tool.id(), "-TERM")?;
    let status = tool.wait()?;
    expect(!status.success(), || format!("{status}"))?;
    let text = fs::read_to_string(&out)?;
    let named = text.contains("NOT FINISHED: it was ended while `");
    expect(named && text.contains("==== log of put"), || text.clone())?;
    all_are(&verdicts(&out)?, &["machine", "put"], &RIGHT)
}

fn bad_input() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("out.txt");
    let said = bad(&mut qualify(&out, &["--only", "put,teleport"]), 2)?;
    expect(said.contains("no row is named `teleport`") && said.contains("put-signal"), || {
        said.clone()
    })?;
    bad(&mut qualify(&out, &["--nvshmem", "/nonexistent"]), 2)?;
    bad(&mut qualify(&scratch.at("missing/out.txt"), &[]), 2)?;
    bad(qualify(&out, &[]).env("NVSHMEM_LIBFABRIC_LIBRARY", "/nonexistent"), 2)?;
    bad(&mut qualify(&out, &["--hosts", "a,b", "--ssh", "/nonexistent/ssh"]), 2)?;
    expect(tree(&scratch.0).is_empty(), || String::from("no file is left"))
}

/// On a persona of cxi, which keeps cxi's rules over libfabric's tcp.
fn cxi(carrier: &Path) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("cxi.txt");
    good(&mut on_cxi(&out, carrier, &[]))?;
    let verdicts = verdicts(&out)?;
    all_are(&verdicts, &TRAFFIC, &RIGHT)?;
    all_are(&verdicts, &["one-rail", "all-rails"], &RIGHT)
}

/// There, on memory of the stand-in for CUDA, which its NICs reach.
fn cxi_gpus(carrier: &Path) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("cxi.txt");
    let mut command = on_cxi(&out, carrier, &GPUS);
    good(command.env("LD_LIBRARY_PATH", built::fake_cuda_dir()))?;
    all_are(&verdicts(&out)?, &ON_GPUS, &RIGHT)
}

fn on_cxi(out: &Path, carrier: &Path, options: &[&str]) -> Command {
    let mut command = qualify(out, &["--provider", "cxi"]);
    command.env("NVSHMEM_LIBFABRIC_LIBRARY", built::cxi_lab()).env("CXI_LAB_LIBFABRIC", carrier);
    command.env("CXI_LAB_NICS", "2").args(options);
    command
}

/// On libfabric's efa provider, on NICs that are not there.
fn efa(library: &Path) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("efa.txt");
    good(on_efa(&scratch, &out, library, &[]).env("LD_LIBRARY_PATH", built::efa_lab_dir()))?;
    let verdicts = verdicts(&out)?;
    all_are(&verdicts, &TRAFFIC, &RIGHT)?;
    all_are(&verdicts, &["one-rail", "all-rails"], &RIGHT)
}

/// There, with a libfabric that was built with CUDA: by dma-bufs of the stand-in.
fn efa_gpus(library: &Path) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("efa.txt");
    let paths = format!("{}:{}", built::efa_lab_dir().display(), built::fake_cuda_dir().display());
    good(on_efa(&scratch, &out, library, &GPUS).env("LD_LIBRARY_PATH", paths))?;
    all_are(&verdicts(&out)?, &ON_GPUS, &RIGHT)
}

fn on_efa(scratch: &Scratch, out: &Path, library: &Path, options: &[&str]) -> Command {
    let nics = scratch.at("nics");
    let mut command = qualify(out, &["--provider", "efa"]);
    command.env("NVSHMEM_LIBFABRIC_LIBRARY", library).args(options);
    command.env("EFA_LAB_DIR", &nics).env("EFA_LAB_PERSONA", "p5en").env("EFA_LAB_NICS", "2");
    command.env("EFA_LAB_SEED", "1").env("EFA_LAB_HOST", "1").env("SYSFS_PATH", nics.join("sys"));
    fs::create_dir(nics).expect("a directory for NICs");
    command
}
