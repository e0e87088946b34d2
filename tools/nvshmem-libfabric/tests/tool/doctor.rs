//! `doctor`: calm where nothing is, exact where something is wrong, and it changes nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use test_support::built;

use crate::bed::{
    MadeUp, Scratch, TOOL, behind, expect, good, json, plugins, tool, tree, trial, wait,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("doctor::a_machine_with_nothing_is_usable_with_tcp", calm),
        trial("doctor::what_is_wrong_is_an_error_with_its_remedy", wrong),
        trial("doctor::a_library_that_crashes_is_told", crash),
        trial("doctor::files_of_ended_processes", files_left_behind),
        trial("doctor::gpus", gpus),
        trial("doctor::nvshmem", nvshmem),
        trial("doctor::parent_that_ignores_sigchld", ignored_ends),
    ]
}

fn doctor(options: &[&str]) -> Command {
    let mut command = tool(&["doctor"]);
    command.args(options).arg("--plugin-dir").arg(plugins());
    // Whatever NICs this machine has.
    command.env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp");
    command
}

fn ignored_ends() -> Result<(), Failed> {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' CHLD; exec \"$@\"", "sh", TOOL, "doctor", "--plugin-dir"]);
    command.arg(plugins()).env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp").stdout(Stdio::null());
    let mut doctor = command.spawn()?;
    let ended = wait("doctor's end", || doctor.try_wait().ok().flatten());
    let _ = doctor.kill();
    let status = ended?;
    expect(status.success(), || format!("{status}"))
}

fn check(diagnosis: &Value, id: &str) -> Value {
    let checks = diagnosis["checks"].as_array().cloned().unwrap_or_default();
    checks.into_iter().find(|check| check["id"] == id).unwrap_or_default()
}

fn documented(diagnosis: &Value) -> Result<(), Failed> {
    let page = include_str!("../../../../docs/tool.md");
    for check in diagnosis["checks"].as_array().into_iter().flatten() {
        let id = format!("`{}`", check["id"].as_str().unwrap_or_default());
        expect(page.contains(&id), || format!("docs/tool.md lacks {id}"))?;
    }
    Ok(())
}

fn diagnosed(command: &mut Command, status: i32) -> Result<Value, Failed> {
    let output = command.output()?;
    if output.status.code() != Some(status) {
        return Err(format!("{command:?}: {output:?}").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn calm() -> Result<(), Failed> {
    let scratch = Scratch::new();
    scratch.write("file", "");
    let before = tree(scratch.path());
    let mut command = doctor(&["--json"]);
    let diagnosis = json(command.current_dir(scratch.path()).env("HOME", scratch.path()))?;
    expect(tree(scratch.path()) == before, || String::from("nothing is changed"))?;
    let summary = diagnosis["summary"].as_str().unwrap_or_default();
    let usable = diagnosis["usable"] == true && summary.starts_with("usable with tcp");
    expect(usable, || format!("{diagnosis:#}"))?;
    let ids = "plugin-files nvshmem settings libfabric provider other-providers \
               provider-environment gpu memlock descriptors cores bootstrap-interface \
               shared-memory left-behind";
    for id in ids.split(' ') {
        let check = check(&diagnosis, id);
        expect(check["reason"].is_string(), || format!("no {id} in {diagnosis:#}"))?;
        let warned = check["verdict"] == "warning";
        expect(!warned || check["remedy"].is_string(), || format!("{check:#}"))?;
    }
    documented(&diagnosis)?;
    expect(check(&diagnosis, "plugin-files")["verdict"] == "ok", || format!("{diagnosis:#}"))?;
    // Every provider that is not taken has its reason.
    let others = check(&diagnosis, "other-providers")["details"].to_string();
    for provider in ["efa: ", "cxi: ", "verbs: ", "shm: "] {
        expect(others.contains(provider), || format!("no {provider} in {others}"))?;
    }
    // The same for people, whose first line is the verdict, and the rest on demand.
    let (text, all) = (good(&mut doctor(&[]))?, good(&mut doctor(&["-v"]))?);
    let first = text.lines().next().unwrap_or_default();
    expect(first.contains(": usable with tcp"), || text.clone())?;
    let details = |text: &str| text.contains("  efa: ");
    expect(details(&all) && !details(&text) && text.contains("\nok       provider "), || {
        text.clone()
    })
}

fn wrong() -> Result<(), Failed> {
    let wrong = |name: &str, value: &str, id: &str, says: &str| {
        let diagnosis = diagnosed(doctor(&["--json"]).env(name, value), 1)?;
        let check = check(&diagnosis, id);
        let error = check["verdict"] == "error" && check["remedy"].is_string();
        expect(error && diagnosis["usable"] == false, || format!("{diagnosis:#}"))?;
        expect(check.to_string().contains(says), || format!("{says} is not in {check:#}"))
    };
    wrong("NVSHMEM_LIBFABRIC_LIBRARY", "/nonexistent.so", "libfabric", "cannot load libfabric")?;
    wrong("NVSHMEM_LIBFABRIC_YIELD", "sometimes", "settings", "NVSHMEM_LIBFABRIC_YIELD")?;
    wrong("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77", "provider", "nothing there has this name")?;
    // What cannot even be asked need not be installed.
    let few = ["sh", "-c", "ulimit -n 8 && exec \"$@\"", "sh"].map(String::from);
    let output = behind(&few, &["doctor", "--plugin-dir"]).arg(plugins()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = said.contains("Too many open files") && !said.contains("install libfabric");
    expect(told, || said.clone())?;
    // One mistake is one error, and libfabric is none.
    let diagnosis = diagnosed(doctor(&["--json"]).env("NVSHMEM_LIBFABRIC_PROVIDER", "verbz"), 1)?;
    let errors = diagnosis["checks"].as_array().into_iter().flatten();
    let errors: Vec<&Value> = errors.filter(|check| check["verdict"] == "error").collect();
    let one = errors.len() == 1 && errors[0].to_string().contains("did you mean verbs?");
    expect(one && check(&diagnosis, "libfabric")["verdict"] == "ok", || format!("{errors:#?}"))?;
    let mut lost = doctor(&["--json"]);
    let diagnosis = json(lost.env("NVSHMEM_HOME", "/nonexistent"))?;
    let home = check(&diagnosis, "nvshmem-home").to_string();
    expect(home.contains("/nonexistent is no directory"), || format!("{diagnosis:#}"))?;
    documented(&diagnosis)?;
    // What is no obstacle is one for who asks for that.
    let odd = |options: &[&str], status| {
        diagnosed(doctor(options).env("NVSHMEM_LIBFABRIC_COLOUR", "red"), status)
    };
    let diagnosis = odd(&["--json"], 0)?;
    expect(check(&diagnosis, "settings")["verdict"] == "warning", || format!("{diagnosis:#}"))?;
    odd(&["--json", "--strict"], 1)?;
    Ok(())
}

fn crash() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let source = scratch.write(
        "crash.c",
        "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n",
    );
    let library = scratch.at("libcrash.so");
    good(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source))?;
    let mut command = doctor(&["--json"]);
    // Where a core may be left.
    command.current_dir(scratch.path()).env("NVSHMEM_LIBFABRIC_LIBRARY", &library);
    let diagnosis = diagnosed(&mut command, 1)?;
    let reason = check(&diagnosis, "libfabric")["reason"].to_string();
    expect(reason.contains("signal 6"), || reason.clone())
}

fn files_left_behind() -> Result<(), Failed> {
    struct Files(Vec<PathBuf>);
    impl Drop for Files {
        fn drop(&mut self) {
            self.0.iter().for_each(|file| drop(fs::remove_file(file)));
        }
    }
    let mut ended = Command::new("true").spawn()?;
    ended.wait()?;
    // Named as those of libfabric's shm are.
    let file = |pid: u32| PathBuf::from(format!("/dev/shm/fi_shm_{pid}:0:doctor"));
    let (dead, alive) = (file(ended.id()), file(std::process::id()));
    let files = Files(vec![dead.clone(), alive.clone()]);
    for file in &files.0 {
        fs::write(file, "")?;
    }
    // Of this transport: those of its own PID namespace are removed.
    let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
    let own = PathBuf::from(format!("/dev/shm/{}-{namespace}:0:0", ended.id()));
    let other = PathBuf::from(format!("/dev/shm/{}-1{namespace}:0:0", ended.id()));
    let _others = Files(vec![own.clone(), other.clone()]);
    fs::write(&own, "")?;
    fs::write(&other, "")?;
    let diagnosis = json(&mut doctor(&["--json"]))?;
    let check = check(&diagnosis, "left-behind");
    // Any other process of the transport removes it as well, and may come first.
    expect(!own.exists() && other.exists(), || format!("{check:#}"))?;
    let names = |file: &Path| check["details"].to_string().contains(&*file.to_string_lossy());
    expect(!names(&alive), || format!("{} is in use: {check:#}", alive.display()))?;
    // Of many, some are named.
    let many = check["details"].as_array().is_some_and(|named| named.len() >= 20);
    expect(check["verdict"] == "warning" && (many || names(&dead)), || format!("{check:#}"))
}

fn gpus() -> Result<(), Failed> {
    let with = |variables: &[(&str, &str)]| {
        let mut command = doctor(&["--json"]);
        command.env("LD_LIBRARY_PATH", built::fake_cuda_dir()).envs(variables.iter().copied());
        json(&mut command)
    };
    let diagnosis = with(&[])?;
    documented(&diagnosis)?;
    expect(check(&diagnosis, "gpu")["verdict"] == "ok", || format!("{diagnosis:#}"))?;
    for id in ["gpu-memory", "peer-memory", "gdrcopy", "staging-context"] {
        expect(check(&diagnosis, id)["reason"].is_string(), || format!("no {id}: {diagnosis:#}"))?;
    }
    let staged = check(&diagnosis, "gpu-memory")["reason"].to_string();
    expect(staged.contains("staged through host memory"), || staged.clone())?;
    let other = with(&[("NVSHMEM_DISABLE_CUDA_VMM", "1"), ("NVSHMEM_DISABLE_GDRCOPY", "1")])?;
    let (context, gdrcopy) = (check(&other, "staging-context"), check(&other, "gdrcopy"));
    let told = context["verdict"] == "warning" && gdrcopy["verdict"] == "note";
    expect(told, || format!("{other:#}"))
}

fn nvshmem() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.8.0", 7);
    let path = made.prefix.display().to_string();
    let verdict = |variables: &[(&str, &str)], id: &str| {
        let mut command = doctor(&["--json", "--nvshmem", &path]);
        let diagnosis = json(command.envs(variables.iter().copied()))?;
        let check = check(&diagnosis, id);
        Ok::<_, Failed>((
            check["verdict"].as_str().unwrap_or_default().to_owned(),
            check.to_string(),
        ))
    };
    let (found, said) = verdict(&[], "nvshmem")?;
    expect(found == "note" && said.contains("nvshmem-libfabric run"), || said)?;
    let (found, said) = verdict(&[("NVSHMEM_REMOTE_TRANSPORT", "ibrc")], "remote-transport")?;
    expect(found == "warning" && said.contains("ibrc"), || said)?;
    let ours = plugins().join("nvshmem_transport_libfabric.so.7").display().to_string();
    let (found, said) = verdict(&[("LD_PRELOAD", &ours)], "nvshmem")?;
    expect(found == "ok" && said.contains("would load ours"), || said)?;
    made.host_library("3.4.5", &[]);
    let (found, said) = verdict(&[], "nvshmem")?;
    expect(found == "note" && said.contains("libfabric.so.3, and there is none"), || said)
}
