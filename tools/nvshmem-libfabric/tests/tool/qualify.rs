//! `qualify`: a verdict on each row, and one file without anything private.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use test_support::built;

use crate::bed::{Case, Scratch, plugins, refuses, says, signal, tool, tree, wait};

/// Figures may be slow anywhere.
pub(crate) const RIGHT: &[&str] = &["ok", "slow"];
const NOT_RUN: &[&str] = &["not run"];
const FAILED: &[&str] = &["FAILED"];

pub(crate) fn qualify(out: &Path, options: &str) -> Command {
    let mut command = tool(&format!("qualify --short --plugin-dir PLUGINS {options} --out"));
    command.arg(out);
    command
}

/// Returns the file, in which all rows of some parts have ended so.
pub(crate) fn rows(out: &Path, parts: &[(&str, &[&str])]) -> Result<String, libtest_mimic::Failed> {
    let text = fs::read_to_string(out)?;
    let (_, rows) = text.split_once("==== rows").ok_or_else(|| text.clone())?;
    for (part, verdicts) in parts {
        let rows = rows.lines().skip(1).take_while(|line| !line.is_empty());
        let of = rows.filter(|row| row.get(9..).is_some_and(|name| name.starts_with(part)));
        let of: Vec<&str> = of.map(|row| row[..8].trim()).collect();
        let right = !of.is_empty() && of.iter().all(|verdict| verdicts.contains(verdict));
        assert!(right, "{part}: {text}");
    }
    Ok(text)
}

pub(crate) fn shm() -> Case {
    let scratch = Scratch::new();
    let out = scratch.join("shm.txt");
    let sums = [", 0 FAILED, ", "the file to send"];
    says(&mut qualify(&out, "--provider shm"), 0, &sums)?;
    let rest = [("all-nics", NOT_RUN), ("staged", NOT_RUN), ("direct", NOT_RUN)];
    let text = rows(&out, &[&[("one-nic/", RIGHT)][..], &rest].concat())?;
    for name in ["operations", "signals", "order", "atomics", "storm", "perf"] {
        assert!(text.contains(&format!(" one-nic/{name} ")), "{text}");
    }
    assert!(text.contains("there is one NIC") && text.contains("shows no GPU"), "{text}");
    assert!(!text.contains("NOT FINISHED") && tree(&scratch).len() == 1, "{text}");
    let before = tree(&scratch);
    refuses(&mut qualify(&out, ""), 2, &["is there already"])?;
    assert!(tree(&scratch) == before, "nothing is changed, and nothing is left");
    Ok(())
}

pub(crate) fn tcp_without_private_text() -> Case {
    let scratch = Scratch::new();
    let out = scratch.join("tcp.txt");
    let mut command = qualify(&out, "--provider tcp --only one-nic,all-nics");
    for (name, value) in [
        ("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1,127.0.0.2"),
        ("FI_UNIVERSE_SIZE", "17"),
        ("NVSHMEM_PW", "of-great-value"),
        ("FI_TCP_IFACE", "of-great-value"),
        ("NVSHMEM_BOOTSTRAP", "/of-great-value"),
        ("HOME", "a-user-of-this-test"),
        ("USER", "a-user-of-this-test"),
        ("LOGNAME", "a-user-of-this-test"),
    ] {
        command.env(name, value);
    }
    says(&mut command, 0, &[])?;
    let text = rows(&out, &[("one-nic/", RIGHT), ("all-nics/", RIGHT)])?;
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
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let here = plugins().display().to_string();
    for private in ["of-great-value", "a-user-of-this-test", "127.0.0.", host.trim(), &here] {
        assert!(!text.contains(private), "{private} is in\n{text}");
    }
    // What is printed without running anything is what is sent.
    let mut dry = tool("qualify --dry-run --plugin-dir PLUGINS");
    let said = says(&mut dry, 0, &["\n==== machine\n"])?;
    assert!(!said.contains(&here), "{said}");
    let mode = fs::metadata(&out)?.permissions().mode() & 0o777;
    assert!(mode == 0o600, "others may read it: {mode:o}");
    Ok(())
}

pub(crate) fn gpus() -> Case {
    let scratch = Scratch::new();
    let out = scratch.join("gpus.txt");
    let mut command = qualify(&out, "--provider shm --only staged,direct");
    says(command.env("LD_LIBRARY_PATH", built::fake_cuda_dir()), 0, &[])?;
    rows(&out, &[("staged/", RIGHT), ("direct", NOT_RUN)]).map(drop)
}

/// Failures are rows without private text.
pub(crate) fn failures() -> Case {
    let scratch = Scratch::new();
    let out = scratch.join("out.txt");
    let mut command = qualify(&out, "--provider shm");
    says(command.env("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77"), 1, &["mlx5_77"])?;
    let (perf, staged) = (("one-nic/perf", NOT_RUN), ("staged", NOT_RUN));
    let text = rows(&out, &[("one-nic/operations", FAILED), perf, staged])?;
    let told = text.contains("NVSHMEM_LIBFABRIC_DEVICES: `…` is no device of provider …");
    assert!(told && !text.contains("mlx5_77"), "{text}");
    Ok(())
}

/// A run that is stopped leaves the part of its file, which refuses no later one.
pub(crate) fn stopped() -> Case {
    let scratch = Scratch::new();
    let (out, part) = (scratch.join("out.txt"), scratch.join("out.txt.part"));
    let begun = || fs::read_to_string(&part).ok().filter(|text| text.contains("NOT FINISHED"));
    for how in ["-TERM", "-KILL"] {
        let mut tool = qualify(&out, "--provider shm").stdout(Stdio::null()).spawn()?;
        let text = wait("a part of the file", begun)?;
        assert!(text.contains("it ended while one-nic was tried"), "{text}");
        signal(tool.id(), how)?;
        let status = tool.wait()?;
        assert!(!status.success() && !out.exists() && part.exists(), "{how}: {status}");
        fs::write(&part, "")?;
    }
    says(&mut qualify(&out, "--provider shm --only direct"), 0, &[])?;
    assert!(!part.exists(), "the part has become it");
    Ok(())
}
