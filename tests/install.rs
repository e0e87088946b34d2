//! What `make install` installs, and that its check finds what it is for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use launcher::PrivateDir;
use nvshmem_abi::Layout;

/// The files that hosts open, one for each major version of the interface.
fn plugins() -> Vec<&'static str> {
    let mut plugins = Layout::ALL.map(Layout::soname).to_vec();
    plugins.dedup();
    plugins
}

fn script(name: &str, arguments: &[&Path]) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name);
    Command::new(&path).args(arguments).output().expect("the script runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout_of(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(file).output().expect("binutils");
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> =
        entries.map(|entry| name(entry).into_string().expect("a plain name")).collect();
    names.sort();
    names
}

/// That a library has no debug information itself, and that a function's source is found all the
/// same, as debuggers find it.
fn assert_debug_information_apart(library: &Path, function: &str, source: &str) {
    let sections = stdout_of("readelf", &["--sections", "--wide"], library);
    assert!(!sections.contains(".debug_") && !sections.contains(".symtab"), "{sections}");
    let symbols = stdout_of("nm", &["--dynamic", "--defined-only"], library);
    let line = symbols.lines().find(|line| line.ends_with(function)).expect("it is exported");
    let address = line.split(' ').next().expect("an address");
    let found = stdout_of("addr2line", &[address, "--exe"], library);
    assert!(found.contains(source), "{library:?}: {function} at {address} is in {found}");
}

/// What a built plugin looks like from outside. The default is right in everything.
struct Built {
    source: &'static str,
    flags: &'static [&'static str],
}

impl Default for Built {
    fn default() -> Self {
        Self {
            source: "int nvshmemt_init(void) { return 0; }",
            flags: &["-g", "-Wl,-z,nodelete", "-Wl,-z,now"],
        }
    }
}

impl Built {
    fn compile(&self, directory: &Path) -> PathBuf {
        let source = directory.join("plugin.c");
        let library = directory.join("plugin.so");
        fs::write(&source, self.source).expect("the source is written");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,-soname,placeholder", "-o"])
            .args([&library, &source])
            .args(self.flags)
            .output()
            .expect("cc runs");
        assert!(output.status.success(), "{}", stderr(&output));
        library
    }
}

#[test]
fn one_file_per_major_each_with_its_own_name_inside() {
    let scratch = PrivateDir::new("install").expect("a scratch directory");
    let library = Built::default().compile(scratch.path());
    let target = scratch.path().join("with space").join("lib");
    // The second time over the files of the first.
    for _ in 0..2 {
        let output = script("install.sh", &[&library, &target]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(names(&target), [vec![".debug"], plugins()].concat());
    assert_eq!(names(&target.join(".debug")), ["nvshmem_transport_libfabric.debug"]);
    for name in plugins() {
        let output = Command::new("patchelf")
            .arg("--print-soname")
            .arg(target.join(name))
            .output()
            .expect("patchelf runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), name);
        assert_debug_information_apart(&target.join(name), "nvshmemt_init", "plugin.c");
    }
}

#[test]
fn recorders_go_by_the_names_of_plugins_inside() {
    let scratch = PrivateDir::new("install").expect("a scratch directory");
    let library = Built::default().compile(scratch.path());
    let target = scratch.path().join("lib");
    for transport in ["libfabric", "recorder"] {
        let output = script("install.sh", &[&library, &target, Path::new(transport)]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    for name in plugins() {
        let file = target.join(name.replace("_libfabric.", "_recorder."));
        let output = Command::new("patchelf").arg("--print-soname").arg(&file).output();
        let output = output.expect("patchelf runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), name, "{}", file.display());
    }
    let wrong = target.join("nvshmem_transport_recorder.so.7");
    let mut patchelf = Command::new("patchelf");
    patchelf.args(["--set-soname", "nvshmem_transport_recorder.so.7"]).arg(&wrong);
    assert!(patchelf.status().expect("patchelf runs").success());
    let output = script("check-plugin.sh", &[&target, Path::new("recorder")]);
    assert!(!output.status.success());
    assert!(stderr(&output).ends_with("should be 'nvshmem_transport_libfabric.so.7'\n"));
}

/// The C program of `channel-c` is compiled against what this installs.
#[test]
fn the_channel_is_a_library_under_its_soname_and_headers() {
    let scratch = PrivateDir::new("install").expect("a scratch directory");
    let functions = [
        "init_tcp",
        "init_allgather",
        "get_context",
        "alloc",
        "alloc_on",
        "register",
        "register_local",
        "release",
        "barrier",
        "check",
        "finalize",
        "strerror",
    ];
    let compile = |functions: &[&str]| {
        let library = scratch.path().join("channel.built");
        let source = scratch.path().join("channel.c");
        let text: String =
            functions.iter().map(|name| format!("void nlf_{name}(void) {{}}\n")).collect();
        fs::write(&source, text).expect("the source is written");
        let output = Command::new("cc")
            .args(["-g", "-shared", "-fPIC", "-Wl,-soname,placeholder", "-o"])
            .args([&library, &source])
            .output()
            .expect("cc runs");
        assert!(output.status.success(), "{}", stderr(&output));
        library
    };
    let target = scratch.path().join("with space");
    let output =
        script("install-channel.sh", &[&compile(&functions[..functions.len() - 2]), &target]);
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("the header declares: nlf_finalize nlf_strerror"), "{said}");
    let library = compile(&functions);
    // The second time over the files of the first.
    for _ in 0..2 {
        let output = script("install-channel.sh", &[&library, &target]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let libraries =
        [".debug", "libnvshmem_libfabric_channel.so", "libnvshmem_libfabric_channel.so.0"];
    assert_eq!(names(&target.join("lib")), libraries);
    assert_debug_information_apart(
        &target.join("lib").join(libraries[2]),
        "nlf_alloc",
        "channel.c",
    );
    let headers = names(&target.join("include"));
    for header in
        ["nvshmem_libfabric.h", "nvshmem_libfabric_device.cuh", "nvshmem_libfabric_ring.h"]
    {
        assert!(headers.iter().any(|name| name == header), "{header} among {headers:?}");
    }
}

#[test]
fn a_wrong_library_is_refused_and_leaves_nothing_behind() {
    let two = "int nvshmemt_init(void) { return 0; } int helper(void) { return 1; }";
    let none = "static int nvshmemt_init(void) { return 0; } void *p = 0;";
    let now = &["-Wl,-z,now"];
    let nodelete = &["-Wl,-z,nodelete", "-Wl,-z,lazy"];
    let faults = [
        (Built { source: two, ..Built::default() }, "exports 'helper nvshmemt_init'"),
        (Built { source: none, ..Built::default() }, "should export 'nvshmemt_init' alone"),
        (Built { flags: now, ..Built::default() }, "not linked with -z nodelete"),
        (Built { flags: nodelete, ..Built::default() }, "not linked with -z now"),
    ];
    for (built, complaint) in faults {
        let scratch = PrivateDir::new("install").expect("a scratch directory");
        let library = built.compile(scratch.path());
        let target = scratch.path().join("lib");
        let output = script("install.sh", &[&library, &target]);
        assert!(!output.status.success());
        let said = stderr(&output);
        assert_eq!(said.matches(complaint).count(), plugins().len(), "{complaint}: {said}");
        assert_eq!(fs::read_dir(&target).expect("the directory").count(), 0);
    }
}

#[test]
fn the_check_finds_missing_files_wrong_names_and_a_link_to_libfabric() {
    let scratch = PrivateDir::new("install").expect("a scratch directory");
    let library = Built::default().compile(scratch.path());
    let target = scratch.path().join("lib");
    let output = script("install.sh", &[&library, &target]);
    assert!(output.status.success(), "{}", stderr(&output));
    fs::remove_file(target.join("nvshmem_transport_libfabric.so.3")).expect("removed");
    fs::copy(
        target.join("nvshmem_transport_libfabric.so.5"),
        target.join("nvshmem_transport_libfabric.so.4"),
    )
    .expect("copied");
    let output = Command::new("patchelf")
        .args(["--add-needed", "libfabric.so.1"])
        .arg(target.join("nvshmem_transport_libfabric.so.7"))
        .output()
        .expect("patchelf runs");
    assert!(output.status.success(), "{}", stderr(&output));

    let output = script("check-plugin.sh", &[&target]);
    assert!(!output.status.success());
    let said = stderr(&output);
    let complaints: Vec<_> =
        said.lines().map(|line| line.rsplit('/').next().unwrap_or(line)).collect();
    assert_eq!(
        complaints,
        [
            "nvshmem_transport_libfabric.so.3: is missing",
            "nvshmem_transport_libfabric.so.4: SONAME is 'nvshmem_transport_libfabric.so.5' and \
             should be 'nvshmem_transport_libfabric.so.4'",
            "nvshmem_transport_libfabric.so.7: is linked against libfabric",
        ]
    );
}

/// Runs a target of this tree's makefile in a copy at `checkout`, with `CARGO_TARGET_DIR` if any.
fn make(checkout: &Path, target: &str, build_directory: Option<&Path>) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(checkout).expect("a directory");
    fs::copy(root.join("Makefile"), checkout.join("Makefile")).expect("the makefile");
    let mut make = Command::new("make");
    make.arg("--directory").arg(checkout).arg(target).env_remove("CARGO_TARGET_DIR");
    // Nothing of the tree but the makefile is there, and no cargo would be started.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    if let Some(directory) = build_directory {
        make.env("CARGO_TARGET_DIR", directory);
    }
    make.output().expect("make runs")
}

#[test]
fn make_refuses_paths_with_spaces() {
    let directory = PrivateDir::new("spaces").expect("a directory");
    // What a path that was split at its space would name.
    let neighbour = directory.path().join("my");
    fs::create_dir(&neighbour).expect("a directory");
    fs::write(neighbour.join("thesis"), "years of work").expect("a file");
    let spaced = directory.path().join("my tree/p");
    let plain = directory.path().join("plain");
    for target in ["stage", "install", "package", "demo", "clean"] {
        for (checkout, build_directory) in [(&spaced, None), (&plain, Some(spaced.as_path()))] {
            let output = make(checkout, target, build_directory);
            assert!(!output.status.success(), "make {target} in {checkout:?} goes on");
            let text = stderr(&output);
            assert!(text.contains("has a space"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
            assert_eq!(names(&neighbour), ["thesis"], "after make {target}");
        }
    }
}

#[test]
fn only_build_directories_are_emptied() {
    let directory = PrivateDir::new("empty dir").expect("a directory");
    let users = directory.path().join("users files");
    fs::create_dir(&users).expect("a directory");
    fs::write(users.join("thesis"), "years of work").expect("a file");
    let output = script("empty-dir.sh", &[&users]);
    assert!(!output.status.success() && stderr(&output).contains("not below a build directory"));
    assert_eq!(names(&users), ["thesis"]);

    fs::write(directory.path().join("CACHEDIR.TAG"), "").expect("cargo's mark");
    let output = script("empty-dir.sh", &[&users]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(names(&users).is_empty());
    let output = script("empty-dir.sh", &[directory.path()]);
    assert!(!output.status.success() && stderr(&output).contains("make clean"));
    let output = script("empty-dir.sh", &[&users.join("new")]);
    assert!(output.status.success() && users.join("new").is_dir(), "{}", stderr(&output));
}
