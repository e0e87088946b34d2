//! `install` and `uninstall`: the right file gets there, the original comes back, and what does not
//! fit changes nothing.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};

use crate::bed::{
    MadeUp, RELEASES, Scratch, bad, copy_of, expect, file_name, good, json, of_wheels, plugins,
    tool, tree, trial,
};
use crate::packages;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = of_wheels("install::wheel", wheel);
    trials.extend([
        trial("install::beside_every_release_and_back", every_release),
        trial("install::again_and_over_what_others_have_replaced", again),
        trial("install::links_and_nothing_at_all_come_back", links),
        trial("install::into_a_prefix_and_back", prefix),
        trial("install::make_and_the_tool_do_the_same", by_make),
        trial("install::an_update_leaves_nothing_of_what_is_gone", update),
        trial("install::manual_and_completions_know_every_command", pages),
        trial("install::a_prefix_keeps_what_is_not_ours", prefix_keeps),
        trial("install::bad_input_changes_nothing", bad_input),
    ]);
    trials
}

fn install(made: &MadeUp) -> Command {
    command("install", made)
}

fn uninstall(made: &MadeUp) -> Command {
    command("uninstall", made)
}

fn command(what: &str, made: &MadeUp) -> Command {
    let mut command = tool(&[what, "--nvshmem"]);
    command.arg(&made.prefix);
    if what == "install" {
        command.arg("--plugin-dir").arg(plugins());
    }
    command
}

fn wheel(package: &MadeUp) -> Result<(), Failed> {
    let scratch = Scratch::new();
    there_and_back(&copy_of(package, &scratch))
}

fn there_and_back(made: &MadeUp) -> Result<(), Failed> {
    let before = tree(&made.prefix);
    let said = good(&mut install(made))?;
    expect(said.contains("Programs take it"), || said.clone())?;
    let ours = fs::read(plugins().join(file_name(made.number)))?;
    expect(fs::read(made.transport())? == ours, || String::from("the right file is there"))?;
    let path = made.prefix.display().to_string();
    let info = json(&mut tool(&["info", "--json", "--only", "nvshmem", "--nvshmem", &path]))?;
    let would = &info["nvshmem"][0]["would_load"];
    expect(would["ours"] == env!("CARGO_PKG_VERSION"), || format!("{would}"))?;
    let changed = tree(&made.prefix);
    let others = before.keys().filter(|path| **path != made.transport());
    for path in others {
        expect(before[path] == changed[path], || format!("{} is untouched", path.display()))?;
    }
    good(&mut uninstall(made))?;
    expect(tree(&made.prefix) == before, || String::from("all is as it was, to the byte"))
}

fn every_release() -> Result<(), Failed> {
    for (release, number) in RELEASES {
        let scratch = Scratch::new();
        there_and_back(&MadeUp::new(&scratch, "nvshmem", release, number))
            .map_err(|error| format!("{release}: {error:?}"))?;
    }
    Ok(())
}

fn again() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.8.0", 7);
    let before = tree(&made.prefix);
    good(&mut install(&made))?;
    let said = good(&mut install(&made))?;
    expect(said.contains("is there already"), || said.clone())?;
    // An update of ours keeps the original that is kept. Any other of our files stands for an older
    // version here.
    let older = scratch.at("older");
    fs::create_dir(&older)?;
    let file = older.join(file_name(7));
    fs::copy(plugins().join(file_name(7)), &file)?;
    let mut bytes = fs::read(&file)?;
    bytes.push(0);
    fs::write(&file, bytes)?;
    good(tool(&["install", "--nvshmem"]).arg(&made.prefix).arg("--plugin-dir").arg(&older))?;
    expect(fs::read(made.transport())? == fs::read(&file)?, || String::from("it is replaced"))?;
    good(&mut uninstall(&made))?;
    expect(tree(&made.prefix) == before, || String::from("the first original is back"))?;

    // A package manager that comes in between has the last word.
    good(&mut install(&made))?;
    fs::write(made.transport(), "of a newer package")?;
    let said = good(&mut uninstall(&made))?;
    expect(said.contains("so it stays"), || said.clone())?;
    expect(fs::read(made.transport())? == b"of a newer package", || String::from("untouched"))?;
    expect(!made.prefix.join("lib/.nvshmem-libfabric").exists(), || String::from("no record"))?;
    // And its file is what is kept when ours is installed after it.
    good(&mut install(&made))?;
    fs::write(made.transport(), "of a still newer package")?;
    good(&mut install(&made))?;
    good(&mut uninstall(&made))?;
    let back = fs::read(made.transport())?;
    expect(back == b"of a still newer package", || format!("{:?}", String::from_utf8_lossy(&back)))
}

fn links() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.5.21", 4);
    let versioned = made.prefix.join("lib/nvshmem_transport_libfabric.so.4.0.0");
    fs::rename(made.transport(), &versioned)?;
    symlink("nvshmem_transport_libfabric.so.4.0.0", made.transport())?;
    let before = tree(&made.prefix);
    good(&mut install(&made))?;
    expect(tree(&made.prefix)[&versioned] == before[&versioned], || {
        String::from("its file stays")
    })?;
    good(&mut uninstall(&made))?;
    let link = fs::read_link(made.transport())?;
    expect(link == Path::new("nvshmem_transport_libfabric.so.4.0.0"), || format!("{link:?}"))?;

    fs::remove_file(made.transport())?;
    fs::remove_file(&versioned)?;
    let before = tree(&made.prefix);
    good(&mut install(&made))?;
    good(&mut uninstall(&made))?;
    expect(tree(&made.prefix) == before, || String::from("there was none, and is none"))?;

    // One that looks elsewhere is told of.
    made.host_library("3.5.21", &[]);
    let said = good(&mut install(&made))?;
    expect(said.contains("does not look beside itself"), || said.clone())
}

fn prefix() -> Result<(), Failed> {
    let scratch = Scratch::new();
    scratch.write("usr/lib/libother.so", "somebody's");
    let usr = scratch.at("usr");
    let before = tree(&scratch.0);
    let install = || {
        let mut command = tool(&["install", "--prefix"]);
        command.arg(&usr).arg("--plugin-dir").arg(plugins());
        command
    };
    // The second time over the first.
    good(&mut install())?;
    good(&mut install())?;
    for (_, number) in RELEASES {
        let name = file_name(number);
        let same = fs::read(usr.join("lib").join(&name))? == fs::read(plugins().join(&name))?;
        expect(same, || name.clone())?;
    }
    // It finds the files that it came with.
    let installed = usr.join("bin/nvshmem-libfabric");
    let mut command = Command::new(&installed);
    let info = json(command.args(["info", "--json", "--only", "plugins"]))?;
    let lib = fs::canonicalize(usr.join("lib"))?.display().to_string();
    expect(info["plugins"]["directory"] == lib, || format!("{}", info["plugins"]))?;
    let files = info["plugins"]["files"].as_array().map_or(0, Vec::len);
    expect(files == 5, || format!("{}", info["plugins"]))?;
    // And takes itself away.
    good(Command::new(&installed).args(["uninstall", "--prefix"]).arg(&usr))?;
    expect(tree(&scratch.0) == before, || format!("{:?}", tree(&scratch.0).keys()))?;

    let fresh = scratch.at("fresh/prefix");
    good(tool(&["install", "--prefix"]).arg(&fresh).arg("--plugin-dir").arg(plugins()))?;
    good(tool(&["uninstall", "--prefix"]).arg(&fresh))?;
    expect(!fresh.exists(), || String::from("the prefix was made for it"))
}

/// The same files and the same record; and each undoes what the other has done.
fn by_make() -> Result<(), Failed> {
    let scratch = Scratch::new();
    scratch.write("one/include/other.h", "somebody's");
    scratch.write("other/include/other.h", "somebody's");
    let (one, other) = (scratch.at("one"), scratch.at("other"));
    let before = tree(&scratch.0);
    good(&mut packages::make("install", &one))?;
    let installed = one.join("bin/nvshmem-libfabric");
    good(Command::new(&installed).args(["install", "--prefix"]).arg(&other))?;
    let names = |prefix: &Path| -> Vec<(String, Vec<u8>, u32)> {
        let entries = tree(prefix).into_iter();
        let name = |path: &Path| path.strip_prefix(prefix).map(|path| path.display().to_string());
        entries.map(|(path, is)| (name(&path).unwrap_or_default(), is.bytes, is.mode)).collect()
    };
    let all = names(&one);
    expect(all == names(&other), || String::from("make and the tool leave the same"))?;
    for name in [
        "bin/nvshmem-libfabric",
        "include/nvshmem_libfabric.h",
        "lib/libnvshmem_libfabric_channel.so",
        "lib/nvshmem_transport_recorder.so.7",
        "lib/.debug/libnvshmem_libfabric_channel.debug",
        "share/nvshmem-libfabric/installed.json",
    ] {
        expect(all.iter().any(|(path, ..)| path == name), || name.to_owned())?;
    }
    good(tool(&["uninstall", "--prefix"]).arg(&one))?;
    good(&mut packages::make("uninstall", &other))?;
    expect(tree(&scratch.0) == before, || format!("left: {:?}", tree(&scratch.0).keys()))?;
    let again = packages::make("uninstall", &other).output()?;
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    expect(!again.status.success() && said.contains("name another PREFIX"), || said.clone())
}

/// Headers and library of a version that had the device channel go with an update to one that has
/// it not.
fn update() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let prefix = scratch.at("prefix");
    let install = |from: &Path| {
        good(tool(&["install", "--prefix"]).arg(&prefix).arg("--plugin-dir").arg(from))
    };
    install(&packages::prefix().join("lib"))?;
    let header = prefix.join("include/nvshmem_libfabric.h");
    expect(header.exists(), || String::from("the channel is installed"))?;
    let theirs = prefix.join("include/nvshmem_libfabric_ring.h");
    fs::write(&theirs, "another's")?;
    let said = install(plugins())?;
    expect(said.contains("so it stays"), || said.clone())?;
    let link = prefix.join("lib/libnvshmem_libfabric_channel.so");
    let gone = !header.exists() && link.symlink_metadata().is_err();
    expect(gone && theirs.exists(), || String::from("what is ours goes, and no more"))?;
    good(tool(&["uninstall", "--prefix"]).arg(&prefix))?;
    fs::remove_file(&theirs)?;
    let left: Vec<_> = tree(&prefix).into_values().filter(|is| !is.bytes.is_empty()).collect();
    expect(left.is_empty(), || format!("{left:?}"))
}

/// A page of the manual for each command that `--help` lists, and completions that offer it.
fn pages() -> Result<(), Failed> {
    let share = packages::prefix().join("share");
    let help = good(&mut tool(&["--help"]))?;
    let (_, commands) = help.split_once("Commands:\n").unwrap_or_default();
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    expect(commands.len() > 10, || format!("{commands:?}"))?;
    let zsh = fs::read_to_string(share.join("zsh/site-functions/_nvshmem-libfabric"))?;
    let fish = share.join("fish/vendor_completions.d/nvshmem-libfabric.fish");
    let fish = fs::read_to_string(fish)?;
    for command in &commands {
        let page = share.join(format!("man/man1/nvshmem-libfabric-{command}.1"));
        let page = fs::read_to_string(&page).map_err(|error| format!("{command}: {error}"))?;
        expect(page.contains(&format!(".TH nvshmem-libfabric-{command} 1")), || page.clone())?;
        let offered = zsh.contains(&format!("({command})")) && fish.contains(command);
        expect(offered, || format!("zsh and fish know {command}"))?;
    }
    let page = fs::read_to_string(share.join("man/man1/nvshmem-libfabric-run.1"))?;
    expect(page.contains("dry\\-run"), || page.clone())?;
    let hidden = !share.join("man/man1/nvshmem-libfabric-probe.1").exists()
        && ![&zsh, &fish].iter().any(|offered| offered.contains("probe"));
    expect(hidden, || String::from("what is for the tool itself is not shown"))?;
    let offered = |words: &str| {
        let file = share.join("bash-completion/completions/nvshmem-libfabric");
        let script = format!(
            "complete() {{ complete=$2; }}; source {} && COMP_WORDS=({words}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) && \
             \"$complete\" nvshmem-libfabric \"${{COMP_WORDS[-1]}}\" && echo \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        good(Command::new("bash").args(["-c", &script]))
    };
    let said = offered("nvshmem-libfabric se")?;
    expect(said.trim() == "selftest", || said.clone())?;
    let said = offered("nvshmem-libfabric run --dry")?;
    expect(said.trim() == "--dry-run", || said.clone())
}

fn prefix_keeps() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let usr = scratch.at("usr");
    good(tool(&["install", "--prefix"]).arg(&usr).arg("--plugin-dir").arg(plugins()))?;
    let changed = usr.join("lib").join(file_name(6));
    fs::write(&changed, "another's")?;
    // A record that names other files is not followed.
    let record = usr.join("share/nvshmem-libfabric/installed.json");
    let debug = "nvshmem_transport_libfabric.debug";
    fs::create_dir(scratch.at("victim"))?;
    let victim = scratch.at("victim").join(debug);
    fs::copy(usr.join("lib/.debug").join(debug), &victim)?;
    let text = fs::read_to_string(&record)?.replace("lib/.debug", "../victim");
    let text = text.replace("\"directories\": [", "\"directories\": [\"../empty\", ");
    fs::write(&record, text)?;
    fs::create_dir(scratch.at("empty"))?;
    let said = good(tool(&["uninstall", "--prefix"]).arg(&usr))?;
    expect(said.contains("so it stays"), || said.clone())?;
    expect(fs::read(&changed)? == b"another's", || String::from("it stays"))?;
    expect(victim.exists() && scratch.at("empty").exists(), || String::from("others' files"))
}

fn bad_input() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.8.0", 7);
    let mixed = MadeUp::new(&scratch, "mixed", "3.8.0", 7);
    mixed.host_library("3.4.5", &[]);
    MadeUp::new(&scratch, "newer", "3.9.1", 8);
    let unknown = MadeUp::new(&scratch, "unknown", "3.9.1", 8);
    fs::remove_dir_all(unknown.prefix.join("include"))?;
    fs::remove_file(unknown.prefix.join("lib/nvshmem_transport_ibrc.so.8"))?;
    // Files that are not what their names say.
    let wrong = scratch.at("wrong");
    fs::create_dir(&wrong)?;
    fs::copy(plugins().join(file_name(3)), wrong.join(file_name(7)))?;
    fs::copy(made.transport(), wrong.join(file_name(3)))?;
    let few = scratch.at("few");
    fs::create_dir(&few)?;
    fs::copy(plugins().join(file_name(3)), few.join(file_name(3)))?;
    fs::create_dir(scratch.at("empty"))?;
    scratch.write("file", "");
    let read_only = scratch.at("read-only");
    fs::create_dir(&read_only)?;

    let before = tree(&scratch.0);
    let ours = plugins().display().to_string();
    let at = |name: &str| scratch.at(name).display().to_string();
    for (arguments, says) in [
        (vec!["install"], "--help"),
        (vec!["uninstall"], "--help"),
        (vec!["install", "--prefix", &at("x"), "--nvshmem", &at("nvshmem")], "--help"),
        (
            vec!["install", "--nvshmem", &at("empty"), "--plugin-dir", &ours],
            "has no libnvshmem_host",
        ),
        (vec!["install", "--nvshmem", &at("file"), "--plugin-dir", &ours], "is no NVSHMEM"),
        (vec!["install", "--nvshmem", &at("mixed"), "--plugin-dir", &ours], "is not certain"),
        (
            vec!["install", "--nvshmem", &at("newer"), "--plugin-dir", &ours],
            "install a newer release",
        ),
        (
            vec!["install", "--nvshmem", &at("unknown"), "--plugin-dir", &ours],
            "none that this version knows",
        ),
        (
            vec!["install", "--nvshmem", &at("nvshmem"), "--plugin-dir", &at("empty")],
            "has no plugin file",
        ),
        (
            vec!["install", "--nvshmem", &at("nvshmem"), "--plugin-dir", &at("wrong")],
            "its name inside is",
        ),
        (
            vec!["install", "--nvshmem", &at("nvshmem"), "--plugin-dir", &at("few")],
            "has no nvshmem_transport",
        ),
        (
            vec!["install", "--prefix", &at("x"), "--plugin-dir", &at("few")],
            "has no nvshmem_transport",
        ),
        (
            vec!["install", "--prefix", &at("nvshmem"), "--plugin-dir", &ours],
            "is not of this project",
        ),
        (vec!["install", "--prefix", &at("file/x"), "--plugin-dir", &ours], "Not a directory"),
        (vec!["uninstall", "--nvshmem", &at("nvshmem")], "nothing was installed"),
        (vec!["uninstall", "--prefix", &at("nvshmem")], "nothing was installed"),
    ] {
        let said = bad(&mut tool(&arguments), 2)?;
        expect(said.contains(says), || format!("{arguments:?}: {said}"))?;
        expect(tree(&scratch.0) == before, || format!("{arguments:?} has changed something"))?;
    }
    unwritable(&made)
}

/// A directory that may not be written is left alone; for root, every directory may be.
fn unwritable(made: &MadeUp) -> Result<(), Failed> {
    let lib = made.prefix.join("lib");
    fs::set_permissions(&lib, fs::Permissions::from_mode(0o555))?;
    let probe = fs::write(lib.join("probe"), "");
    let refused = if probe.is_err() { bad(&mut install(made), 2).map(|_| ()) } else { Ok(()) };
    fs::set_permissions(&lib, fs::Permissions::from_mode(0o755))?;
    refused
}
