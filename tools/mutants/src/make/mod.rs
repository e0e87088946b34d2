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

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use self::render::{Rendered, render};
use self::sites::Site;
use self::sources::Source;
use crate::error::{Error, Result, at, read, write};
use crate::kit::{self, MUTANTS, PROGRAMS};
use crate::mutant::{Id, Mutant, State};

/// The file that the rewritten code asks whether a mutant is on.
const RUNTIME: &str = include_str!("runtime.rs");

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The file of the module whose mutants are made, with those below it; relative to the tree
    #[arg(long)]
    module: PathBuf,
    /// Modules below it that are left as they are, as the beginnings of their files
    #[arg(long)]
    except: Vec<PathBuf>,
    /// A copy of the tree, in which the sources are rewritten
    #[arg(long)]
    copy: PathBuf,
    /// The root of the crate in the copy, which the module belongs to
    #[arg(long)]
    root: PathBuf,
    /// Where the kit goes
    #[arg(long)]
    kit: PathBuf,
    /// Cargo, and what it is to build: 'scripts/cargo test --no-run --test engine'
    #[arg(last = true, required = true)]
    build: Vec<String>,
}

pub(crate) fn make(options: &Options) -> Result<()> {
    let sources = sources::modules(&options.module, &options.except)?;
    let in_constants = sources::in_constants(&rust_below(&options.copy)?);
    let mut mutants = Vec::new();
    let sites: Vec<Vec<Site>> =
        sources.iter().map(|source| sites::find(source, &in_constants, &mut mutants)).collect();
    let texts: Vec<_> = sources.iter().map(|source| without_const(source, &in_constants)).collect();

    let runtime = RUNTIME.replace("COUNT]", &format!("{}]", mutants.len()));
    let runtime = runtime.replace("0..COUNT", &format!("0..{}", mutants.len()));
    write(&options.copy.join("mutants.rs"), runtime)?;
    if !sources.iter().any(|source| source.path == options.root) {
        let root = options.copy.join(&options.root);
        let text = read(&root)?;
        if !text.contains("pub mod mutants;") {
            write(&root, with_runtime(&text, &options.root))?;
        }
    }

    let programs = loop {
        let built = |id: Id| mutants[id].state == State::Built;
        let mut rendered = HashMap::new();
        for ((source, text), sites) in sources.iter().zip(&texts).zip(&sites) {
            let done = render(text, sites, &built);
            let is_root = source.path == options.root;
            let text = if is_root { &with_runtime(&done.text, &source.path) } else { &done.text };
            write(&options.copy.join(&source.path), text)?;
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
fn without_const(source: &Source, in_constants: &std::collections::HashSet<String>) -> String {
    struct Find<'a>(&'a std::collections::HashSet<String>, Vec<sites::Bytes>);
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

/// A test program: the name of its target, and its file.
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
        if let Some(program) = message["executable"].as_str() {
            let target = &message["target"];
            let is_lib = target["kind"][0].as_str().is_some_and(|kind| kind.contains("lib"));
            let name = if is_lib { "unit" } else { target["name"].as_str().unwrap_or("test") };
            programs.push((name.to_owned(), PathBuf::from(program)));
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
