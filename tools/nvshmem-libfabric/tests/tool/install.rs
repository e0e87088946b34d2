//! `install` and `uninstall`: all files get into a prefix and out of it, and what does not fit
//! changes nothing.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};

use crate::bed::{
    RELEASES, Scratch, TOOL, expect, file_name, good, json, plugins, tool, tree, trial,
};
use crate::packages;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("install::into_a_prefix_and_back", prefix),
        trial("install::make_and_the_tool_do_the_same", by_make),
        trial("install::update_removes_what_is_gone", update),
        trial("install::manual_and_completions_know_every_command", pages),
        trial("install::uninstall_keeps_other_files", prefix_keeps),
        trial("install::planted_links_are_not_followed", planted),
    ]
}

fn prefix() -> Result<(), Failed> {
    let scratch = Scratch::new();
    scratch.write("usr/lib/libother.so", "somebody's");
    let usr = scratch.at("usr");
    let before = tree(scratch.path());
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
    expect(tree(scratch.path()) == before, || format!("{:?}", tree(scratch.path()).keys()))?;

    let fresh = scratch.at("fresh/prefix");
    good(tool(&["install", "--prefix"]).arg(&fresh).arg("--plugin-dir").arg(plugins()))?;
    good(tool(&["uninstall", "--prefix"]).arg(&fresh))?;
    expect(!fresh.exists(), || String::from("the prefix was made for it"))
}

fn by_make() -> Result<(), Failed> {
    let scratch = Scratch::new();
    scratch.write("one/include/other.h", "somebody's");
    scratch.write("other/include/other.h", "somebody's");
    let (one, other) = (scratch.at("one"), scratch.at("other"));
    let before = tree(scratch.path());
    // Both stage in one place: not at the same time.
    packages::prefix();
    good(&mut packages::make("install", &one))?;
    let installed = one.join("bin/nvshmem-libfabric");
    good(Command::new(&installed).args(["install", "--prefix"]).arg(&other))?;
    let names = |prefix: &Path| -> Vec<(String, Vec<u8>, u32)> {
        let entries = tree(prefix).into_iter();
        let name = |path: &Path| path.strip_prefix(prefix).map(|path| path.display().to_string());
        entries.map(|(path, (is, mode))| (name(&path).unwrap_or_default(), is, mode)).collect()
    };
    let all = names(&one);
    expect(all == names(&other), || String::from("make and the tool leave the same"))?;
    for name in [
        "bin/nvshmem-libfabric",
        "include/nvshmem_libfabric.h",
        "lib/libnvshmem_libfabric_channel.so",
        "lib/.debug/libnvshmem_libfabric_channel.debug",
        "share/nvshmem-libfabric/installed.json",
    ] {
        expect(all.iter().any(|(path, ..)| path == name), || name.to_owned())?;
    }
    good(tool(&["uninstall", "--prefix"]).arg(&one))?;
    good(&mut packages::make("uninstall", &other))?;
    expect(tree(scratch.path()) == before, || format!("left: {:?}", tree(scratch.path()).keys()))?;
    let again = packages::make("uninstall", &other).output()?;
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    expect(!again.status.success() && said.contains("name another PREFIX"), || said.clone())
}

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
    let left: Vec<_> = tree(&prefix).into_values().filter(|(is, _)| !is.is_empty()).collect();
    expect(left.is_empty(), || format!("{left:?}"))
}

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
    expect(commands.len() > 7, || format!("{commands:?}"))?;
    let zsh = fs::read_to_string(share.join("zsh/site-functions/_nvshmem-libfabric"))?;
    let fish = share.join("fish/vendor_completions.d/nvshmem-libfabric.fish");
    let fish = fs::read_to_string(fish)?;
    for command in &commands {
        let page = share.join(format!("man/man1/nvshmem-libfabric-{command}.1"));
        let known = page.is_file() && zsh.contains(&format!("({command})"));
        expect(known && fish.contains(command), || format!("{command}: page, zsh or fish"))?;
    }
    let pages = fs::read_dir(share.join("man/man1"))?.count();
    let hidden = pages == 1 + commands.len() && !(zsh + &fish).contains("sweep");
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

fn planted() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let victim = scratch.write("victim", "precious");
    let mode = fs::metadata(&victim)?.mode();
    let (prefix, record) = (scratch.at("prefix"), scratch.at("prefix/share/nvshmem-libfabric"));
    fs::create_dir_all(&record)?;
    fs::create_dir_all(prefix.join("lib"))?;
    symlink(&victim, record.join(".installed.json"))?;
    let plant = format!(
        "for name in lib/.{} share/nvshmem-libfabric/.installed.json; do ln -s {} $1/$name.$$; done\n\
         exec {TOOL} install --prefix $1 --plugin-dir {}",
        file_name(7),
        victim.display(),
        plugins().display()
    );
    good(Command::new("sh").args(["-euc", &plant, "sh"]).arg(&prefix))?;
    let is = fs::read_to_string(&victim)?;
    expect(is == "precious", || format!("{} bytes are in the file of another", is.len()))?;
    expect(fs::metadata(&victim)?.mode() == mode, || String::from("its mode is another"))?;
    for name in
        [format!("lib/{}", file_name(7)), String::from("share/nvshmem-libfabric/installed.json")]
    {
        let is_file = prefix.join(&name).symlink_metadata()?.is_file();
        expect(is_file, || format!("{name} is a file"))?;
    }
    let mode = fs::metadata(prefix.join("bin/nvshmem-libfabric"))?.mode() & 0o777;
    expect(mode == fs::metadata(TOOL)?.mode() & 0o777, || format!("mode {mode:o}"))
}
