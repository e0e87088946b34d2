//! `doctor`: calm where nothing is, exact where something is wrong, and it changes nothing.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use test_support::built;

use crate::bed::{Case, MadeUp, Scratch, TOOL, behind, good, json, plugin, row, says, tool, tree};
use crate::bed::{root, wait};

fn doctor(options: &str) -> Command {
    let mut command = tool(&format!("doctor --plugin-dir PLUGINS {options}"));
    // Whatever NICs this machine has.
    command.env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp");
    command
}

fn check(diagnosis: &Value, id: &str) -> Value {
    row(&diagnosis["checks"], "id", id)
}

pub(crate) fn usable() -> Case {
    let scratch = Scratch::new();
    scratch.write("file", "");
    let before = tree(&scratch);
    let mut command = doctor("--json");
    let diagnosis = json(command.current_dir(&*scratch).env("HOME", &*scratch), 0)?;
    assert!(tree(&scratch) == before, "nothing is changed");
    let summary = diagnosis["summary"].as_str().unwrap_or_default();
    assert!(diagnosis["usable"] == true && summary.starts_with("usable with tcp"), "{diagnosis:#}");
    let ids = "plugin-files nvshmem settings libfabric provider other-providers \
               provider-environment gpu memlock descriptors cores bootstrap-interface \
               shared-memory left-behind";
    for id in ids.split(' ') {
        let check = check(&diagnosis, id);
        assert!(check["reason"].is_string(), "no {id} in {diagnosis:#}");
        assert!(check["verdict"] != "warning" || check["remedy"].is_string(), "{check:#}");
    }
    assert!(check(&diagnosis, "plugin-files")["verdict"] == "ok", "{diagnosis:#}");
    // Every provider that is not taken has its reason.
    let others = check(&diagnosis, "other-providers")["details"].to_string();
    for provider in ["efa: ", "cxi: ", "verbs: ", "shm: "] {
        assert!(others.contains(provider), "no {provider} in {others}");
    }
    // The same for people, whose first line is the verdict, and the rest on demand.
    let text = good(&mut doctor(""))?;
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains(": usable with tcp") && text.contains("\nok       provider "), "{text}");
    assert!(!text.contains("  efa: "), "{text}");
    says(&mut doctor("-v"), 0, &["  efa: "]).map(drop)
}

/// The status with a variable of the environment, and of one check its verdict and something that
/// it says. Values in capitals are paths.
const FINDINGS: [(i32, &str, &str, &str, &str, &str); 20] = [
    (1, "NVSHMEM_LIBFABRIC_LIBRARY", "/none.so", "libfabric", "error", "cannot load libfabric"),
    (1, "NVSHMEM_LIBFABRIC_LIBRARY", "CRASH", "libfabric", "error", "signal 6"),
    (1, "NVSHMEM_LIBFABRIC_YIELD", "sometimes", "settings", "error", "NVSHMEM_LIBFABRIC_YIELD"),
    (1, "NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77", "provider", "error", "or address; it has: "),
    // One mistake is one error, and libfabric is none.
    (1, "NVSHMEM_LIBFABRIC_PROVIDER", "verbz", "settings", "error", "did you mean verbs?"),
    (1, "NVSHMEM_LIBFABRIC_PROVIDER", "verbz", "libfabric", "ok", "version "),
    (0, "NVSHMEM_LIBFABRIC_COLOUR", "red", "settings", "warning", "NVSHMEM_LIBFABRIC_COLOUR"),
    (0, "NVSHMEM_HOME", "/none", "nvshmem-home", "warning", "/none is no directory"),
    (0, "NVSHMEM_REMOTE_TRANSPORT", "ibrc", "remote-transport", "warning", "ibrc"),
    (0, "LD_LIBRARY_PATH", "CUDA", "gpu", "ok", "GPUs: "),
    (0, "LD_LIBRARY_PATH", "CUDA", "gpu-memory", "note", "staged through host memory"),
    (0, "LD_LIBRARY_PATH", "CUDA", "peer-memory", "", "dma-bufs"),
    (0, "LD_LIBRARY_PATH", "CUDA", "gdrcopy", "ok", "works"),
    (0, "LD_LIBRARY_PATH", "CUDA", "staging-context", "ok", "a context of the transport's own"),
    (0, "NVSHMEM_HOME", "NVSHMEM", "nvshmem", "note", "nvshmem-libfabric run"),
    (0, "NVSHMEM_HOME", "OTHER", "nvshmem", "note", "libfabric.so.3, and there is none"),
    (0, "LD_PRELOAD", "OURS", "nvshmem", "ok", "would load ours"),
    (0, "NVSHMEM_DISABLE_CUDA_VMM", "1", "staging-context", "warning", "belongs to the program's"),
    (0, "NVSHMEM_DISABLE_GDRCOPY", "1", "gdrcopy", "note", "not used"),
    (0, "FAKE_GDRCOPY_REFUSE", "1", "gdrcopy", "ok", "not needed"),
];

pub(crate) fn findings() -> Case {
    let scratch = Scratch::new();
    let crash = "__attribute__((constructor)) static void start(void) { abort(); }";
    scratch.write("crash.c", format!("#include <stdlib.h>\n{crash}\n"));
    let library = scratch.join("libcrash.so");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(&library);
    good(compile.arg(scratch.join("crash.c")))?;
    let nvshmem = MadeUp::new(&scratch, "nvshmem", "3.8.0", 7);
    let other = MadeUp::new(&scratch, "other", "3.8.0", 7);
    other.host_library("3.4.5", &[]);
    let cuda = built::fake_cuda_dir().display().to_string();
    let page = fs::read_to_string(root().join("docs/tool.md"))?;
    for (status, variable, value, id, verdict, says) in FINDINGS {
        let value = match value {
            "CRASH" => library.display().to_string(),
            "CUDA" => cuda.clone(),
            "NVSHMEM" => nvshmem.prefix.display().to_string(),
            "OTHER" => other.prefix.display().to_string(),
            "OURS" => plugin(7),
            value => value.to_owned(),
        };
        let mut command = doctor("--json");
        // Where a core may be left.
        command.current_dir(&*scratch).env(variable, value);
        match variable {
            "LD_PRELOAD" => _ = command.env("NVSHMEM_HOME", &nvshmem.prefix),
            "NVSHMEM_DISABLE_CUDA_VMM" | "NVSHMEM_DISABLE_GDRCOPY" => {
                _ = command.env("LD_LIBRARY_PATH", &cuda)
            }
            "FAKE_GDRCOPY_REFUSE" => {
                _ = command.env("LD_LIBRARY_PATH", &cuda).env("FAKE_CUDA_DMA_BUF", "3");
            }
            _ => {}
        }
        let diagnosis = json(&mut command, status)?;
        assert_eq!(diagnosis["usable"], status == 0, "{diagnosis:#}");
        let found = check(&diagnosis, id);
        let right = verdict.is_empty() || found["verdict"] == verdict;
        assert!(right && found.to_string().contains(says), "{id}, {says}: {diagnosis:#}");
        assert!(verdict != "error" || found["remedy"].is_string(), "{found:#}");
        let checks = diagnosis["checks"].as_array().into_iter().flatten();
        let errors = checks.clone().filter(|check| check["verdict"] == "error").count();
        assert_eq!(errors, usize::from(status == 1), "{diagnosis:#}");
        for id in checks.map(|check| check["id"].as_str().unwrap_or_default()) {
            assert!(page.contains(&format!("`{id}`")), "docs/tool.md lacks {id}");
        }
    }
    // What is no obstacle is one for who asks for that.
    json(doctor("--json --strict").env("NVSHMEM_LIBFABRIC_COLOUR", "red"), 1)?;
    // What cannot even be asked need not be installed.
    let few = ["sh", "-c", "ulimit -n 8 && exec \"$@\"", "sh", TOOL].map(String::from);
    let mut command = behind(&few, "doctor --plugin-dir PLUGINS");
    let said = says(&mut command, 1, &["Too many open files"])?;
    assert!(!said.contains("install libfabric"), "{said}");
    Ok(())
}

/// A parent that ignores the ends of its children hands that on.
pub(crate) fn ignored_sigchld() -> Case {
    let ignoring = ["env", "--ignore-signal=CHLD", TOOL].map(String::from);
    let mut command = behind(&ignoring, "doctor --plugin-dir PLUGINS");
    command.env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp").stdout(Stdio::null());
    let mut doctor = command.spawn()?;
    let ended = wait("doctor's end", || doctor.try_wait().ok().flatten());
    let _ = doctor.kill();
    let status = ended?;
    assert!(status.success(), "{status}");
    Ok(())
}
