//! `run`: a program with our transport in front of NVSHMEM's, in any command line that starts one.
//!
//! NVSHMEM's packages look beside their own library before they look at `LD_LIBRARY_PATH`, but what
//! is loaded already under the name that they ask for comes before both. So the file for the
//! program's NVSHMEM is preloaded, and this process becomes the program: its signals, its output
//! and its exit status are its own.

mod program;

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ToolError;
use crate::libraries::linker::{self, Linker};
use crate::libraries::nvshmem::Nvshmem;
use crate::libraries::plugins::{Plugin, Plugins};
use crate::options::RunOptions;
use program::Program;

/// As `env` and `timeout` have it: the program is not there, cannot be started; and anything else
/// before it starts.
pub(crate) const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;
pub(crate) const FAILED: u8 = 125;

const PRELOAD: &str = "LD_PRELOAD";
const TRANSPORT: &str = "NVSHMEM_REMOTE_TRANSPORT";
/// The file that the recorder loads in place of ours.
const RECORDED: &str = "NVSHMEM_RECORDER_TRANSPORT";

/// A variable for the program.
#[derive(Debug)]
struct Variable {
    name: &'static str,
    value: String,
    why: String,
}

/// What will be done.
#[derive(Debug)]
struct Plan {
    program: PathBuf,
    words: Vec<OsString>,
    set: Vec<Variable>,
    /// What is told of the rest.
    notes: Vec<String>,
}

/// A failure, with the exit status that it has.
pub(crate) type Failed = (ToolError, u8);

/// Becomes the program. Comes back with why not, or after a dry run.
///
/// # Errors
/// There is no such program, no NVSHMEM is found, or none of our files fits it.
pub(crate) fn run(options: &RunOptions) -> Result<(), Failed> {
    let plan = Plan::make(options)?;
    if options.dry_run {
        plan.print();
        return Ok(());
    }
    let mut command = Command::new(&plan.program);
    command.args(&plan.words[1..]).arg0(&plan.words[0]);
    command.envs(plan.set.iter().map(|variable| (variable.name, &variable.value)));
    let error = command.exec();
    let hint = "look at the file: `run --dry-run` shows the whole command";
    Err((ToolError::file(&plan.program, "cannot be started", error, hint), NOT_STARTED))
}

impl Plan {
    fn make(options: &RunOptions) -> Result<Self, Failed> {
        let words = options.command.clone();
        let first = words.first().cloned().unwrap_or_default();
        let program = linker::program(&first).ok_or_else(|| {
            let message = format!("there is no program {}", first.to_string_lossy());
            let hint = "give a path, or a name that is on PATH";
            (ToolError::new(message, hint), NOT_FOUND)
        })?;
        let failed = |error| (error, FAILED);
        let plugins = Plugins::find(options.r#where.plugin_dir.as_deref()).map_err(failed)?;
        if options.nccl {
            let mut plan = Self { program, words, set: Vec::new(), notes: Vec::new() };
            plan.set_nccl(&plugins).map_err(failed)?;
            plan.set_fabric(options).map_err(failed)?;
            plan.notes.extend(forwarding(&plan.words));
            return Ok(plan);
        }
        let (files, notes) = if options.any_nvshmem {
            let note = "a file for every NVSHMEM: each takes the one that it asks for".to_owned();
            (plugins.files.iter().collect(), vec![note])
        } else {
            let (nvshmem, found) = nvshmem(options, &words).map_err(failed)?;
            let number = nvshmem.certain_number().map_err(failed)?;
            let file = plugins.of(number).map_err(failed)?;
            let mut notes = vec![format!("{}: {found}", nvshmem.describe())];
            notes.extend(beside_ours(&nvshmem));
            (vec![file], notes)
        };
        let mut plan = Self { program, words, set: Vec::new(), notes };
        plan.set_variables(&files, options).map_err(failed)?;
        plan.notes.extend(forwarding(&plan.words));
        Ok(plan)
    }

    fn set_variables(&mut self, files: &[&Plugin], options: &RunOptions) -> Result<(), ToolError> {
        let paths: Vec<PathBuf> = match &options.record {
            None => files.iter().map(|file| file.path.clone()).collect(),
            Some(_) => files.iter().map(|file| file.recorder()).collect::<Result<_, _>>()?,
        };
        if let Some(file) = &options.record {
            let why = "--record: the recorder goes by our file's name and loads that by its path";
            self.set("NVSHMEM_RECORDER_FILE", file.clone(), why);
            if let Some(theirs) = env::var(RECORDED).ok().filter(|theirs| !theirs.is_empty()) {
                self.notes.push(format!("{RECORDED} is set, so what is recorded is {theirs}"));
            }
        }
        let mut preload: Vec<String> = Vec::new();
        for path in paths {
            let path = path.to_string_lossy().into_owned();
            if path.contains([' ', ':']) {
                let message =
                    format!("{path} has a space or a colon in it, which {PRELOAD} cannot hold");
                return Err(ToolError::new(
                    message,
                    "install into a directory without, or make a link to it",
                ));
            }
            preload.push(path);
        }
        let theirs = env::var(PRELOAD).unwrap_or_default();
        let theirs = theirs.split([' ', ':']).filter(|entry| !entry.is_empty());
        preload.extend(
            theirs
                .filter(|entry| !preload.iter().any(|ours| ours == entry))
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        );
        self.set(
            PRELOAD,
            preload.join(":"),
            "what is loaded under the name that NVSHMEM asks for comes before its own file",
        );
        match env::var(TRANSPORT) {
            Ok(theirs) if theirs != "libfabric" && !theirs.is_empty() => {
                self.set(
                    TRANSPORT,
                    String::from("libfabric"),
                    &format!("else NVSHMEM would use `{theirs}`, as the environment has it"),
                );
            }
            _ => {
                let why = "NVSHMEM uses another one by default";
                self.set(TRANSPORT, String::from("libfabric"), why);
            }
        }
        self.set_fabric(options)
    }

    /// What has NCCL load the file for it, and use it.
    fn set_nccl(&mut self, plugins: &Plugins) -> Result<(), ToolError> {
        let path = plugins.nccl()?.path.to_string_lossy().into_owned();
        self.set("NCCL_RMA_PLUGIN", path.clone(), "NCCL 2.30.7 and later load it by this");
        self.set("NCCL_GIN_PLUGIN", path, "NCCL 2.30.3 and 2.30.4 load it by this");
        let why = "NCCL's proxy drives it; where it has a kind of its own, that comes first";
        self.set("NCCL_GIN_TYPE", String::from("2"), why);
        Ok(())
    }

    /// Which fabric is to be used.
    fn set_fabric(&mut self, options: &RunOptions) -> Result<(), ToolError> {
        if let Some(provider) = &options.provider {
            self.set("NVSHMEM_LIBFABRIC_PROVIDER", provider.clone(), "--provider");
        }
        if let Some(libfabric) = &options.libfabric {
            let library = absolute(libfabric)?;
            self.set("NVSHMEM_LIBFABRIC_LIBRARY", library, "--libfabric");
        }
        Ok(())
    }

    fn set(&mut self, name: &'static str, value: String, why: &str) {
        self.set.push(Variable { name, value, why: why.to_owned() });
    }

    fn print(&self) {
        for note in &self.notes {
            println!("# {note}");
        }
        for Variable { name, value, why } in &self.set {
            println!("# {why}");
            println!("export {name}={}", quoted(value));
        }
        let words: Vec<String> =
            self.words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        println!("exec {}", words.join(" "));
    }
}

fn absolute(file: &Path) -> Result<String, ToolError> {
    let hint = "give the file, such as /opt/libfabric/lib/libfabric.so.1";
    let path = std::fs::canonicalize(file)
        .map_err(|error| ToolError::file(file, "is no libfabric", error, hint))?;
    Ok(path.to_string_lossy().into_owned())
}

/// The NVSHMEM that a command line uses, and how that is known.
fn nvshmem(options: &RunOptions, words: &[OsString]) -> Result<(Nvshmem, String), ToolError> {
    let linker = Linker::of_environment();
    if let Some(path) = &options.r#where.nvshmem {
        return Ok((Nvshmem::at(path, &linker)?, String::from("named by --nvshmem")));
    }
    if let Some(found) = Program::nvshmem_in(words, &linker) {
        return Ok(found);
    }
    let mut all = crate::libraries::find::all(None, &linker)?;
    if all.is_empty() {
        let message = format!(
            "no NVSHMEM is found for {}",
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        );
        let hint = "name it with --nvshmem PATH, or use --any-nvshmem, which has a file ready for each; where a \
                    launcher starts the program in a container or on another host, put `nvshmem-libfabric run --` \
                    in front of the program there";
        return Err(ToolError::new(message, hint));
    }
    let first = all.swap_remove(0);
    let found = format!(
        "the first of this machine ({}), as the command line does not show which it uses",
        first.found_by.join("; ")
    );
    Ok((first, found))
}

/// That it would load ours anyway.
fn beside_ours(nvshmem: &Nvshmem) -> Option<String> {
    let file = nvshmem.would_load.as_ref()?;
    let version = file.ours.as_ref()?;
    Some(format!(
        "it would load ours anyway, version {version}: {} by {}",
        file.path.display(),
        file.rule
    ))
}

/// What launchers do not do by themselves.
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

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("a/b-c.so.7"), "a/b-c.so.7");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("$HOME"), "'$HOME'");
    }
}
