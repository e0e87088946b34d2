//! `info`: every NVSHMEM by its release and the file that it asks for, and what is found where.

use std::process::Command;

use serde_json::{Value, json};
use test_support::scratch::Scratch;

use crate::bed::{self, Case, MadeUp, good, plugin, plugins, row, says, script, tool};

/// Returns the NVSHMEM found in a prefix, with variables of the environment.
pub(crate) fn of(made: &MadeUp, variables: &[(&str, &str)]) -> Value {
    let mut command = tool("info --json --only nvshmem --nvshmem");
    command.arg(&made.prefix).envs(variables.iter().copied());
    bed::json(&mut command, 0).map_or(Value::Null, |info| info["nvshmem"][0].clone())
}

pub(crate) fn releases() -> Case {
    let scratch = Scratch::new();
    // The library's own text counts more than the transports beside it.
    let mixed = MadeUp::new(&scratch, "mixed", "3.8.0", 7);
    mixed.host_library("3.4.5", &[]);
    // A release that is not known has the number of its other transports.
    let newer = MadeUp::new(&scratch, "newer", "3.999.0", 8);
    for (made, release, number) in [(mixed, "3.4.5", 3), (newer, "3.999.0", 8)] {
        let found = of(&made, &[]);
        assert!(found["release"] == release && found["number"] == number, "{release}: {found}");
    }
    Ok(())
}

pub(crate) fn looked_for() -> Case {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "site/nvidia/nvshmem", "3.7.2", 6);
    let (prefix, lib) = (made.prefix.display().to_string(), made.prefix.join("lib"));
    let python = scratch.join("bin/python3");
    script(&python, &format!("echo {}", scratch.join("site").display()));
    let packages = format!("the packages of {}", python.display());
    let (bare, path) =
        ("/usr/bin:/bin", format!("{}:/usr/bin:/bin", scratch.join("bin").display()));
    let home = "NVSHMEM_HOME";
    for (path, variable, value, by) in [
        (bare, home, &prefix, json!([home])),
        (bare, "LD_LIBRARY_PATH", &lib.display().to_string(), json!(["LD_LIBRARY_PATH"])),
        (bare, "CONDA_PREFIX", &prefix, json!(["CONDA_PREFIX"])),
        (&path, "ANOTHER", &prefix, json!([packages])),
        (&path, home, &prefix, json!([home, packages])),
    ] {
        let mut command = tool("info --json --only nvshmem");
        let info = bed::json(command.env("PATH", path).env(variable, value), 0)?;
        let library = made.library().display().to_string();
        let found = row(&info["nvshmem"], "library", &library);
        assert_eq!(found["found_by"], by, "{info:#}");
    }
    for (wrong, says) in
        [("/nonexistent", "is no directory"), ("/usr/bin", "has no libnvshmem_host")]
    {
        let mut command = tool("info --only nvshmem");
        bed::says(command.env(home, wrong), 1, &[&format!("{wrong} {says}")])?;
    }
    Ok(())
}

pub(crate) fn linker_rules() -> Case {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.6.5", 5);
    let is = |variable: &str, value: &str, rule: &str, is_ours: bool| {
        let would = &of(&made, &[(variable, value)])["would_load"];
        assert!(would["rule"] == rule && would["ours"].is_string() == is_ours, "{rule}: {would}");
        assert!(!is_ours || would["ours"] == env!("CARGO_PKG_VERSION"), "{would}");
    };
    let (path, preload, none) = ("LD_LIBRARY_PATH", "LD_PRELOAD", "ANOTHER");
    let directory = plugins().display().to_string();
    is(none, "", "DT_RPATH", false);
    is(path, &directory, "DT_RPATH", false);
    is(preload, &plugin(7), "DT_RPATH", false);
    is(preload, &format!("{} {}", plugin(7), plugin(5)), preload, true);
    // With RUNPATH, LD_LIBRARY_PATH comes first.
    made.host_library("3.6.5", &["-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags"]);
    is(none, "", "DT_RUNPATH", false);
    is(path, &directory, path, true);
    made.host_library("3.6.5", &[]);
    is(path, &directory, path, true);
    Ok(())
}

pub(crate) fn settings() -> Case {
    let mut command = tool("info --json --only settings");
    command.env("NVSHMEM_LIBFABRIC_PROVIDER", "TCP").env("NVSHMEM_LIBFABRIC_COLOUR", "red");
    // What is refused is told, is no reason to say nothing else, and is in the status.
    command.env("NVSHMEM_LIBFABRIC_YIELD", "sometimes");
    command.env("NVSHMEM_LIBFABRIC_DEBUG", "words=maybe,queue_depth=2");
    let info = bed::json(&mut command, 1)?;
    for (setting, source, value, given) in [
        ("PROVIDER", "environment", json!("tcp"), Value::Null),
        ("DEVICES", "default", json!("all"), Value::Null),
        ("YIELD", "refused", Value::Null, json!("sometimes")),
        ("DEBUG", "refused", Value::Null, json!("maybe")),
        ("COLOUR", "", Value::Null, Value::Null),
    ] {
        let name = format!("NVSHMEM_LIBFABRIC_{setting}");
        let row = row(&info["settings"], "name", &name);
        let right = row["value"] == value && row["given"] == given;
        assert!(right && row["source"].as_str().unwrap_or_default() == source, "{info:#}");
        let complains = info["complaints"].to_string().contains(&name);
        assert_eq!(complains, ["refused", ""].contains(&source), "{info:#}");
    }
    // For people, those at their defaults on demand.
    let listed = |line: &str| good(&mut tool(line)).map(|it| it.contains("LIBFABRIC_DEVICES"));
    assert!(!listed("info --only settings")? && listed("info --only settings -v")?);
    Ok(())
}

pub(crate) fn text_for_people() -> Case {
    let parts = ["\nfabric:\n", "\ngpus:\n", "\nsettings:\n"];
    let set = "\n  - name: NVSHMEM_LIBFABRIC_PROVIDER\n";
    let info = |name: &str, value: &str| -> Command {
        let mut command = tool("info");
        command.env(format!("NVSHMEM_LIBFABRIC_{name}"), value);
        command
    };
    says(&mut info("PROVIDER", "tcp"), 0, &[&parts[..], &[set]].concat())?;
    // A part that cannot be told is no reason to leave out the rest.
    let error = "\n  error: cannot load libfabric";
    says(&mut info("LIBRARY", "/nonexistent"), 0, &[&parts[..], &[error]].concat())?;
    Ok(())
}

/// A real NVSHMEM is known, and `run` puts its file in front.
pub(crate) fn wheel(made: &MadeUp, release: &str) -> Case {
    let found = of(made, &[]);
    let (would, number) = (&found["would_load"], made.number);
    assert!(found["release"] == release && found["number"] == number, "{found}");
    assert!(found["rpath"] == "${ORIGIN}" && would["rule"] == "DT_RPATH", "{found}");
    assert!(would["path"] == made.transport().display().to_string(), "{found}");
    assert!(would["ours"].is_null(), "{found}");
    let mut run = tool("run --plugin-dir PLUGINS --dry-run --nvshmem");
    let preload = format!("export LD_PRELOAD={}", plugin(number));
    says(run.arg(&made.prefix).arg("true"), 0, &[&preload]).map(drop)
}
