//! `install`, an update and `uninstall` killed before each of their changes: the original comes
//! back whatever is done next.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Failed, Trial};

use self::Step::{Install, InstallOlder, Uninstall};
use crate::bed::{MadeUp, Scratch, expect, file_name, good, plugins, tool, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("install::killed_at_every_step_beside_an_nvshmem", beside),
        trial("install::killed_at_every_step_without_hard_links", without_links),
        trial("install::killed_at_renames_in_a_prefix", in_a_prefix),
        trial("install::a_record_of_one_digest_loses_no_original", one_digest),
    ]
}

/// What is done, and what is done after it was killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Install,
    InstallOlder,
    Uninstall,
}

/// What a case stands on.
struct Bed {
    scratch: Scratch,
    killer: PathBuf,
    /// The plugin files alone: each step begins as often as there are files.
    newer: PathBuf,
    /// Plugin files that are others than those that were built: an older version.
    older: PathBuf,
}

impl Bed {
    fn new() -> Result<Self, Failed> {
        let scratch = Scratch::new();
        let killer = scratch.at("killer.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/killer.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&killer).arg(source).arg("-ldl");
        expect(cc.status()?.success(), || format!("{cc:?}"))?;
        let (newer, older) = (scratch.at("newer"), scratch.at("older"));
        fs::create_dir(&newer)?;
        fs::create_dir(&older)?;
        for number in [3, 4, 5, 6, 7] {
            let mut bytes = fs::read(plugins().join(file_name(number)))?;
            fs::write(newer.join(file_name(number)), &bytes)?;
            bytes.push(0);
            fs::write(older.join(file_name(number)), bytes)?;
        }
        Ok(Self { scratch, killer, newer, older })
    }

    fn command(&self, step: Step, place: &str, path: &Path) -> Command {
        let mut command = tool(&[if step == Uninstall { "uninstall" } else { "install" }, place]);
        command.arg(path);
        match step {
            Install => drop(command.arg("--plugin-dir").arg(&self.newer)),
            InstallOlder => drop(command.arg("--plugin-dir").arg(&self.older)),
            Uninstall => {}
        }
        command
    }

    /// Runs a command that is killed before its n-th change. False when it has fewer.
    fn killed(&self, mut command: Command, at: u32, how: Option<&str>) -> Result<bool, Failed> {
        command.env("LD_PRELOAD", &self.killer).env("KILLER_AT", at.to_string());
        command.envs(how.map(|how| (how, "1")));
        let output = command.output()?;
        match output.status.signal() {
            Some(9) => Ok(true),
            None if output.status.success() => Ok(false),
            _ => Err(format!("{command:?}: {output:?}").into()),
        }
    }
}

/// Where there is something to undo, it is undone.
fn undo(mut command: Command) -> Result<(), Failed> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    expect(output.status.success() || said.contains("nothing was installed"), || {
        format!("{command:?}: {said}")
    })
}

/// States that a step begins at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    /// NVSHMEM as its package has it.
    Fresh,
    /// An older version of ours is installed.
    Installed,
    /// The same, and then a package manager has put its own file there again.
    Replaced,
}

fn beside() -> Result<(), Failed> {
    let bed = Bed::new()?;
    at_every_step(&bed, Before::Fresh, Install, None, &[Install, Uninstall])?;
    at_every_step(&bed, Before::Installed, Install, None, &[Install, InstallOlder, Uninstall])?;
    at_every_step(&bed, Before::Replaced, Install, None, &[Install, Uninstall])?;
    at_every_step(&bed, Before::Installed, Uninstall, None, &[Install, Uninstall])
}

/// Where the original is copied to be kept.
fn without_links() -> Result<(), Failed> {
    let bed = Bed::new()?;
    at_every_step(&bed, Before::Fresh, Install, Some("KILLER_NO_LINKS"), &[Install])?;
    at_every_step(&bed, Before::Replaced, Install, Some("KILLER_NO_LINKS"), &[Uninstall])
}

fn at_every_step(
    bed: &Bed,
    before: Before,
    step: Step,
    how: Option<&str>,
    thens: &[Step],
) -> Result<(), Failed> {
    let mut at = 1;
    loop {
        let mut killed = false;
        for &then in thens {
            killed = one(bed, before, step, at, then, how).map_err(|error| {
                format!("{before:?}, {step:?} killed at {at}, then {then:?}: {error:?}")
            })?;
        }
        if !killed {
            break;
        }
        at += 1;
    }
    expect(at > 3, || format!("{before:?}, {step:?}: killed at {at} places only"))
}

/// One of them. False when it ended before it could be killed.
fn one(
    bed: &Bed,
    before: Before,
    step: Step,
    at: u32,
    then: Step,
    how: Option<&str>,
) -> Result<bool, Failed> {
    let made = MadeUp::new(&bed.scratch, "nvshmem", "3.8.0", 7);
    let mut original = fs::read(made.transport())?;
    let command = |step| bed.command(step, "--nvshmem", &made.prefix);
    if before != Before::Fresh {
        good(&mut command(InstallOlder))?;
    }
    if before == Before::Replaced {
        original.push(1);
        fs::remove_file(made.transport())?;
        fs::write(made.transport(), &original)?;
    }
    let killed = bed.killed(command(step), at, how)?;
    if then != Uninstall {
        good(&mut command(then))?;
        let ours = if then == Install { plugins() } else { &bed.older };
        let same = fs::read(made.transport())? == fs::read(ours.join(file_name(7)))?;
        expect(same, || String::from("what was installed next is there"))?;
    }
    undo(command(Uninstall))?;
    let is = fs::read(made.transport()).unwrap_or_default();
    expect(is == original, || format!("the original is back: {} bytes are there", is.len()))?;
    let left = made.prefix.join("lib/.nvshmem-libfabric");
    expect(then == Uninstall || !left.exists(), || String::from("nothing is left"))?;
    fs::remove_dir_all(&made.prefix)?;
    Ok(killed)
}

/// An update by an older version of this tool that was killed has left a record of what it did not
/// put there any more.
fn one_digest() -> Result<(), Failed> {
    for then in [Install, Uninstall] {
        let bed = Bed::new()?;
        let made = MadeUp::new(&bed.scratch, "nvshmem", "3.8.0", 7);
        let original = fs::read(made.transport())?;
        let command = |step| bed.command(step, "--nvshmem", &made.prefix);
        good(&mut command(InstallOlder))?;
        let record = made.prefix.join("lib/.nvshmem-libfabric/installed.json");
        let mut read: serde_json::Value = serde_json::from_slice(&fs::read(&record)?)?;
        read["files"][0] = serde_json::json!({ "name": file_name(7), "sha256": "0".repeat(64) });
        fs::write(&record, read.to_string())?;
        good(&mut command(then))?;
        undo(command(Uninstall))?;
        let back = fs::read(made.transport())? == original;
        expect(back, || format!("{then:?}: the original is back"))?;
    }
    Ok(())
}

fn in_a_prefix() -> Result<(), Failed> {
    let bed = Bed::new()?;
    for updates in [false, true] {
        let mut at = 1;
        loop {
            let prefix = bed.scratch.at("prefix");
            let command = |step| bed.command(step, "--prefix", &prefix);
            fs::create_dir(&prefix)?;
            if updates {
                good(&mut command(InstallOlder))?;
            }
            let killed = bed.killed(command(Install), at, Some("KILLER_RENAMES"))?;
            // A first one that was killed early has left no record, so it is completed first.
            if !updates {
                good(&mut command(Install))?;
            }
            good(&mut command(Uninstall))?;
            let left = files(&prefix)?;
            expect(left.is_empty(), || format!("updates: {updates}, killed at {at}: {left:?}"))?;
            let _ = fs::remove_dir_all(&prefix);
            if !killed {
                break;
            }
            // Whole files are hashed for each: the record's rename, some of the plugin files',
            // which come next and alone differ from the older ones, and some of others.
            at *= 2;
        }
        expect(at > 6, || format!("killed at {at} places only"))?;
    }
    Ok(())
}

/// All files below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>, Failed> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else { return Ok(found) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}
