//! The making of a kit: the sources of a part are rewritten in a copy of the tree, until what is
//! left of its mutants builds.

/// Visitors of constants, and of what is no code that could be changed: all of it is inside.
macro_rules! inside {
    ($($visit:ident: $node:ident),*) => {$(
        fn $visit(&mut self, node: &'a syn::$node) {
            self.inside(true, |this| visit::$visit(this, node));
        }
    )*};
}

mod render;
mod sites;
mod sources;
mod values;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use self::render::{Rendered, render};
use self::sites::Site;
use self::sources::Source;
use crate::error::{Error, Result, at, read, write};
use crate::kit::{self, LIBRARY, MUTANTS, PROGRAMS};
use crate::mutant::{Id, Mutant, State};

/// The file that the rewritten code asks whether a mutant is on.
const RUNTIME: &str = include_str!("runtime.rs");

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The file of a module whose mutants are made, with those below it; relative to the tree
    #[arg(long, required = true)]
    module: Vec<PathBuf>,
    /// Modules below it that are left as they are, as the beginnings of their files
    #[arg(long)]
    except: Vec<PathBuf>,
    /// A copy of the tree, in which the sources are rewritten
    #[arg(long)]
    copy: PathBuf,
    /// The root of the crate in the copy, which the module belongs to: one for each module
    #[arg(long, required = true)]
    root: Vec<PathBuf>,
    /// Where the kit goes
    #[arg(long)]
    kit: PathBuf,
    /// Cargo, and what it is to build: 'scripts/cargo test --no-run --test engine'
    #[arg(last = true, required = true)]
    build: Vec<String>,
}

pub(crate) fn make(options: &Options) -> Result<()> {
    let mut sources = Vec::new();
    for module in &options.module {
        sources.extend(sources::modules(module, &options.except)?);
    }
    let in_constants = sources::in_constants(&rust_below(&options.copy)?);
    let mut mutants = Vec::new();
    let sites: Vec<Vec<Site>> =
        sources.iter().map(|source| sites::find(source, &in_constants, &mut mutants)).collect();
    let texts: Vec<_> = sources.iter().map(|source| without_const(source, &in_constants)).collect();

    unviable_before(options, &mut mutants)?;

    let runtime = RUNTIME.replace("COUNT: usize = 0", &format!("COUNT: usize = {}", mutants.len()));
    put(options, Path::new("mutants.rs"), &runtime)?;
    for root in &options.root {
        if !sources.iter().any(|source| source.path == *root) {
            let text = read(&options.copy.join(root))?;
            if !text.contains("pub mod mutants;") {
                put(options, root, &with_runtime(&text, root))?;
            }
        }
    }

    let programs = loop {
        let built = |id: Id| mutants[id].state == State::Built;
        let mut rendered = HashMap::new();
        for ((source, text), sites) in sources.iter().zip(&texts).zip(&sites) {
            let done = render(text, sites, &built);
            let is_root = options.root.contains(&source.path);
            let text = if is_root { &with_runtime(&done.text, &source.path) } else { &done.text };
            put(options, &source.path, text)?;
            rendered.insert(source.path.clone(), done);
        }
        match build(options)? {
            Ok(programs) => break programs,
            Err(faults) => {
                let blamed = blame(&faults, &rendered);
                if blamed.is_empty() {
                    let texts: Vec<_> = faults.iter().map(|fault| fault.text.as_str()).collect();
                    return Err(Error::Build(texts.concat()));
                }
                println!("{} mutants do not compile", blamed.len());
                blamed.into_iter().for_each(|id| mutants[id].state = State::Unviable);
            }
        }
    };
    collect(options, &programs, &mutants)
}

/// Mutants that did not compile when the kit was last made do not now.
fn unviable_before(options: &Options, mutants: &mut [Mutant]) -> Result<()> {
    let list = options.kit.join(MUTANTS);
    if !list.exists() {
        return Ok(());
    }
    let before: Vec<Mutant> = kit::load(&list)?;
    let unviable = before.iter().filter(|mutant| mutant.state == State::Unviable);
    let unviable: HashSet<_> = unviable.map(ToString::to_string).collect();
    for mutant in mutants.iter_mut().filter(|mutant| mutant.state == State::Built) {
        if unviable.contains(&mutant.to_string()) {
            mutant.state = State::Unviable;
        }
    }
    Ok(())
}

/// Writes a file of the copy. What was written there the last time is as old as it was then, and
/// cargo does not build it anew.
fn put(options: &Options, path: &Path, text: &str) -> Result<()> {
    let last = options.copy.with_extension("written").join(path);
    if !std::fs::read(&last).is_ok_and(|before| before == text.as_bytes()) {
        let folder = last.parent().unwrap_or(&last);
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        write(&last, text)?;
    }
    let path = options.copy.join(path);
    write(&path, text)?;
    let age = || std::fs::metadata(&last)?.modified();
    let set = |age| std::fs::File::options().append(true).open(&path)?.set_modified(age);
    age().and_then(set).map_err(at(&path))
}

/// The root of a crate, with the runtime as a module. That names a function of C, which a crate
/// without unsafe code must be allowed.
fn with_runtime(text: &str, root: &Path) -> String {
    let text = text.replace("#![forbid(unsafe_code)]", "");
    let up = "../".repeat(root.components().count() - 1);
    format!("{text}\n#[path = \"{up}mutants.rs\"]\n#[doc(hidden)]\npub mod mutants;\n")
}

/// All Rust of the copy: what constants anywhere are computed by has to stay so.
fn rust_below(root: &Path) -> Result<Vec<syn::File>> {
    let mut files = Vec::new();
    let mut folders = ["src", "crates", "tests"].map(|folder| root.join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                // What was generated may be for a `include!`, and no file of its own.
                files.extend(sources::parse(&path, &read(&path)?));
            }
        }
    }
    Ok(files)
}

/// A file in which functions are `const` only where constants need them. No byte moves.
fn without_const(source: &Source, in_constants: &HashSet<String>) -> String {
    struct Find<'a>(&'a HashSet<String>, Vec<sites::Bytes>);
    impl<'a> syn::visit::Visit<'a> for Find<'_> {
        fn visit_signature(&mut self, signature: &'a syn::Signature) {
            if let Some(constness) = signature.constness {
                if !self.0.contains(&signature.ident.to_string()) {
                    self.1.push(constness.span.byte_range());
                }
            }
        }
    }
    let mut find = Find(in_constants, Vec::new());
    syn::visit::Visit::visit_file(&mut find, &source.syntax);
    let mut text = source.text.clone();
    find.1.into_iter().for_each(|bytes| text.replace_range(bytes, "     "));
    text
}

/// A test program: the name of its target, and its file; or a shared library, under its file's
/// name.
type Program = (String, PathBuf);

/// An error of the compiler: its text, and the places it names, the most important first.
#[derive(Debug)]
struct Fault {
    text: String,
    places: Vec<(PathBuf, sites::Bytes)>,
}

/// The test programs, or what the compiler objects to.
fn build(options: &Options) -> Result<std::result::Result<Vec<Program>, Vec<Fault>>> {
    let cargo = Path::new(&options.build[0]);
    let child = Command::new(cargo)
        .args(&options.build[1..])
        .arg("--message-format=json")
        .current_dir(&options.copy)
        .env("RUSTFLAGS", "--cap-lints=warn -Awarnings")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(at(cargo))?;
    let messages = String::from_utf8_lossy(&child.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut programs, mut faults) = (Vec::new(), Vec::new());
    for message in messages {
        let target = &message["target"];
        let kinds = target["kind"].as_array().into_iter().flatten();
        let kinds: Vec<_> = kinds.filter_map(Value::as_str).collect();
        if let Some(program) = message["executable"].as_str() {
            let is_lib = kinds.iter().any(|kind| kind.contains("lib"));
            let name = target["name"].as_str().unwrap_or("test");
            let name = if is_lib { format!("unit_{name}") } else { name.to_owned() };
            if message["profile"]["test"] == true {
                programs.push((name, PathBuf::from(program)));
            }
        } else if kinds.contains(&"cdylib") {
            let files = message["filenames"].as_array().into_iter().flatten();
            let files = files.filter_map(Value::as_str).map(PathBuf::from);
            let shared = files.filter(|file| file.extension().is_some_and(|end| end == LIBRARY));
            let named = shared
                .filter_map(|file| Some((file.file_name()?.to_str()?.to_owned(), file.clone())));
            programs.extend(named);
        }
        if message["message"]["level"] == "error" {
            faults.push(fault(&message["message"]));
        }
    }
    if child.status.success() {
        return Ok(Ok(programs));
    }
    if faults.is_empty() {
        return Err(Error::Build(format!(
            "{} ended with {}",
            options.build.join(" "),
            child.status
        )));
    }
    Ok(Err(faults))
}

fn fault(message: &Value) -> Fault {
    let text = message["rendered"].as_str().unwrap_or_default().to_owned();
    let empty = Vec::new();
    let spans = |message: &Value| message["spans"].as_array().unwrap_or(&empty).clone();
    let mut spans: Vec<_> = spans(message)
        .into_iter()
        .chain(message["children"].as_array().unwrap_or(&empty).iter().flat_map(spans))
        .collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    let place = |span: &Value| {
        let byte = |which: &str| span[which].as_u64().unwrap_or_default() as usize;
        let file = span["file_name"].as_str().unwrap_or_default();
        (PathBuf::from(file), byte("byte_start")..byte("byte_end"))
    };
    Fault { text, places: spans.iter().map(place).collect() }
}

/// The mutants that faults are about: those of the smallest rewritten place that an error is in, or
/// around.
fn blame(faults: &[Fault], rendered: &HashMap<PathBuf, Rendered>) -> Vec<Id> {
    let mut blamed: Vec<Id> = faults.iter().flat_map(|fault| blame_one(fault, rendered)).collect();
    blamed.sort_unstable();
    blamed.dedup();
    blamed
}

fn blame_one(fault: &Fault, rendered: &HashMap<PathBuf, Rendered>) -> Vec<Id> {
    let owners = |path: &Path| rendered.get(path).map_or(&[][..], |file| &file.owners);
    let inside = fault.places.iter().find_map(|(path, bytes)| {
        let around = owners(path)
            .iter()
            .filter(|(owned, _)| owned.start <= bytes.start && bytes.end <= owned.end);
        around.min_by_key(|(owned, _)| owned.len())
    });
    let touched = || {
        fault.places.iter().find_map(|(path, bytes)| {
            let meets = |owned: &sites::Bytes| owned.start < bytes.end && bytes.start < owned.end;
            let met = owners(path).iter().filter(|(owned, _)| meets(owned));
            met.max_by_key(|(owned, _)| owned.len())
        })
    };
    inside.or_else(touched).map_or_else(Vec::new, |(_, ids)| ids.clone())
}

fn collect(options: &Options, programs: &[Program], mutants: &[Mutant]) -> Result<()> {
    let kit = &options.kit;
    let bin = kit.join(PROGRAMS);
    if kit.exists() {
        std::fs::remove_dir_all(kit).map_err(at(kit))?;
    }
    std::fs::create_dir_all(&bin).map_err(at(&bin))?;
    for (name, program) in programs {
        std::fs::copy(program, bin.join(name)).map_err(at(program))?;
    }
    let own = std::env::current_exe().map_err(at(kit))?;
    std::fs::copy(&own, kit.join("nvshmem-mutants")).map_err(at(&own))?;
    kit::save(&kit.join(MUTANTS), &mutants)?;
    let count = |state| mutants.iter().filter(|mutant| mutant.state == state).count();
    println!(
        "{} mutants: {} built, {} do not compile, {} left out in what constants are computed by",
        mutants.len(),
        count(State::Built),
        count(State::Unviable),
        count(State::LeftOut)
    );
    Ok(())
}
