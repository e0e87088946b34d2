//! What a process may do with the plugin in its life, as `docs/reliability.md` defines it: a C
//! program of one PE.

use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{Layout, is_setting};
use test_support::built::{compile, plugin_dir};

use crate::fabric::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("life".to_owned(), None, || {
        let program = &Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin-life");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/plugin_life.c");
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
        let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", include];
        compile(program, Path::new(source), &flags);
        for mode in ["at-exit", "exit", "twice", "unload-in-use", "null", "fork"] {
            run(program, "shm", mode, 0)?;
        }
        // With threads of the transport's own besides, which a child does not have.
        for connections in [0, 2] {
            for mode in ["fork", "exit", "unload-in-use"] {
                run(program, "tcp", mode, connections)?;
            }
        }
        Ok(())
    })]
}

fn run(program: &Path, provider: &str, mode: &str, connections: u8) -> Result<(), Failed> {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).arg(plugin_dir().join(Layout::V7.soname())).arg(mode);
    for name in std::env::vars().map(|(name, _)| name).filter(|name| is_setting(name)) {
        command.env_remove(name);
    }
    let ended = command
        .env("NVSHMEM_LIBFABRIC_PROVIDER", provider)
        .env("NVSHMEM_LIBFABRIC_DEBUG", format!("bulk_connections={connections}"))
        .output()
        .map_err(|error| format!("timeout: {error}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(format!("{provider}, {mode}: {}\n{said}", ended.status).into())
}
