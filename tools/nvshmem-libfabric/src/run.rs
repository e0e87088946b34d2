//! `run`: a program with our transport in front of NVSHMEM's, in any command line that starts one.
//!
//! NVSHMEM's packages look beside their own library before they look at `LD_LIBRARY_PATH`, but what
//! is loaded already under the name that they ask for comes before both. So the file for the
//! program's NVSHMEM is preloaded, and this process becomes the program: its signals, its output
//! and its exit status are its own.

use std::borrow::Cow;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use crate::doctor::Verdict;
use crate::doctor::gpus::staging_context;
use crate::error::ToolError;
use crate::info::{accepted, check_settings};
use crate::libraries::find::{self, of_python, wrong_home};
use crate::libraries::linker::{self, Linker};
use crate::libraries::nvshmem::{HOST_LIBRARY, Nvshmem};
use crate::libraries::plugins::{Plugin, Plugins};
use crate::options::RunOptions;
use crate::probe;
use crate::selftest::PROVIDER;
use crate::selftest::hosts::check_here;

/// As `env` and `timeout` have it: the program is not there, cannot be started; and anything else
/// before it starts.
pub(crate) const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;
pub(crate) const FAILED: u8 = 125;

const EACH: &str = "a file for every NVSHMEM: each takes the one that it asks for";

const PRELOAD: &str = "LD_PRELOAD";
const TRANSPORT: &str = "NVSHMEM_REMOTE_TRANSPORT";

/// NCCL's variables that recipes set and `run` leaves alone, with what each does here.
const KEPT: [(&str, &str); 5] = [
    ("NCCL_NET_PLUGIN", "collectives use it; this plugin carries none of them"),
    ("NCCL_SYM_GIN_KERNELS_ENABLE", "with 0 NCCL's own symmetric collectives go without GIN"),
    (
        "NCCL_GIN_PROXY_NTHREADS",
        "NCCL gives each thread connections of its own; threads beyond them idle",
    ),
    ("NCCL_GIN_ENABLE", "with 0 kernels have no GIN, and only the host's calls come here"),
    ("NCCL_CROSS_NIC", "with 0 NCCL finds no GIN"),
];

#[derive(Debug, Default)]
struct Plan {
    program: Option<PathBuf>,
    words: Vec<OsString>,
    /// Variables with their values, and why.
    set: Vec<(&'static str, String, String)>,
    notes: Vec<String>,
    /// Settings that the program may hang by.
    warnings: Vec<String>,
    /// Reasons why it cannot be done, with their exit statuses. A dry run shows the rest.
    missing: Vec<Failed>,
}

pub(crate) type Failed = (ToolError, u8);

/// Becomes the program. Comes back with why not, or after a dry run.
pub(crate) fn run(options: &RunOptions) -> Result<(), Failed> {
    let plan = Plan::make(options);
    if options.dry_run {
        plan.print();
        return Ok(());
    }
    if let Some(failed) = plan.missing.into_iter().next() {
        return Err(failed);
    }
    let program = plan.program.unwrap_or_default();
    for warning in &plan.warnings {
        eprintln!("nvshmem-libfabric: {warning}");
    }
    let mut command = Command::new(&program);
    command.args(&plan.words[1..]).arg0(&plan.words[0]);
    command.envs(plan.set.iter().map(|(name, value, _)| (name, value)));
    let error = command.exec();
    let hint = "look at the file: `run --dry-run` shows the whole command";
    Err((ToolError::file(&program, "cannot be started", error, hint), NOT_STARTED))
}

impl Plan {
    fn make(options: &RunOptions) -> Self {
        let mut plan = Self { words: options.command.clone(), ..Self::default() };
        match program_of(&plan.words) {
            Ok(program) => plan.program = Some(program),
            Err(failed) => plan.missing.push(failed),
        }
        let plugins = plan.have(Plugins::find(options.r#where.plugin_dir.as_deref()));
        match options.nccl {
            false => plan.set_nvshmem(options, plugins.as_ref()),
            true => plugins.iter().for_each(|plugins| plan.set_nccl(plugins)),
        }
        plan.set_fabric(options);
        plan.notes.extend(forwarding(&plan.words));
        let given = options.provider.as_ref().map(|_| PROVIDER);
        let refused = check_settings(given).err().map(|error| error.to_string());
        plan.warnings.extend(refused.iter().flat_map(|text| text.lines()).map(String::from));
        plan.warnings.extend(held_up());
        plan
    }

    fn have<T>(&mut self, found: Result<T, ToolError>) -> Option<T> {
        found.map_err(|error| self.missing.push((error, FAILED))).ok()
    }

    fn set_nvshmem(&mut self, options: &RunOptions, plugins: Option<&Plugins>) {
        let all = plugins.map_or(&[][..], |plugins| &plugins.files);
        let mut files: Vec<&Plugin> = all.iter().collect();
        if options.any_nvshmem {
            self.notes.push(String::from(EACH));
        } else if let Some((nvshmem, found, is_guess)) = self.have(used(options, &self.words)) {
            self.notes.push(format!("{}: {found}", nvshmem.describe()));
            self.notes.extend(beside_ours(&nvshmem));
            let file = nvshmem.number();
            let file = file.and_then(|number| plugins.map(|ours| ours.of(number)).transpose());
            if is_guess {
                // The program may come to another one, by a wrapper or in a container.
                let shows = "the command line does not show which NVSHMEM it uses, so it gets";
                self.warnings.push(format!("{shows} {EACH}; --nvshmem PATH names one"));
                self.warnings.extend(file.err().map(|error| format!("{error}: {}", error.hint)));
            } else {
                files = self.have(file).flatten().into_iter().collect();
            }
        } else {
            self.notes.push(format!("with --any-nvshmem it would be {EACH}"));
        }
        let why = "NVSHMEM uses another one by default";
        self.set_over(TRANSPORT, String::from("libfabric"), why);
        let why = "what is loaded under the name that NVSHMEM asks for comes before its own file";
        if files.is_empty() {
            self.notes.push(format!("{PRELOAD} would have the file that is missing: {why}"));
        } else if let Some(list) = self.have(preload(&files)) {
            self.set(PRELOAD, list, why);
        }
    }

    fn set_nccl(&mut self, plugins: &Plugins) {
        let Some(plugin) = self.have(plugins.nccl()) else { return };
        let path = plugin.path.to_string_lossy().into_owned();
        self.set_over("NCCL_RMA_PLUGIN", path, "NCCL 2.30.7 and later load it by this");
        let why = "NCCL's proxy drives it; where it has a kind of its own, that comes first";
        self.set_over("NCCL_GIN_TYPE", String::from("2"), why);
        for (name, what) in KEPT {
            let value = env::var(name).ok();
            self.notes.extend(value.map(|value| format!("{name}={value} is kept: {what}")));
        }
    }

    /// Sets a variable, and names the environment's value that it replaces.
    fn set_over(&mut self, name: &'static str, value: String, why: &str) {
        match env::var(name).ok().filter(|theirs| !theirs.is_empty() && *theirs != value) {
            Some(theirs) => self.set(name, value, &format!("{why}; in place of `{theirs}`")),
            None => self.set(name, value, why),
        }
    }

    fn set_fabric(&mut self, options: &RunOptions) {
        if let Some(provider) = &options.provider {
            // A program that starts does not wait for libfabric's answer.
            let asked = options.dry_run.then(|| probe::fabric(false));
            let here = asked.map(|fabric| check_here(&fabric, slice::from_ref(provider)));
            let missing = here.and_then(Result::err).map(|error| error.to_string());
            self.notes.extend(missing.iter().flat_map(|text| text.lines()).map(String::from));
            self.set(PROVIDER, provider.clone(), "--provider");
        }
        let library = options.libfabric.as_deref().map(absolute);
        if let Some(library) = library.and_then(|library| self.have(library)) {
            self.set("NVSHMEM_LIBFABRIC_LIBRARY", library, "--libfabric");
        }
    }

    fn set(&mut self, name: &'static str, value: String, why: &str) {
        self.set.push((name, value, why.to_owned()));
    }

    fn print(&self) {
        for (error, status) in &self.missing {
            let what = format!("MISSING, and so without --dry-run status {status}: {error}");
            what.lines().for_each(|line| println!("# {line}"));
            error.hint.lines().for_each(|line| println!("# hint: {line}"));
        }
        for note in self.notes.iter().chain(&self.warnings) {
            println!("# {note}");
        }
        for (name, value, why) in &self.set {
            println!("# {why}\nexport {name}={}", quoted(value));
        }
        let words = self.words.iter().map(|word| quoted(&word.to_string_lossy()).into_owned());
        println!("exec {}", words.collect::<Vec<_>>().join(" "));
    }
}

fn absolute(file: &Path) -> Result<String, ToolError> {
    let hint = "give the file, such as /opt/libfabric/lib/libfabric.so.1";
    let path = std::fs::canonicalize(file)
        .map_err(|error| ToolError::file(file, "is no libfabric", error, hint))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Returns the list of what is to be preloaded: the files, in front of what is there.
fn preload(files: &[&Plugin]) -> Result<String, ToolError> {
    let ours: Vec<_> = files.iter().map(|file| file.path.to_string_lossy()).collect();
    if let Some(path) = ours.iter().find(|path| path.contains([' ', ':'])) {
        let message = format!("{path} has a space or a colon in it, which {PRELOAD} cannot hold");
        let hint = "install into a directory without, or make a link to it";
        return Err(ToolError::new(message, hint));
    }
    let theirs = env::var(PRELOAD).unwrap_or_default();
    let theirs = theirs.split([' ', ':']).filter(|entry| !entry.is_empty());
    let theirs = theirs.filter(|entry| !ours.iter().any(|path| path == entry));
    // A sanitizer's runtime has to be the first library of its process.
    let (first, last): (Vec<&str>, Vec<&str>) = theirs.partition(|entry| is_sanitizer(entry));
    Ok([first, ours.iter().map(|path| &**path).collect(), last].concat().join(":"))
}

fn is_sanitizer(library: &str) -> bool {
    let name = Path::new(library).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let runtimes = ["libasan", "libtsan", "libubsan", "liblsan", "libclang_rt."];
    runtimes.iter().any(|runtime| name.starts_with(runtime))
}

/// Returns the NVSHMEM that the program uses and how it was found; and whether that is a guess: the
/// first of the machine, where no word of the command line leads to one.
fn used(options: &RunOptions, words: &[OsString]) -> Result<(Nvshmem, String, bool), ToolError> {
    let linker = Linker::of_environment();
    if let Some(path) = &options.r#where.nvshmem {
        let nvshmem = Nvshmem::at(path, &linker)?;
        return Ok((nvshmem, String::from("named by --nvshmem"), false));
    }
    if let Some((nvshmem, found)) = nvshmem_in(words, &linker) {
        return Ok((nvshmem, found, false));
    }
    let home = wrong_home().map_or_else(String::new, |wrong| format!("; {wrong}"));
    let Some(nvshmem) = find::all(None, &linker)?.into_iter().next() else {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let message = format!("no NVSHMEM is found for {}{home}", words.join(" "));
        let hint = "name it with --nvshmem PATH, or use --any-nvshmem, which has a file ready for each; where a \
                    launcher starts the program in a container or on another host, put `nvshmem-libfabric run --` \
                    in front of the program there";
        return Err(ToolError::new(message, hint));
    };
    let by = nvshmem.found_by.join("; ");
    let found = format!("the first of this machine ({by}){home}");
    Ok((nvshmem, found, true))
}

fn program_of(words: &[OsString]) -> Result<PathBuf, Failed> {
    let first = words.first().cloned().unwrap_or_default();
    if let Some(program) = linker::program(&first) {
        return Ok(program);
    }
    let word = first.to_string_lossy();
    // As a shell tells them apart.
    if word.contains('/') && Path::new(&first).exists() {
        let message = format!("{word} is no program that can be started");
        return Err((ToolError::new(message, "is it a file, and executable?"), NOT_STARTED));
    }
    let message = format!("there is no program {word}");
    Err((ToolError::new(message, "give a path, or a name that is on PATH"), NOT_FOUND))
}

fn held_up() -> Option<String> {
    let (settings, ..) = accepted();
    // Unless it is told otherwise, CUDA loads kernels at their first launch.
    let eager =
        env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode.eq_ignore_ascii_case("EAGER"));
    let check = staging_context(!eager, &settings);
    let remedy = check.remedy.unwrap_or_default();
    (check.verdict == Verdict::Warning).then(|| format!("{}: {remedy}", check.reason))
}

fn beside_ours(nvshmem: &Nvshmem) -> Option<String> {
    let file = nvshmem.would_load.as_ref()?;
    let version = file.ours.as_ref()?;
    let (path, rule) = (file.path.display(), file.rule);
    Some(format!("it would load ours anyway, version {version}: {path} by {rule}"))
}

fn forwarding(words: &[OsString]) -> Option<String> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    let launchers = ["mpirun", "mpiexec", "orterun", "prterun"];
    launchers.contains(&name).then(|| {
        format!(
            "Open MPI's {name} hands variables to other hosts only where -x names them: there, put \
             `nvshmem-libfabric run --` behind its options, in front of the program"
        )
    })
}

fn quoted(word: &str) -> Cow<'_, str> {
    // No word of a process has a null byte, which is all that cannot be quoted.
    shlex::try_quote(word).unwrap_or_default()
}

/// Managers of environments, which choose the Python behind `run` themselves.
const MANAGERS: [&str; 8] =
    ["uv", "poetry", "pdm", "hatch", "pixi", "conda", "mamba", "micromamba"];

/// The NVSHMEM of the first program that has one, and how it has it. Launchers and wrappers have
/// none, so the words behind them are looked at as well.
fn nvshmem_in(words: &[OsString], linker: &Linker) -> Option<(Nvshmem, String)> {
    let is_manager = |word: &OsString| {
        Path::new(word).file_name().is_some_and(|name| MANAGERS.iter().any(|known| name == *known))
    };
    if words.windows(2).any(|two| is_manager(&two[0]) && two[1] == "run") {
        return None;
    }
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
