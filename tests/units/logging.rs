//! The log as a process with the variables set writes it: line shape, file, levels, one set-up.
//!
//! Cases run this program once more, with [`speaks`] alone and the variables set.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use nvshmem_transport_libfabric::logging;

const LINES: [&str; 6] = [
    "ERROR an error",
    "WARN a warning",
    "INFO some information",
    "WARN a warning of the topology",
    "INFO some module",
    "INFO another thread",
];

/// What the child does: the log is set up twice, which is as good as once, and written to.
#[test]
fn speaks() {
    logging::init();
    log::error!(target: logging::TRANSPORT, "an error");
    log::warn!(target: logging::MEM, "a warning");
    log::info!(target: logging::TOPO, "some information");
    log::trace!(target: logging::TOPO, "every detail");
    log::warn!(target: logging::TOPO, "a warning of the topology");
    log::info!(target: "a::module", "some module");
    logging::init();
    std::thread::spawn(|| log::info!(target: logging::INIT, "another thread")).join().unwrap();
}

/// The child's process, and what it has written.
fn run(variables: &[(&str, &str)]) -> (String, Output) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "logging::speaks", "--nocapture"]);
    for name in ["NVSHMEM_DEBUG", "NVSHMEM_DEBUG_SUBSYS", "NVSHMEM_DEBUG_FILE"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("a child process");
    let pid = child.id().to_string();
    let output = child.wait_with_output().expect("the child's output");
    assert!(output.status.success(), "{output:?}");
    (pid, output)
}

/// The host, process and thread of each line, and the texts.
fn lines(log: &[u8]) -> (Vec<[&str; 3]>, Vec<&str>) {
    let log = std::str::from_utf8(log).expect("text");
    let parts = log.lines().map(|line| {
        let (prefix, text) = line.split_once(" NVSHMEM ").expect(line);
        let prefix: Vec<&str> = prefix.split(':').collect();
        (<[&str; 3]>::try_from(prefix).expect("three parts"), text)
    });
    parts.unzip()
}

#[test]
fn lines_name_process_and_thread() {
    let version = format!("VERSION nvshmem-transport-libfabric {}", env!("CARGO_PKG_VERSION"));
    let (pid, output) = run(&[("NVSHMEM_DEBUG", "INFO")]);
    let (from, texts) = lines(&output.stderr);
    assert_eq!((texts[0], &texts[1..]), (version.as_str(), &LINES[..]));
    let [host, _, thread] = from[0];
    assert!(from[..6].iter().all(|from| *from == [host, &pid, thread]), "{from:?}");
    assert!(from[6][..2] == [host, &pid] && from[6][2] != thread, "{from:?}");
    // Errors and warnings where nothing is set.
    let (_, output) = run(&[]);
    assert_eq!(lines(&output.stderr).1, [0, 1, 3].map(|line| LINES[line]));
}

#[test]
fn log_file_takes_lines() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let template = directory.join("log-%h-%p");
    let (pid, output) = run(&[
        ("NVSHMEM_DEBUG", "INFO"),
        ("NVSHMEM_DEBUG_SUBSYS", "^TOPO"),
        ("NVSHMEM_DEBUG_FILE", template.to_str().expect("text")),
    ]);
    let (from, texts) = lines(&output.stderr);
    assert_eq!(texts, [LINES[0]]);
    let path = directory.join(format!("log-{}-{pid}.libfabric", from[0][0]));
    let log = std::fs::read(&path).expect("the log file");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(lines(&log).1[1..], [0, 1, 3, 4, 5].map(|line| LINES[line]));
}

#[test]
fn bad_log_settings_are_warnings() {
    let (_, output) = run(&[("NVSHMEM_DEBUG", "LOUD"), ("NVSHMEM_DEBUG_FILE", "/nonexistent/log")]);
    let texts = lines(&output.stderr).1;
    assert_eq!(texts.len(), 5, "{texts:?}");
    assert!(texts[0].starts_with("WARN NVSHMEM_DEBUG_FILE: cannot open"), "{texts:?}");
    assert!(texts[1].starts_with("WARN NVSHMEM_DEBUG=\"LOUD\" is not known"), "{texts:?}");
}
