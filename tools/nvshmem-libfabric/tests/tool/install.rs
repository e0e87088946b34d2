//! `install` and `uninstall`: all files get into a prefix and out of it, and what does not fit
//! changes nothing.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::bed::{Case, RELEASES, Scratch, TOOL, file_name, good, plugins, says, tool, tree};
use crate::packages;

fn install(prefix: &Path, from: &Path) -> Command {
    let mut command = tool("install --prefix");
    command.arg(prefix).arg("--plugin-dir").arg(from);
    command
}

fn uninstall(program: impl AsRef<Path>, prefix: &Path) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(["uninstall", "--prefix"]).arg(prefix);
    command
}

pub(crate) fn prefix() -> Case {
    let scratch = Scratch::new();
    scratch.write("usr/lib/libother.so", "somebody's");
    let usr = scratch.join("usr");
    let before = tree(&scratch);
    good(&mut install(&usr, plugins()))?;
    good(&mut install(&usr, plugins()))?;
    for (_, number) in RELEASES {
        let name = file_name(number);
        assert!(
            fs::read(usr.join("lib").join(&name))? == fs::read(plugins().join(&name))?,
            "{name}"
        );
    }
    // It finds the files that it came with.
    let installed = usr.join("bin/nvshmem-libfabric");
    packages::has_all_files(&mut Command::new(&installed), &usr.join("lib"))?;
    good(&mut uninstall(&installed, &usr))?;
    assert!(tree(&scratch) == before, "{:?}", tree(&scratch).keys());
    let fresh = scratch.join("fresh/prefix");
    good(&mut install(&fresh, plugins()))?;
    good(&mut uninstall(TOOL, &fresh))?;
    assert!(!fresh.exists(), "the prefix was made for it");
    Ok(())
}

/// `make install` and the tool leave the same, and either takes away what the other has left.
pub(crate) fn by_make() -> Case {
    let scratch = Scratch::new();
    let (one, other) = (scratch.join("one"), scratch.join("other"));
    scratch.write("one/include/other.h", "somebody's");
    scratch.write("other/include/other.h", "somebody's");
    let before = tree(&scratch);
    // Both stage in one place: not at the same time.
    packages::prefix();
    good(&mut packages::make("install", &one))?;
    let mut command = Command::new(one.join("bin/nvshmem-libfabric"));
    good(command.args(["install", "--prefix"]).arg(&other))?;
    let below = |prefix: &Path| {
        let entries = tree(prefix).into_iter();
        let name = |path: &Path| path.strip_prefix(prefix).map(Path::to_owned).unwrap_or_default();
        entries.map(|(path, content)| (name(&path), content)).collect::<Vec<_>>()
    };
    assert!(below(&one) == below(&other), "make and the tool leave the same");
    for name in "bin/nvshmem-libfabric include/nvshmem_libfabric.h \
                 lib/libnvshmem_libfabric_channel.so lib/.debug/libnvshmem_libfabric_channel.debug \
                 share/nvshmem-libfabric/installed.json"
        .split_whitespace()
    {
        assert!(one.join(name).is_file(), "{name}");
    }
    good(&mut uninstall(TOOL, &one))?;
    good(&mut packages::make("uninstall", &other))?;
    assert!(tree(&scratch) == before, "left: {:?}", tree(&scratch).keys());
    says(&mut packages::make("uninstall", &other), 2, &["name another PREFIX"]).map(drop)
}

/// An update removes what this version has no more, and leaves what others have changed.
pub(crate) fn update() -> Case {
    let scratch = Scratch::new();
    let prefix = scratch.join("prefix");
    good(&mut install(&prefix, &packages::prefix().join("lib")))?;
    let header = prefix.join("include/nvshmem_libfabric.h");
    let theirs = prefix.join("include/nvshmem_libfabric_ring.h");
    assert!(header.exists(), "the channel is installed");
    fs::write(&theirs, "another's")?;
    says(&mut install(&prefix, plugins()), 0, &["so it stays"])?;
    let link = prefix.join("lib/libnvshmem_libfabric_channel.so");
    assert!(!header.exists() && link.symlink_metadata().is_err() && theirs.exists());
    good(&mut uninstall(TOOL, &prefix))?;
    fs::remove_file(&theirs)?;
    let left: Vec<_> = tree(&prefix).into_values().filter(|(is, _)| !is.is_empty()).collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Manual and completions know every command.
pub(crate) fn pages() -> Case {
    let share = packages::prefix().join("share");
    let help = good(&mut tool("--help"))?;
    let (_, commands) = help.split_once("Commands:\n").unwrap_or_default();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let commands: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 8, "{commands:?}");
    let read = |name: &str| fs::read_to_string(share.join(name));
    let zsh = read("zsh/site-functions/_nvshmem-libfabric")?;
    let fish = read("fish/vendor_completions.d/nvshmem-libfabric.fish")?;
    for command in commands.iter().filter(|command| **command != "help") {
        let page = share.join(format!("man/man1/nvshmem-libfabric-{command}.1"));
        let known = zsh.contains(&format!("({command})")) && fish.contains(command);
        assert!(page.is_file() && known, "{command}: page, zsh or fish");
    }
    // What is for the tool itself is not shown.
    let pages = fs::read_dir(share.join("man/man1"))?.count();
    assert!(pages == commands.len() && !(zsh + &fish).contains("probe"));
    let bash = share.join("bash-completion/completions/nvshmem-libfabric");
    for (words, completed) in
        [("nvshmem-libfabric se", "selftest"), ("nvshmem-libfabric run --dry", "--dry-run")]
    {
        let script = format!(
            "complete() {{ complete=$2; }}; source {} && COMP_WORDS=({words}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) && \
             \"$complete\" nvshmem-libfabric \"${{COMP_WORDS[-1]}}\" && echo \"${{COMPREPLY[@]}}\"",
            bash.display()
        );
        assert_eq!(good(Command::new("bash").args(["-c", &script]))?.trim(), completed);
    }
    Ok(())
}

pub(crate) fn uninstall_keeps_others() -> Case {
    let scratch = Scratch::new();
    let usr = scratch.join("usr");
    good(&mut install(&usr, plugins()))?;
    let changed = usr.join("lib").join(file_name(6));
    fs::write(&changed, "another's")?;
    // A record that names other files is not followed.
    let record = usr.join("share/nvshmem-libfabric/installed.json");
    let debug = "nvshmem_transport_libfabric.debug";
    scratch.write(&format!("victim/{debug}"), fs::read(usr.join("lib/.debug").join(debug))?);
    fs::create_dir(scratch.join("empty"))?;
    let text = fs::read_to_string(&record)?.replace("lib/.debug", "../victim");
    let text = text.replace("\"directories\": [", "\"directories\": [\"../empty\", ");
    fs::write(&record, text)?;
    says(&mut uninstall(TOOL, &usr), 0, &["so it stays"])?;
    assert_eq!(fs::read(&changed)?, b"another's");
    let others = scratch.join("victim").join(debug).exists() && scratch.join("empty").exists();
    assert!(others, "others' files");
    Ok(())
}

pub(crate) fn planted_links() -> Case {
    let scratch = Scratch::new();
    scratch.write("victim", "precious");
    let (victim, prefix) = (scratch.join("victim"), scratch.join("prefix"));
    let mode = |path: &Path| fs::metadata(path).map(|at| at.mode() & 0o777);
    let before = mode(&victim)?;
    let record = "share/nvshmem-libfabric";
    fs::create_dir_all(prefix.join(record))?;
    fs::create_dir_all(prefix.join("lib"))?;
    let plugin = file_name(7);
    for name in [format!("lib/.{plugin}.new"), format!("{record}/.installed.json.new")] {
        symlink(&victim, prefix.join(name))?;
    }
    good(&mut install(&prefix, plugins()))?;
    assert!(fs::read_to_string(&victim)? == "precious" && mode(&victim)? == before);
    for name in [format!("lib/{plugin}"), format!("{record}/installed.json")] {
        assert!(prefix.join(&name).symlink_metadata()?.is_file(), "{name} is a file");
    }
    assert_eq!(mode(&prefix.join("bin/nvshmem-libfabric"))?, mode(Path::new(TOOL))?);
    Ok(())
}
