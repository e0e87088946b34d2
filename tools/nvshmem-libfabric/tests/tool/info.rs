//! `info`: every NVSHMEM by its release and the file that it asks for, and what is found where.

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use crate::bed::{
    MadeUp, RELEASES, Scratch, expect, file_name, good, json as json_of, of_wheels, plugins, tool,
    trial,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = of_wheels("info::wheel", wheel);
    trials.extend([
        trial("info::every_release_by_its_text_its_header_or_its_transports", every_release),
        trial("info::where_nvshmem_is_looked_for", looked_for),
        trial("info::the_linkers_rules", rules),
        trial("info::settings_with_their_source", settings),
        trial("info::gpus_of_the_driver", gpus),
        trial("info::all_of_it_for_people", all),
    ]);
    trials
}

fn of(made: &MadeUp) -> Result<Value, Failed> {
    let path = made.prefix.display().to_string();
    let info = json_of(&mut tool(&["info", "--json", "--only", "nvshmem", "--nvshmem", &path]))?;
    Ok(info["nvshmem"][0].clone())
}

fn wheel(made: &MadeUp) -> Result<(), Failed> {
    let found = of(made)?;
    let is = found["release"].as_str().unwrap_or_default();
    let (release, _) =
        RELEASES.iter().find(|(release, _)| made.prefix.ends_with(release)).expect("known");
    expect(is == *release, || format!("release: {found}"))?;
    expect(found["number"] == made.number, || format!("number: {found}"))?;
    expect(found["rpath"] == "${ORIGIN}", || format!("{found}"))?;
    let would = &found["would_load"];
    expect(would["rule"] == "DT_RPATH" && would["ours"].is_null(), || format!("{found}"))?;
    expect(would["path"] == made.transport().display().to_string(), || format!("{found}"))
}

fn every_release() -> Result<(), Failed> {
    let is = |made: &MadeUp, release: &str, number: u32| {
        let found = of(made)?;
        let right = found["release"] == release && found["number"] == number;
        expect(right, || format!("{release}: {found}"))
    };
    for (release, number) in RELEASES {
        let scratch = Scratch::new();
        let made = MadeUp::new(&scratch, "nvshmem", release, number);
        std::fs::remove_dir_all(made.prefix.join("include"))?;
        is(&made, release, number)?;
    }
    let scratch = Scratch::new();
    // Headers of another release than the library's are no word about it.
    let made = MadeUp::new(&scratch, "mixed", "3.8.0", 7);
    made.host_library("3.4.5", &[]);
    is(&made, "3.4.5", 3)?;
    // One that is not known has the number of its header, or of its other transports.
    let newer = MadeUp::new(&scratch, "newer", "3.9.1", 8);
    is(&newer, "3.9.1", 8)?;
    std::fs::remove_dir_all(newer.prefix.join("include"))?;
    is(&newer, "3.9.1", 8)
}

fn looked_for() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "site/nvidia/nvshmem", "3.7.2", 6);
    let site = scratch.at("site").display().to_string();
    let python = scratch.script("bin/python3", &format!("echo {site}"));
    let library = made.library().display().to_string();
    let found_by = |command: &mut std::process::Command| -> Result<Vec<String>, Failed> {
        let info = json_of(command)?;
        let all = info["nvshmem"].as_array().cloned().unwrap_or_default();
        let ours = all.into_iter().find(|found| found["library"] == library);
        let by = ours.map(|found| found["found_by"].clone()).unwrap_or_default();
        Ok(serde_json::from_value(by).unwrap_or_default())
    };
    let info = || {
        let mut command = tool(&["info", "--json", "--only", "nvshmem"]);
        command.env("PATH", "/usr/bin:/bin");
        command
    };
    let prefix = &made.prefix;
    let by = found_by(info().env("NVSHMEM_HOME", prefix))?;
    expect(by == ["NVSHMEM_HOME"], || format!("{by:?}"))?;
    let by = found_by(info().env("LD_LIBRARY_PATH", prefix.join("lib")))?;
    expect(by == ["LD_LIBRARY_PATH"], || format!("{by:?}"))?;
    let path = format!("{}:/usr/bin:/bin", scratch.at("bin").display());
    let packages = format!("the packages of {}", python.display());
    let by = found_by(info().env("PATH", &path))?;
    expect(by == [packages.clone()], || format!("{by:?}"))?;
    // One that leads nowhere is told.
    for (home, says) in
        [("/nonexistent", "is no directory"), ("/usr/bin", "has no libnvshmem_host")]
    {
        let output = tool(&["info", "--only", "nvshmem"]).env("NVSHMEM_HOME", home).output()?;
        let told = String::from_utf8_lossy(&output.stdout).contains(&format!("{home} {says}"));
        expect(told && output.status.code() == Some(1), || format!("{output:?}"))?;
    }
    // Once, with all ways that lead to it.
    let by = found_by(info().env("PATH", &path).env("NVSHMEM_HOME", prefix))?;
    expect(by == [String::from("NVSHMEM_HOME"), packages], || format!("{by:?}"))
}

fn rules() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.6.5", 5);
    let ours = plugins();
    let path = made.prefix.display().to_string();
    let would = |variables: &[(&str, &str)]| -> Result<(String, Value), Failed> {
        let mut command = tool(&["info", "--json", "--only", "nvshmem", "--nvshmem", &path]);
        command.envs(variables.iter().copied());
        let would = json_of(&mut command)?["nvshmem"][0]["would_load"].clone();
        Ok((would["rule"].as_str().unwrap_or("none").to_owned(), would["ours"].clone()))
    };
    let directory = ours.display().to_string();
    let file = ours.join(file_name(5)).display().to_string();
    let wrong = ours.join(file_name(7)).display().to_string();
    let version = json!(env!("CARGO_PKG_VERSION"));
    let is = |found: (String, Value), rule: &str, ours: &Value| {
        expect(found == (rule.to_owned(), ours.clone()), || format!("{found:?}, and not {rule}"))
    };
    is(would(&[])?, "DT_RPATH", &Value::Null)?;
    is(would(&[("LD_LIBRARY_PATH", &directory)])?, "DT_RPATH", &Value::Null)?;
    is(would(&[("LD_PRELOAD", &wrong)])?, "DT_RPATH", &Value::Null)?;
    is(would(&[("LD_PRELOAD", &format!("{wrong} {file}"))])?, "LD_PRELOAD", &version)?;
    // With RUNPATH, LD_LIBRARY_PATH comes first.
    made.host_library("3.6.5", &["-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags"]);
    is(would(&[])?, "DT_RUNPATH", &Value::Null)?;
    is(would(&[("LD_LIBRARY_PATH", &directory)])?, "LD_LIBRARY_PATH", &version)?;
    made.host_library("3.6.5", &[]);
    is(would(&[("LD_LIBRARY_PATH", &directory)])?, "LD_LIBRARY_PATH", &version)
}

fn settings() -> Result<(), Failed> {
    let mut command = tool(&["info", "--json", "--only", "settings"]);
    command.env("NVSHMEM_LIBFABRIC_PROVIDER", "TCP").env("NVSHMEM_LIBFABRIC_COLOUR", "red");
    // What is refused is told, is no reason to say nothing else, and is in the status.
    command.env("NVSHMEM_LIBFABRIC_YIELD", "sometimes");
    let output = command.env("NVSHMEM_LIBFABRIC_DEBUG", "words=maybe,queue_depth=2").output()?;
    let info: Value = serde_json::from_slice(&output.stdout)?;
    expect(output.status.code() == Some(1), || format!("{output:?}"))?;
    let row = |name: &str| {
        let rows = info["settings"].as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row["name"] == name).unwrap_or_default()
    };
    let provider = json!({
        "name": "NVSHMEM_LIBFABRIC_PROVIDER", "value": "tcp", "default": "auto", "source": "environment",
    });
    expect(row("NVSHMEM_LIBFABRIC_PROVIDER") == provider, || format!("{info:#}"))?;
    for (name, given) in
        [("NVSHMEM_LIBFABRIC_YIELD", "sometimes"), ("NVSHMEM_LIBFABRIC_DEBUG", "maybe")]
    {
        let row = row(name);
        let refused = row["source"] == "refused" && row["given"] == given && row["value"].is_null();
        expect(refused && info["complaints"].to_string().contains(name), || format!("{info:#}"))?;
    }
    let devices = row("NVSHMEM_LIBFABRIC_DEVICES");
    let is_default = devices["source"] == "default" && devices["value"] == "all";
    let unknown = info["complaints"].to_string().contains("NVSHMEM_LIBFABRIC_COLOUR");
    expect(is_default && unknown, || format!("{info:#}"))?;
    // For people, those at their defaults on demand.
    let text = |options: &[&str]| good(tool(&["info", "--only", "settings"]).args(options));
    let (few, all) = (text(&[])?, text(&["-v"])?);
    let listed = |text: &str| text.contains("NVSHMEM_LIBFABRIC_DEVICES");
    expect(listed(&all) && !listed(&few), || few.clone())
}

fn gpus() -> Result<(), Failed> {
    let driver = test_support::built::fake_cuda_dir();
    let info = json_of(tool(&["info", "--json", "--only", "gpus"]).env("LD_LIBRARY_PATH", driver))?;
    let devices = info["gpus"]["devices"].as_array().cloned().unwrap_or_default();
    expect(!devices.is_empty() && devices[0]["pci"].is_string(), || format!("{:#}", info["gpus"]))
}

fn all() -> Result<(), Failed> {
    let text = good(tool(&["info"]).env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp"))?;
    let part = |name: &str| text.contains(&format!("\n{name}:\n"));
    let parts = ["fabric", "gpus", "settings"].into_iter().all(part);
    expect(parts && text.contains("\n  - name: NVSHMEM_LIBFABRIC_PROVIDER\n"), || text.clone())?;
    // One that cannot be used is told, and the rest as well.
    let text = good(tool(&["info"]).env("NVSHMEM_LIBFABRIC_LIBRARY", "/nonexistent"))?;
    let told = text.contains("\n  error: cannot load libfabric") && text.contains("\ngpus:\n");
    expect(told, || text.clone())
}
