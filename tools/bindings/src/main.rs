//! The generator of the checked-in bindings: writes them from C headers, or compares them in full.
//!
//! It needs libclang, which the build of everything else does not.

mod extends;
mod facts;
mod generate;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use thiserror::Error;

use crate::generate::{Binding, NEWER, OLDEST, OURS, VERBS};

/// Writes the bindings that are checked in anew, from the headers.
#[derive(Parser)]
struct Options {
    /// Compare with what is checked in, and write nothing.
    #[arg(long)]
    check: bool,
    /// A directory with libfabric's headers in 1.17/rdma and 2.1/rdma. Without it, libfabric's
    /// bindings are left alone.
    #[arg(long)]
    libfabric: Option<PathBuf>,
    /// A directory with libibverbs's headers in 56.1/infiniband. Without it, its bindings are left
    /// alone.
    #[arg(long)]
    verbs: Option<PathBuf>,
}

/// Status when there is no libclang to read headers with.
const NO_LIBCLANG: u8 = 3;

#[derive(Debug, Error)]
enum Failure {
    #[error("cannot read the headers for {path}: {reason}")]
    Headers { path: &'static str, reason: String },
    #[error("cannot read {path} as Rust: {reason}")]
    Parse { path: &'static str, reason: String },
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "{path} is not what bindgen makes of the headers (first difference in line {line}); \
         `make bindings` writes it anew"
    )]
    Differs { path: &'static str, line: usize },
    #[error(
        "libfabric's newer headers do not extend the older ones, so code made for the older \
         would misread newer libraries:\n{0}"
    )]
    Extends(String),
    #[error("libfabric's newer headers differ from what crates/libfabric-sys says of them:\n{0}")]
    Facts(String),
}

fn main() -> ExitCode {
    let options = Options::parse();
    // Bindgen panics where it finds none. This is its own search, with an answer.
    if let Err(reason) = clang_sys::load() {
        eprintln!("libclang cannot be loaded: {reason}");
        return ExitCode::from(NO_LIBCLANG);
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bindings: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let root = tree();
    for binding in &OURS {
        settle(options.check, &root, binding, &binding.generate(&root, None)?)?;
    }
    if let Some(headers) = &options.libfabric {
        let oldest = OLDEST.generate(&root, Some(headers))?;
        settle(options.check, &root, &OLDEST, &oldest)?;
        extends::check(&oldest, &NEWER.generate(&root, Some(headers))?)?;
        println!("libfabric's newer headers extend the older, and have the facts stated by hand");
    }
    if let Some(headers) = &options.verbs {
        settle(options.check, &root, &VERBS, &VERBS.generate(&root, Some(headers))?)?;
    }
    Ok(())
}

/// Compares or writes one file.
fn settle(check: bool, root: &Path, binding: &Binding, fresh: &str) -> Result<(), Failure> {
    let file = root.join(binding.path);
    if !check {
        println!("{}", binding.path);
        return fs::write(&file, fresh).map_err(|source| Failure::File {
            action: "write",
            path: file,
            source,
        });
    }
    let found = read(&file)?;
    if found == fresh {
        println!("{}: as bindgen makes it", binding.path);
        return Ok(());
    }
    let same = found.lines().zip(fresh.lines()).take_while(|(a, b)| a == b).count();
    Err(Failure::Differs { path: binding.path, line: same + 1 })
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|source| Failure::File {
        action: "read",
        path: file.to_owned(),
        source,
    })
}

/// The root of the tree that this was built in.
fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}
