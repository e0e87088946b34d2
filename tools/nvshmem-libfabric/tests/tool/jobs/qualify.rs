//! `qualify`: a verdict on each row, one file without anything private, and nothing left behind.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use test_support::built;

use crate::bed::{Scratch, bad, behind, expect, good, plugins, signal, tool, tree, trial, wait};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("qualify::rows_over_shm", shm),
        trial("qualify::nics_over_tcp_and_nothing_private", tcp),
        trial("qualify::gpu_memory", gpus),
        trial("qualify::failures_are_rows_without_private_text", failures),
        trial("qualify::stopped_run_leaves_nothing_behind", stopped),
    ]
}

fn qualify(out: &Path, options: &[&str]) -> Command {
    let mut command = tool(&["qualify", "--short", "--plugin-dir"]);
    command.arg(plugins()).arg("--out").arg(out).args(options);
    command
}

pub(crate) fn verdicts(out: &Path) -> Result<Vec<(String, String)>, Failed> {
    let text = fs::read_to_string(out)?;
    let (_, rows) = text.split_once("==== rows").ok_or_else(|| text.clone())?;
    let row = |line: &str| Some((line.get(9..29)?.trim().to_owned(), line[..8].trim().to_owned()));
    Ok(rows.lines().skip(1).take_while(|line| !line.is_empty()).filter_map(row).collect())
}

/// That all rows of a part have ended so.
pub(crate) fn all_are(out: &Path, part: &str, as_one_of: &[&str]) -> Result<(), Failed> {
    let verdicts = verdicts(out)?;
    let mut of = verdicts.iter().filter(|(name, _)| name.starts_with(part)).peekable();
    let some = of.peek().is_some();
    expect(some && of.all(|(_, verdict)| as_one_of.contains(&verdict.as_str())), || {
        format!("{part}: {verdicts:?}")
    })
}

/// Figures may be slow anywhere.
pub(crate) const RIGHT: &[&str] = &["ok", "slow"];
const NOT_RUN: &[&str] = &["not run"];

fn shm() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("shm.txt");
    let said = good(&mut qualify(&out, &["--provider", "shm"]))?;
    expect(said.contains(", 0 FAILED, ") && said.contains("the file to send"), || said.clone())?;
    all_are(&out, "one-nic/", RIGHT)?;
    all_are(&out, "all-nics", NOT_RUN)?;
    all_are(&out, "staged", NOT_RUN)?;
    all_are(&out, "direct", NOT_RUN)?;
    let text = fs::read_to_string(&out)?;
    let names = ["operations", "signals", "order", "atomics", "storm", "perf"];
    let rows = names.iter().all(|name| text.contains(&format!(" one-nic/{name} ")));
    expect(rows && text.contains("there is one NIC") && text.contains("shows no GPU"), || {
        text.clone()
    })?;
    expect(!text.contains("NOT FINISHED") && tree(scratch.path()).len() == 1, || text.clone())?;
    // None is overwritten.
    let before = tree(scratch.path());
    bad(&mut qualify(&out, &[]), 2)?;
    expect(tree(scratch.path()) == before, || {
        String::from("nothing is changed, and nothing is left")
    })
}

fn tcp() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("tcp.txt");
    let mut command = qualify(&out, &["--provider", "tcp", "--only", "one-nic,all-nics"]);
    command.env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1,127.0.0.2").env("FI_UNIVERSE_SIZE", "17");
    command.env("NVSHMEM_PW", "of-great-value").env("FI_TCP_IFACE", "of-great-value");
    command.env("NVSHMEM_BOOTSTRAP", "/of-great-value");
    for name in ["HOME", "USER", "LOGNAME"] {
        command.env(name, "a-user-of-this-test");
    }
    good(&mut command)?;
    all_are(&out, "one-nic/", RIGHT)?;
    all_are(&out, "all-nics/", RIGHT)?;
    let text = fs::read_to_string(&out)?;
    for part in [
        "qualify: tcp",
        ", 1 host(s), short, 2 rail(s)",
        "\n==== machine\n",
        "\n==== doctor\n",
        "\n==== environment\n",
        "\nFI_UNIVERSE_SIZE=17\n",
        "\n==== figures\none-nic put_bw 8 0.",
        "\nall-nics put_message_rate 64 ",
    ] {
        expect(text.contains(part), || format!("{part} is not in\n{text}"))?;
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let here = plugins().display().to_string();
    for private in ["of-great-value", "a-user-of-this-test", "127.0.0.", host.trim(), &here] {
        expect(!text.contains(private), || format!("{private} is in\n{text}"))?;
    }
    // What is printed without running anything is what is sent.
    let said = good(&mut tool(&["qualify", "--dry-run", "--plugin-dir", &here]))?;
    expect(said.starts_with("\n==== machine\n") && !said.contains(&here), || said.clone())?;
    let mode = fs::metadata(&out)?.permissions().mode() & 0o777;
    expect(mode == 0o600, || format!("others may read it: {mode:o}"))
}

fn gpus() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("gpus.txt");
    let mut command = qualify(&out, &["--provider", "shm", "--only", "staged,direct"]);
    good(command.env("LD_LIBRARY_PATH", built::fake_cuda_dir()))?;
    all_are(&out, "staged/", RIGHT)?;
    all_are(&out, "direct", NOT_RUN)
}

fn failures() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("out.txt");
    let mut command = qualify(&out, &["--provider", "shm"]);
    let output = command.env("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77").output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    expect(output.status.code() == Some(1) && said.contains("mlx5_77"), || said.clone())?;
    let text = fs::read_to_string(&out)?;
    let told = text.contains("NVSHMEM_LIBFABRIC_DEVICES: `…` is no device of provider …");
    expect(told && !text.contains("mlx5_77"), || text.clone())?;
    all_are(&out, "one-nic/operations", &["FAILED"])?;
    all_are(&out, "one-nic/perf", NOT_RUN)?;
    all_are(&out, "staged", NOT_RUN)
}

fn stopped() -> Result<(), Failed> {
    let stop = ["qualify", "--provider", "shm", "--short", "--out"];
    let perf = ["perf", "--provider", "shm"];
    let selftest = ["selftest", "--provider", "shm"];
    for (line, how) in [
        (&stop[..], "-TERM"),
        (&stop, "-KILL"),
        (&perf, "-TERM"),
        (&selftest, "-INT"),
        (&selftest, "-KILL"),
    ] {
        let scratch = Scratch::new();
        let (out, tmp) = (scratch.at("out.txt"), scratch.at("tmp"));
        fs::create_dir(&tmp)?;
        let shm = || -> BTreeSet<PathBuf> {
            let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let before = shm();
        // A process in the background of a script inherits that SIGINT is ignored.
        let mut command = behind(&["env", "--default-signal=INT"].map(String::from), line);
        command.args((line == stop).then_some(&out)).arg("--plugin-dir").arg(plugins());
        let mut tool = command.env("TMPDIR", &tmp).stdout(Stdio::null()).spawn()?;
        let of_job = || -> Vec<PathBuf> {
            let pids = descendants(tool.id());
            let is_theirs = |path: &PathBuf| {
                let name = path.to_string_lossy().into_owned();
                let mut numbers = name.split(|c: char| !c.is_ascii_digit());
                numbers.any(|number| number.parse().is_ok_and(|pid| pids.contains(&pid)))
            };
            shm().into_iter().filter(|path| !before.contains(path) && is_theirs(path)).collect()
        };
        let files = wait("files of a job", || Some(of_job()).filter(|files| !files.is_empty()))?;
        signal(tool.id(), how)?;
        let status = tool.wait()?;
        expect(!status.success() && !out.exists(), || format!("{line:?} {how}: {status}"))?;
        wait("the end of all files", || {
            let left = files.iter().any(|file| file.exists()) || !tree(&tmp).is_empty();
            (!left).then_some(())
        })?;
        if line != stop {
            continue;
        }
        let part = fs::read_to_string(scratch.at("out.txt.part"))?;
        expect(part.contains("NOT FINISHED: it ended while one-nic was tried"), || part.clone())?;
        // The next run is not refused.
        good(&mut qualify(&out, &["--provider", "shm", "--only", "direct"]))?;
        expect(!scratch.at("out.txt.part").exists(), || String::from("the part has become it"))?;
    }
    Ok(())
}

fn descendants(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child: u32| [vec![child], descendants(child)].concat()).collect()
}
