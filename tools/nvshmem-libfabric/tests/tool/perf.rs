//! `perf`: rows for people and for programs, of a plugin whose every byte is checked.

use libtest_mimic::{Failed, Trial};

use crate::bed::{Scratch, bad, expect, good, json, plugins, tool, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("perf::rows_of_every_test", rows), trial("perf::bad_input", bad_input)]
}

const TESTS: [&str; 5] = ["put_bw", "get_bw", "put_latency", "get_latency", "put_message_rate"];

fn rows() -> Result<(), Failed> {
    let perf = |more: &[&str]| {
        let mut command =
            tool(&["perf", "--provider", "shm", "--milliseconds", "1", "--max", "64"]);
        command.args(more).arg("--plugin-dir").arg(plugins());
        command
    };
    let text = good(&mut perf(&[]))?;
    for test in TESTS {
        let (table, line) = (format!("#{test}\n"), format!("&&&& PERF {test}___host___size__8___"));
        expect(text.contains(&table) && text.contains(&line), || {
            format!("{test} is not in\n{text}")
        })?;
    }
    expect(text.contains(" 0 wrong."), || text.clone())?;
    let figures = json(&mut perf(&["--json", "--layout", "3a"]))?;
    let figures = figures.as_array().cloned().unwrap_or_default();
    for test in TESTS {
        let mut of = figures.iter().filter(|figure| figure["test"] == test);
        let positive = of.all(|figure| figure["value"].as_f64().is_some_and(|value| value > 0.0));
        let some = figures.iter().any(|figure| figure["test"] == test);
        expect(some && positive, || format!("{test}: {figures:#?}"))?;
    }
    Ok(())
}

fn bad_input() -> Result<(), Failed> {
    bad(&mut tool(&["perf", "--max", "1"]), 2)?;
    let said = bad(&mut tool(&["perf", "--layout", "8"]), 2)?;
    expect(said.contains("are known"), || said.clone())?;
    let scratch = Scratch::new();
    bad(tool(&["perf", "--plugin-dir"]).arg(&scratch.0), 2)?;
    Ok(())
}
