//! What `make install` installs, and that its check finds what it is for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use launcher::PrivateDir;
use nvshmem_abi::Layout;

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

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> =
        entries.map(|entry| name(entry).into_string().expect("a plain name")).collect();
    names.sort();
    names
}

fn assert_debug_information_apart(library: &Path, function: &str, source: &str) {
    let sections = stdout_of("readelf", &["--sections", "--wide"], library);
    assert!(!sections.contains(".debug_") && !sections.contains(".symtab"), "{sections}");
    let symbols = stdout_of("nm", &["--dynamic", "--defined-only"], library);
    let line = symbols.lines().find(|line| line.ends_with(function)).expect("it is exported");
    let address = line.split(' ').next().expect("an address");
    let found = stdout_of("addr2line", &[address, "--exe"], library);
    assert!(found.contains(source), "{library:?}: {function} at {address} is in {found}");
}

fn compile(directory: &Path) -> PathBuf {
    let (source, library) = (directory.join("plugin.c"), directory.join("plugin.so"));
    fs::write(&source, "int nvshmemt_init(void) { return 0; }").expect("the source is written");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-g", "-Wl,-z,nodelete", "-Wl,-z,now"])
        .args(["-Wl,-soname,placeholder", "-o"])
        .args([&library, &source])
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{}", stderr(&output));
    library
}

#[test]
fn plugins_have_names_and_symbols() {
    let scratch = PrivateDir::new("install").expect("a scratch directory");
    let library = compile(scratch.path());
    let target = scratch.path().join("with space").join("lib");
    // The second time over the files of the first.
    for _ in 0..2 {
        let output = script("install.sh", &[Path::new("plugin"), &library, &target]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(names(&target), [vec![".debug"], plugins()].concat());
    assert_eq!(names(&target.join(".debug")), ["nvshmem_transport_libfabric.debug"]);
    for name in plugins() {
        let soname = stdout_of("patchelf", &["--print-soname"], &target.join(name));
        assert_eq!(soname.trim(), name);
        assert_debug_information_apart(&target.join(name), "nvshmemt_init", "plugin.c");
    }
    fs::remove_file(target.join("nvshmem_transport_libfabric.so.3")).expect("removed");
    let output = script("install.sh", &[Path::new("check"), &target]);
    assert!(!output.status.success());
    assert!(stderr(&output).ends_with("libfabric.so.3: is missing\n"), "{}", stderr(&output));
}

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
