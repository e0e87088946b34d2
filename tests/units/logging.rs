//! The log as a process with the variables set writes it: line shape, file, levels, one set-up.
//!
//! Cases run this program once more, with [`speaks`] alone and the variables set.

use std::path::Path;
use std::process::{Command, Output};

use nvshmem_transport_libfabric::logging;

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

fn run(variables: &[(&str, &Path)]) -> (u32, Output) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "logging::speaks", "--nocapture"]);
    for name in ["NVSHMEM_DEBUG", "NVSHMEM_DEBUG_SUBSYS", "NVSHMEM_DEBUG_FILE"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("a child process");
    let pid = child.id();
    let output = child.wait_with_output().expect("the child's output");
    assert!(output.status.success(), "{output:?}");
    (pid, output)
}

#[derive(Debug)]
struct Line {
    host: String,
    pid: u32,
    tid: u32,
    text: String,
}

fn lines(log: &str) -> Vec<Line> {
    log.lines()
        .map(|line| {
            let (prefix, text) = line.split_once(" NVSHMEM ").expect(line);
            let mut parts = prefix.split(':');
            let mut part = || parts.next().expect(line);
            Line {
                host: part().into(),
                pid: part().parse().expect(line),
                tid: part().parse().expect(line),
                text: text.into(),
            }
        })
        .collect()
}

fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

#[test]
fn warnings_go_to_stderr() {
    let (_, output) = run(&[]);
    let lines = lines(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(
        texts(&lines),
        ["ERROR an error", "WARN a warning", "WARN a warning of the topology"]
    );
}

#[test]
fn lines_name_process_and_thread() {
    let (pid, output) = run(&[("NVSHMEM_DEBUG", Path::new("INFO"))]);
    let lines = lines(&String::from_utf8(output.stderr).unwrap());
    let version = format!("VERSION nvshmem-transport-libfabric {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        texts(&lines),
        [
            version.as_str(),
            "ERROR an error",
            "WARN a warning",
            "INFO some information",
            "WARN a warning of the topology",
            "INFO some module",
            "INFO another thread"
        ]
    );
    assert!(lines.iter().all(|line| line.pid == pid && line.host == lines[0].host), "{lines:?}");
    assert!(lines[..6].iter().all(|line| line.tid == lines[0].tid), "{lines:?}");
    assert_ne!(lines[6].tid, lines[0].tid);
}

#[test]
fn log_file_takes_lines() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let template = directory.join("log-%h-%p");
    let (pid, output) = run(&[
        ("NVSHMEM_DEBUG", Path::new("INFO")),
        ("NVSHMEM_DEBUG_SUBSYS", Path::new("^TOPO")),
        ("NVSHMEM_DEBUG_FILE", &template),
    ]);
    let stderr = lines(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(texts(&stderr), ["ERROR an error"]);
    let path = directory.join(format!("log-{}-{pid}.libfabric", stderr[0].host));
    let log = std::fs::read_to_string(&path).expect("the log file");
    std::fs::remove_file(&path).unwrap();
    let log = lines(&log);
    let expected = [
        "ERROR an error",
        "WARN a warning",
        "WARN a warning of the topology",
        "INFO some module",
        "INFO another thread",
    ];
    assert_eq!(texts(&log[1..]), expected);
}

#[test]
fn bad_log_settings_are_warnings() {
    let (_, output) = run(&[
        ("NVSHMEM_DEBUG", Path::new("LOUD")),
        ("NVSHMEM_DEBUG_FILE", Path::new("/nonexistent/log")),
    ]);
    let lines = lines(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines[0].text.starts_with("WARN NVSHMEM_DEBUG_FILE: cannot open"), "{lines:?}");
    assert!(lines[1].text.starts_with("WARN NVSHMEM_DEBUG=\"LOUD\" is not known"), "{lines:?}");
}
