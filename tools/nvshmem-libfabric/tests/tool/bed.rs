//! What the cases stand on: NVSHMEMs in scratch directories, plugin files as they are installed,
//! and the tool.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use serde_json::Value;
use test_support::built;
pub(crate) use test_support::scratch::Scratch;

pub(crate) type Case = Result<(), Failed>;

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

pub(crate) fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).expect("the source")
}

pub(crate) fn script(path: &Path, text: &str) {
    executable(path, &format!("#!/bin/sh\n{text}\n"));
}

/// Writes a file that can be started. Another process does: a child that another thread starts
/// meanwhile would have the file open for writing for a while, and what is open for writing does
/// not start.
pub(crate) fn executable(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-D", "-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = install.spawn().expect("install runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("the text is taken");
    drop(stdin);
    assert!(child.wait().expect("it ends").success(), "{install:?}");
}

pub(crate) fn tree(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u32)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let metadata = path.symlink_metadata().expect("metadata");
        let bytes = if metadata.is_dir() {
            found.extend(tree(&path));
            Vec::new()
        } else if let Ok(target) = fs::read_link(&path) {
            target.into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).expect("a file")
        };
        found.insert(path, (bytes, metadata.mode()));
    }
    found
}

/// A program without the variables of this test's environment that it would heed.
pub(crate) fn program(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    let heeded = "NVSHMEM_ FI_ FAKE_CUDA_ CUDA_ LD_ PYTHON VIRTUAL_ENV PIP_ MAKE";
    for (name, _) in std::env::vars_os() {
        let known = name.to_string_lossy();
        if heeded.split(' ').any(|prefix| known.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// The tool with the words of a line, in which PLUGINS stands for the plugin files' directory.
pub(crate) fn tool(line: &str) -> Command {
    behind(&[TOOL.to_owned()], line)
}

pub(crate) fn behind(words: &[String], line: &str) -> Command {
    let mut command = program(&words[0]);
    command.args(&words[1..]);
    for word in line.split_whitespace() {
        match word {
            "PLUGINS" => command.arg(plugins()),
            word => command.arg(word),
        };
    }
    command
}

pub(crate) fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Runs a command that has to end with a status and to say some texts. Returns what it says.
pub(crate) fn says(command: &mut Command, status: i32, texts: &[&str]) -> Result<String, Failed> {
    let output = command.output()?;
    let said = text(&output);
    let missing = texts.iter().find(|text| !said.contains(**text));
    if missing.is_none() && output.status.code() == Some(status) {
        return Ok(said);
    }
    Err(format!("{command:?}: {}, and not {status} with {missing:?}\n{said}", output.status).into())
}

/// Runs a command that cannot be done: it says so, with a hint, and in JSON where asked for.
pub(crate) fn refuses(
    command: &mut Command,
    status: i32,
    texts: &[&str],
) -> Result<String, Failed> {
    let said = says(command, status, &[&["hint: "], texts].concat())?;
    if command.get_args().any(|word| word == "--json") {
        let mut values = serde_json::Deserializer::from_str(&said).into_iter::<Value>();
        let object = values.next().ok_or("no object")??;
        assert!(object["error"].is_string() && object["hint"].is_string(), "{said}");
    }
    Ok(said)
}

pub(crate) fn good(command: &mut Command) -> Result<String, Failed> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}\n{}", output.status, text(&output)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn json(command: &mut Command, status: i32) -> Result<Value, Failed> {
    let output = command.output()?;
    assert!(output.status.code() == Some(status), "{command:?}: {output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

pub(crate) fn row(list: &Value, field: &str, value: &str) -> Value {
    let mut rows = list.as_array().into_iter().flatten();
    rows.find(|row| row[field] == value).cloned().unwrap_or_default()
}

pub(crate) fn file_name(number: u32) -> String {
    format!("nvshmem_transport_libfabric.so.{number}")
}

pub(crate) fn plugins() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tool-plugins");
        for (kind, name) in [
            ("plugin", "libnvshmem_transport_libfabric.so"),
            ("nccl", "libnccl_rma_nvshmem_libfabric.so"),
        ] {
            let built = built::directory(&format!("install-{kind}"), &[(name, name)]).join(name);
            let mut install = Command::new(root().join("scripts/install.sh"));
            good(install.arg(kind).arg(built).arg(&directory)).expect("it is installed");
        }
        directory
    })
}

pub(crate) fn plugin(number: u32) -> String {
    plugins().join(file_name(number)).display().to_string()
}

pub(crate) struct MadeUp {
    pub(crate) prefix: PathBuf,
    pub(crate) number: u32,
}

impl MadeUp {
    pub(crate) fn new(scratch: &Path, name: &str, release: &str, number: u32) -> Self {
        let made = Self { prefix: scratch.join(name), number };
        let lib = made.prefix.join("lib");
        fs::create_dir_all(&lib).expect("directories");
        made.host_library(release, &["-Wl,-rpath,${ORIGIN}", "-Wl,--disable-new-dtags"]);
        let soname = format!("-Wl,-soname,{}", file_name(number));
        compile(&made.transport(), &["-shared", "-fPIC", "-DTRANSPORT", &soname]);
        fs::write(lib.join(format!("nvshmem_transport_ibrc.so.{number}")), "").expect("a file");
        made
    }

    pub(crate) fn host_library(&self, release: &str, flags: &[&str]) {
        let release = format!("-DRELEASE=\"{release}\"");
        let number = format!("-DNUMBER=\"{}\"", self.number);
        let soname = "-Wl,-soname,libnvshmem_host.so.3";
        let all = [&["-shared", "-fPIC", soname, &release, &number], flags].concat();
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
    built::compile(output, &root().join("tools/nvshmem-libfabric/tests/data/nvshmem.c"), flags);
}

/// Looks again and again, for up to a minute, until something is there.
pub(crate) fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        if let Some(found) = look() {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{what}: not within a minute"))
}

pub(crate) fn signal(process: impl Display, signal: &str) -> Case {
    good(Command::new("kill").args([signal, &process.to_string()])).map(drop)
}
