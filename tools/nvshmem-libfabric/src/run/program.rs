//! The programs in a command line, and the NVSHMEM that they use.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::libraries::find::of_python;
use crate::libraries::linker::{self, Linker};
use crate::libraries::nvshmem::{HOST_LIBRARY, Nvshmem};

/// The NVSHMEM of the first program that has one, and how it has it. Launchers and wrappers have
/// none, so the words behind them are looked at as well.
pub(super) fn nvshmem_in(words: &[OsString], linker: &Linker) -> Option<(Nvshmem, String)> {
    let words = words.iter().filter(|word| !word.as_bytes().starts_with(b"-"));
    words.filter_map(|word| linker::program(word)).find_map(|program| {
        let python =
            if is_python(&program) { Some(program.clone()) } else { interpreter(&program) };
        match python {
            Some(python) => of_packages(&python, linker),
            None => of_program(&program, linker),
        }
    })
}

fn of_packages(python: &Path, linker: &Linker) -> Option<(Nvshmem, String)> {
    let library = of_python(python).into_iter().next()?;
    let found = Nvshmem::read(&library, "the packages of Python", linker).ok()?;
    Some((found, format!("among the packages of {}", python.display())))
}

fn of_program(program: &Path, linker: &Linker) -> Option<(Nvshmem, String)> {
    let Some((library, chain)) = linker.library_of(program, HOST_LIBRARY) else {
        let found = Nvshmem::within(program, linker)?;
        return Some((found, format!("{} has it in itself", program.display())));
    };
    let found = Nvshmem::read(&library.path, "linked", linker).ok()?;
    let way = chain.iter().rev().map(|(path, _)| path.display().to_string());
    let way = way.collect::<Vec<_>>().join(", which loads ");
    Some((found, format!("{way} is linked to it, by {}", library.rule)))
}

fn is_python(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python"))
}

fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    // A line longer than the kernel reads names none.
    BufReader::new(File::open(script).ok()?.take(512)).read_until(b'\n', &mut line).ok()?;
    let line = line.strip_prefix(b"#!")?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let named = if Path::new(first).file_name() == Some(OsStr::new("env")) {
        words.find(|word| !word.starts_with('-') && !word.contains('='))?
    } else {
        first
    };
    linker::program(OsStr::new(named)).filter(|path| is_python(path))
}
