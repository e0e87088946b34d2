//! `selftest` and `perf`: they pass on what is well, and fail with words on what is not.

use crate::bed::{Case, good, json, says, tool};

const WRONG: (&str, &str) = ("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77");

pub(crate) fn selftest() -> Case {
    let text = good(&mut tool("selftest --provider shm --pes 3 --plugin-dir PLUGINS"))?;
    assert!(text.ends_with("5 of 5 passed, with 3 PEs\n"), "{text}");
    Ok(())
}

pub(crate) fn failed_selftest() -> Case {
    let selftest = |options: &str| {
        let mut command = tool(&format!("selftest --provider shm --plugin-dir PLUGINS {options}"));
        command.env(WRONG.0, WRONG.1);
        command
    };
    let runs = json(&mut selftest("--json"), 1)?;
    let failure = runs[0]["failure"].as_str().unwrap_or_default();
    let told = runs[0]["passed"] == false && failure.contains("mlx5_77");
    assert!(told && !failure.contains("returned"), "{runs:#}");
    // Once: no other scenario would get further.
    assert!(runs.as_array().is_some_and(|runs| runs.len() == 1), "{runs:#}");
    for options in ["", "-v"] {
        let text = says(&mut selftest(options), 1, &["\n0 of 1 passed, 4 not run"])?;
        let has_log = text.contains("NVSHMEM ERROR");
        assert!(text.starts_with("FAILED shm ") && has_log == (options == "-v"), "{text}");
    }
    Ok(())
}

pub(crate) fn perf() -> Case {
    let line = "perf --provider shm --milliseconds 1 --max 64 --plugin-dir PLUGINS";
    let heads = ["two PEs on one host, memory of the host;", " 0 wrong."];
    let text = says(&mut tool(line), 0, &heads)?;
    for test in "put_bw get_bw put_latency get_latency put_signal_latency put_message_rate \
                 put_signal_message_rate"
        .split_whitespace()
    {
        let (_, rows) = text.split_once(&format!("\n#{test}\n")).ok_or("a table is missing")?;
        let row = rows.lines().find(|line| line.starts_with("8 ")).ok_or("no row of 8 bytes")?;
        let words: Vec<&str> = row.split_whitespace().collect();
        let (low, high) = words[3].split_once("..").ok_or("no spread")?;
        let (low, high, median): (f64, f64, f64) = (low.parse()?, high.parse()?, words[2].parse()?);
        assert!(0.0 < low && low <= median && median <= high, "{row}");
    }
    let said = says(tool(line).env(WRONG.0, WRONG.1), 1, &["mlx5_77"])?;
    assert!(!said.contains("returned"), "{said}");
    Ok(())
}
