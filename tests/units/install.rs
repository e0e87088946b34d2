//! What `make install` installs, and that its check finds what it is for.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use launcher::PrivateDir;

fn script(name: &str, arguments: &[&Path]) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name);
    Command::new(&path).args(arguments).output().expect("the script runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> =
        entries.map(|entry| name(entry).into_string().expect("a plain name")).collect();
    names.sort();
    names
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
