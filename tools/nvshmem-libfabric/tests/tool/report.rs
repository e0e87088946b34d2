//! `report`: all that helps, and nothing that is nobody's business.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use libtest_mimic::{Failed, Trial};

use crate::bed::{Scratch, bad, expect, good, plugins, tool, tree, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("report::all_of_it_and_no_secrets", all),
        trial("report::bad_input_leaves_no_file", bad_input),
    ]
}

fn report(options: &[&str]) -> Command {
    let mut command = tool(&["report", "--plugin-dir"]);
    command.arg(plugins()).args(options);
    command
}

fn all() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("report.txt");
    let log = scratch.write(
        "pe-0.log",
        "PE 0 of 192.0.2.77 at /home/a-user-of-this-test/x\n\
         compute-7-31:11:12 NVSHMEM INFO tcp:192.0.2.78:9 and compute-7-32 \
         http://me:of-great-value@proxy NVSHMEM_PW=of-great-value\n",
    );
    let mut command = report(&["--out"]);
    command.arg(&out).arg("--log").arg(&log);
    command.env("NVSHMEM_LIBFABRIC_PROVIDER", "shm").env("NVSHMEM_SOME_TOKEN", "of-great-value");
    for secret in [
        "NVSHMEM_AUTH",
        "NVSHMEM_PW",
        "FI_OPX_UUID",
        "FI_PSM2_UUID",
        "NVSHMEM_BOOTSTRAP_UID_SESSION_ID",
    ] {
        command.env(secret, "of-great-value");
    }
    command.env("AWS_SECRET_ACCESS_KEY", "of-great-value").env("HOME", "/home/a-user-of-this-test");
    command.env("USER", "a-user-of-this-test").env("LOGNAME", "a-user-of-this-test");
    let said = good(&mut command)?;
    expect(said.contains("read it before you send it"), || said.clone())?;
    let text = fs::read_to_string(&out)?;
    for part in [
        "==== machine",
        "==== doctor",
        "==== info",
        "==== environment",
        "NVSHMEM_LIBFABRIC_PROVIDER=shm",
        "==== selftest",
        "ok     shm",
        "==== log of PE 0",
        "rail(s)",
        "PE 0 of ADDRESS",
        "at ~/x",
        "NVSHMEM_AUTH is set",
    ] {
        expect(text.contains(part), || format!("{part} is not in\n{text}"))?;
    }
    for secret in ["of-great-value", "a-user-of-this-test", "192.0.2.7", "compute-7"] {
        expect(!text.contains(secret), || format!("{secret} is in\n{text}"))?;
    }
    let mode = fs::metadata(&out)?.permissions().mode() & 0o777;
    expect(mode == 0o600, || format!("others may read it: {mode:o}"))?;
    // What is there is not overwritten.
    let before = tree(&scratch.0);
    bad(report(&["--out"]).arg(&out), 2)?;
    expect(tree(&scratch.0) == before, || String::from("nothing is changed"))
}

fn bad_input() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("report.txt").display().to_string();
    bad(&mut report(&["--out", &scratch.at("missing/report.txt").display().to_string()]), 2)?;
    let options = ["--out", &out, "--no-selftest", "--log", "/nonexistent"];
    let said = bad(&mut report(&options), 2)?;
    expect(said.contains("cannot be read"), || said.clone())?;
    bad(&mut report(&["--out", &out, "--nvshmem", "/nonexistent"]), 2)?;
    expect(tree(&scratch.0).is_empty(), || String::from("no file is left"))
}
