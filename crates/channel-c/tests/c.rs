//! A C program on the installed library and headers: alone, and as a job.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("channel-prefix");
        let _ = fs::remove_dir_all(&prefix);
        let beside = env::current_exe().unwrap();
        let built = beside.parent().unwrap().join("libnvshmem_libfabric_channel.so");
        let installed = Command::new(root.join("scripts/install.sh"))
            .arg("channel")
            .args([&built, &prefix])
            .output()
            .unwrap();
        assert!(installed.status.success(), "{}", text(&installed));
        prefix
    })
}

fn program(source: &str, links: bool) -> PathBuf {
    let prefix = prefix();
    let program = prefix.join(source.replace('.', "-"));
    let (compiler, standard) = match source.ends_with(".c") {
        true => ("cc", "-std=gnu11"),
        false => ("c++", "-std=c++17"),
    };
    let mut command = Command::new(compiler);
    command
        .args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source))
        .arg("-I")
        .arg(prefix.join("include"))
        .arg("-ldl");
    if links {
        command
            .arg("-L")
            .arg(prefix.join("lib"))
            .arg("-lnvshmem_libfabric_channel")
            .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    }
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled));
    program
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait(children: Vec<Child>) {
    let end = Instant::now() + Duration::from_secs(100);
    for (pe, mut child) in children.into_iter().enumerate() {
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > end {
                let _ = child.kill();
                panic!("PE {pe} does not end");
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "PE {pe}: {status}");
    }
}

#[test]
fn program_runs_alone_and_in_job() {
    let program = program("example.c", true);
    let run = |arguments: &[String]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("NVSHMEM_LIBFABRIC_PROVIDER", "shm").spawn().unwrap()
    };
    wait(vec![run(&[])]);
    // The C interface takes no socket, so the port is given back before PE 0 listens. It is one of
    // a loopback address that nobody else uses.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 64 | high, middle, low);
    let at = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap().to_string();
    let pe = |me: u32| run(&[at.clone(), me.to_string(), String::from("3")]);
    wait((0..3).map(pe).collect());
}

#[test]
fn values_convert_to_their_word() {
    let status = Command::new(program("literals.cc", false)).status().unwrap();
    assert!(status.success());
}

/// What may happen to a process that has a channel, as docs/reliability.md defines it: each in a
/// process of its own.
#[test]
fn processes_may_exit_fork_and_unload() {
    let program = program("life.cc", true);
    let unload = self::program("unload.c", false);
    let library = prefix().join("lib/libnvshmem_libfabric_channel.so");
    let library = library.to_str().unwrap();
    let all: &[&str] =
        &["at-exit", "at-exit-late", "static", "exit", "exception", "twice", "signals"];
    for (provider, modes) in [("shm", all), ("tcp", &["exit", "signals", "fork", "exec"])] {
        let run = |program: &Path, arguments: &[&str]| {
            let mut command = Command::new(program);
            // The thread that marks sockets looks eight times in this.
            let often = ("NVSHMEM_LIBFABRIC_WARN_SECONDS", "1");
            command.args(arguments).envs([("NVSHMEM_LIBFABRIC_PROVIDER", provider), often]);
            println!("{provider}: {arguments:?}");
            wait(vec![command.spawn().unwrap()]);
        };
        for mode in modes {
            run(&program, &[mode]);
        }
        run(&unload, &[library]);
        run(&unload, &[library, "in use"]);
    }
}
