//! `selftest`: it passes on what is well, and fails with words on what is not.

use std::fs;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use test_support::needs;

use crate::bed::{RELEASES, Scratch, bad, behind, expect, file_name, good, plugins, tool, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("selftest::host_memory_over_shm", host),
        trial("selftest::a_plugin_that_does_not_work_fails", wrong),
        trial("selftest::one_mistake_is_one_error", one_mistake),
        needs::trial("selftest::little_shared_memory", needs::own_shm(64), little),
    ]
}

fn selftest(options: &[&str]) -> Command {
    let mut command = tool(&["selftest", "--provider", "shm"]);
    command.args(options);
    command
}

fn host() -> Result<(), Failed> {
    let text = good(selftest(&["--pes", "3", "--plugin-dir"]).arg(plugins()))?;
    expect(text.ends_with("5 of 5 passed, with 3 PEs\n"), || text.clone())
}

fn wrong() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let lib = scratch.at("lib");
    fs::create_dir(&lib)?;
    for (_, number) in RELEASES {
        fs::copy(plugins().join(file_name(number)), lib.join(file_name(number)))?;
    }
    let mut command = selftest(&["--json", "--plugin-dir"]);
    command.arg(&lib).env("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77");
    let output = command.output()?;
    let runs: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    expect(output.status.code() == Some(1), || format!("{output:?}"))?;
    let failure = runs[0]["failure"].as_str().unwrap_or_default();
    let told = runs[0]["passed"] == false && failure.contains("mlx5_77");
    expect(!failure.contains("returned"), || format!("{runs:#}"))?;
    // Once: no other scenario would get further.
    expect(told && runs.as_array().is_some_and(|runs| runs.len() == 1), || format!("{runs:#}"))?;
    // For people in two lines, and the log on demand.
    for (options, has_log) in [(&[][..], false), (&["-v"][..], true)] {
        let mut command = selftest(options);
        command.arg("--plugin-dir").arg(&lib).env("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77");
        let text = String::from_utf8_lossy(&command.output()?.stdout).into_owned();
        let first = text.starts_with("FAILED shm ") && text.contains("0 of 1 passed, 4 not run");
        expect(first && text.contains("NVSHMEM ERROR") == has_log, || text.clone())?;
    }
    Ok(())
}

fn one_mistake() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let out = scratch.at("out.txt").display().to_string();
    let commands: [&[&str]; 3] =
        [&["selftest"], &["perf", "--milliseconds", "1"], &["qualify", "--out", &out]];
    for command in commands {
        let told = |options: &[&str], variables: &[(&str, &str)], says: &str| {
            let mut command = tool(command);
            command.args(options).arg("--plugin-dir").arg(plugins());
            let said = bad(command.envs(variables.iter().copied()), 2)?;
            let one = said.matches("nvshmem-libfabric: ").count() <= 1 && !said.contains("FAILED");
            let twice = said.matches(says).count();
            expect(one && twice == 1 && !said.contains("returned"), || {
                format!("{command:?}: {says} is there {twice} times in\n{said}")
            })
        };
        // As where libfabric has no other.
        let only = ("FI_PROVIDER", "shm");
        told(&["--provider", "tcp"], &[only], "tcp cannot be used here: ")?;
        told(&["--provider", "verbz"], &[], "a similar value exists: 'verbs'")?;
        let misspelt = ("NVSHMEM_LIBFABRIC_PROVIDER", "verbz");
        told(&[], &[misspelt], "(did you mean verbs?)")?;
        if command[0] != "qualify" {
            let hidden = ("CUDA_VISIBLE_DEVICES", "");
            told(&["--memory", "gpu", "--provider", "shm"], &[hidden], "shows no GPU here")?;
        }
    }
    // What an option gives is not asked of the environment.
    let mut command = selftest(&["--plugin-dir"]);
    good(command.arg(plugins()).env("NVSHMEM_LIBFABRIC_PROVIDER", "verbz"))?;
    Ok(())
}

fn little(prefix: Vec<String>) -> Result<(), Failed> {
    let eighth: Vec<String> = prefix.iter().map(|word| word.replace("64m", "8m")).collect();
    for (words, pes) in [(eighth, "2"), (prefix, "8")] {
        let line = ["selftest", "--provider", "shm", "--pes", pes, "--plugin-dir"];
        let output = behind(&words, &line).arg(plugins()).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let told = said.contains("/dev/shm has ") && said.contains(" are needed for endpoints");
        expect(told && !said.contains("signal"), || format!("{pes} PEs: {said}"))?;
    }
    Ok(())
}
