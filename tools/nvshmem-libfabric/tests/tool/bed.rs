//! What the cases stand on: scratch directories, NVSHMEMs in them, plugin files as they are
//! installed, and the tool.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use launcher::PrivateDir;
use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use test_support::built;
use test_support::needs::{self, Need};

pub(crate) const TOOL: &str = env!("CARGO_BIN_EXE_nvshmem-libfabric");

/// Every minor version that is served, a release of it, and the number of its plugin file.
pub(crate) const RELEASES: [(&str, u32); 8] = [
    ("3.1.7", 3),
    ("3.2.5", 3),
    ("3.3.20", 3),
    ("3.4.5", 3),
    ("3.5.21", 4),
    ("3.6.5", 5),
    ("3.7.2", 6),
    ("3.8.0", 7),
];

/// An empty directory that is gone when the test is.
pub(crate) struct Scratch(PrivateDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(PrivateDir::new("tool").expect("a scratch directory"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        fs::write(&path, text).expect("a file");
        path
    }

    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        self.executable(name, &format!("#!/bin/sh\n{text}\n"))
    }

    /// Writes a file that can be started. Another process does: a child that another thread starts
    /// meanwhile would have the file open for writing for a while, and what is open for writing
    /// does not start.
    pub(crate) fn executable(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        let mut install = Command::new("install");
        install.args(["-D", "-m", "755", "/dev/stdin"]).arg(&path).stdin(Stdio::piped());
        let mut child = install.spawn().expect("install runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("the text is taken");
        drop(stdin);
        assert!(child.wait().expect("it ends").success(), "{install:?}");
        path
    }
}

/// What is in a directory: of each path the contents, or where the link leads, and the mode.
pub(crate) fn tree(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u32)> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let metadata = path.symlink_metadata().expect("metadata");
            let bytes = if metadata.is_dir() {
                open.push(path.clone());
                Vec::new()
            } else if let Ok(target) = fs::read_link(&path) {
                target.into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).expect("a file")
            };
            found.insert(path, (bytes, metadata.mode()));
        }
    }
    found
}

pub(crate) fn tool(arguments: &[&str]) -> Command {
    behind(&[], arguments)
}

pub(crate) fn behind(prefix: &[String], arguments: &[&str]) -> Command {
    let mut words = prefix.iter().map(String::as_str).chain([TOOL]);
    let mut command = Command::new(words.next().unwrap_or(TOOL));
    command.args(words).args(arguments);
    for (name, _) in std::env::vars_os() {
        let known = name.to_string_lossy();
        let ours = ["NVSHMEM_", "FI_", "FAKE_CUDA_", "CUDA_", "LD_"];
        if ours.iter().any(|prefix| known.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

pub(crate) fn good(command: &mut Command) -> Result<String, Failed> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}\n{}", output.status, said(&output)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn bad(command: &mut Command, status: i32) -> Result<String, Failed> {
    let output = command.output()?;
    let said = said(&output);
    if output.status.code() != Some(status) {
        return Err(format!("{command:?}: {} and not {status}\n{said}", output.status).into());
    }
    let json = command.get_args().any(|word| word == "--json");
    let object = serde_json::from_slice::<Value>(&output.stdout);
    let told = !json || object.is_ok_and(|object| object["error"].is_string());
    if !said.contains("\nhint: ") || !told {
        return Err(format!("{command:?}: no hint, or no object, in\n{said}").into());
    }
    Ok(said)
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

pub(crate) fn json(command: &mut Command) -> Result<Value, Failed> {
    Ok(serde_json::from_str(&good(command)?)?)
}

pub(crate) fn expect(holds: bool, told: impl FnOnce() -> String) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(told().into()) }
}

pub(crate) fn file_name(number: u32) -> String {
    format!("nvshmem_transport_libfabric.so.{number}")
}

fn install(kind: &str, library: &str, directory: &Path) {
    let built = built::directory(&format!("install-{kind}"), &[(library, library)]).join(library);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let output = Command::new(script).arg(kind).arg(&built).arg(directory).output();
    let output = output.expect("install.sh");
    assert!(output.status.success(), "{}", said(&output));
}

/// The plugins that were built with this program. Made once.
pub(crate) fn plugins() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tool-plugins");
        install("plugin", "libnvshmem_transport_libfabric.so", &directory);
        install("nccl", "libnccl_rma_nvshmem_libfabric.so", &directory);
        directory
    })
}

pub(crate) struct MadeUp {
    pub(crate) prefix: PathBuf,
    pub(crate) number: u32,
}

impl MadeUp {
    pub(crate) fn new(scratch: &Scratch, name: &str, release: &str, number: u32) -> Self {
        let made = Self { prefix: scratch.at(name), number };
        fs::create_dir_all(made.prefix.join("lib")).expect("directories");
        let rpath = ["-Wl,-rpath,${ORIGIN}", "-Wl,--disable-new-dtags"];
        made.host_library(release, &rpath);
        compile(
            &made.transport(),
            &["-shared", "-fPIC", "-DTRANSPORT", &format!("-Wl,-soname,{}", file_name(number))],
        );
        scratch.write(&format!("{name}/lib/nvshmem_transport_ibrc.so.{number}"), "");
        let part = |at: usize| release.split('.').nth(at).expect("three numbers");
        scratch.write(
            &format!("{name}/include/non_abi/nvshmem_version.h"),
            &format!(
                "#define NVSHMEM_VENDOR_MAJOR_VERSION {}\n#define NVSHMEM_VENDOR_MINOR_VERSION {}\n\
                 #define NVSHMEM_VENDOR_PATCH_VERSION {}\n\
                 #define NVSHMEM_TRANSPORT_PLUGIN_MAJOR_VERSION {number}\n",
                part(0),
                part(1),
                part(2)
            ),
        );
        made
    }

    pub(crate) fn host_library(&self, release: &str, flags: &[&str]) {
        let (release, number) =
            (format!("-DRELEASE=\"{release}\""), format!("-DNUMBER=\"{}\"", self.number));
        let mut all =
            vec!["-shared", "-fPIC", "-Wl,-soname,libnvshmem_host.so.3", &release, &number];
        all.extend(flags);
        compile(&self.library(), &all);
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.prefix.join("lib/libnvshmem_host.so.3")
    }

    pub(crate) fn transport(&self) -> PathBuf {
        self.prefix.join("lib").join(file_name(self.number))
    }

    pub(crate) fn program(&self, path: &Path) {
        let rpath = format!("-Wl,-rpath,{}", self.prefix.join("lib").display());
        let library = self.library().display().to_string();
        compile(path, &["-DPROGRAM", &rpath, &library]);
    }
}

fn compile(output: &Path, flags: &[&str]) {
    static COMPILED: Mutex<BTreeMap<Vec<String>, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let key: Vec<String> = flags.iter().map(|flag| String::from(*flag)).collect();
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bytes) = compiled.get(&key) {
        return fs::write(output, bytes).expect("a copy");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nvshmem.c");
    let mut command = Command::new("cc");
    command.arg("-o").arg(output).arg(source).args(flags).arg("-ldl");
    let ended = command.output().expect("cc runs");
    assert!(ended.status.success(), "{command:?}: {}", said(&ended));
    compiled.insert(key, fs::read(output).expect("what was compiled"));
}

pub(crate) fn wheel(release: &str) -> Need<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/nvshmem").join(release);
    match fs::canonicalize(&path) {
        Ok(path) => Ok(path),
        Err(_) => Err(format!(
            "NVSHMEM {release} is not in .deps/nvshmem: scripts/nvshmem-wheels.sh fetches it"
        )),
    }
}

pub(crate) fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(found) = look() {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{what}: not within {PATIENCE:?}"))
}

pub(crate) fn signal(process: impl Display, signal: &str) -> Result<(), Failed> {
    good(Command::new("kill").args([signal, &process.to_string()])).map(drop)
}

pub(crate) fn trial(name: &str, run: fn() -> Result<(), Failed>) -> Trial {
    Trial::test(name, run)
}

pub(crate) fn of_wheels(name: &str, run: fn(&MadeUp) -> Result<(), Failed>) -> Vec<Trial> {
    const LIST: &str = include_str!("../../../../scripts/nvshmem-wheels.txt");
    let listed = |release: &str| LIST.lines().any(|line| line.split(' ').next() == Some(release));
    let wheels = RELEASES.iter().filter(|(release, _)| listed(release));
    let trial = |(release, number): &(&str, u32)| {
        let number = *number;
        needs::trial(format!("{name}_{release}"), wheel(release), move |prefix| {
            run(&MadeUp { prefix, number })
        })
    };
    wheels.map(trial).collect()
}
