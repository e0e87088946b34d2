//! The files of an installation: what was built, and the texts that are made of this program's
//! version and options.

use std::env;
use std::fs;

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::staged::Content;
use crate::error::ToolError;
use crate::info::VERSION;
use crate::libraries::plugins::{NCCL_FILE, Plugins, file_name, numbers};
use crate::options::Options;

const PROGRAM: &str = "nvshmem-libfabric";
const CHANNEL: &str = "libnvshmem_libfabric_channel.so.0";
const CHANNEL_LINK: &str = "libnvshmem_libfabric_channel.so";

const PACKAGES: [(&str, &str); 3] = [
    (
        "lib/pkgconfig/nvshmem_libfabric_channel.pc",
        include_str!("../../../../packaging/channel/nvshmem_libfabric_channel.pc"),
    ),
    (
        "lib/cmake/nvshmem_libfabric/nvshmem_libfabric-config.cmake",
        include_str!("../../../../packaging/channel/nvshmem_libfabric-config.cmake"),
    ),
    (
        "lib/cmake/nvshmem_libfabric/nvshmem_libfabric-config-version.cmake",
        include_str!("../../../../packaging/channel/nvshmem_libfabric-config-version.cmake"),
    ),
];

const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/nvshmem-libfabric"),
    (Shell::Zsh, "share/zsh/site-functions/_nvshmem-libfabric"),
    (Shell::Fish, "share/fish/vendor_completions.d/nvshmem-libfabric.fish"),
];

/// A file of an installation, by its name below the prefix.
pub(super) type Named = (String, Content);

pub(super) fn all(plugins: &Plugins) -> Result<Vec<Named>, ToolError> {
    let file = |name: String, path| (name, Content::File(path));
    let mut files = Vec::new();
    for number in numbers() {
        files.push(file(format!("lib/{}", file_name(number)), plugins.of(number)?.path.clone()));
    }
    let nccl = plugins.nccl.iter();
    files.extend(nccl.map(|nccl| file(format!("lib/{NCCL_FILE}"), nccl.path.clone())));
    files.extend(channel(plugins));
    // Of each library by its name, which is what debuggers look for.
    let libraries = [
        "nvshmem_transport_libfabric",
        "libnccl-rma-nvshmem-libfabric",
        "libnvshmem_libfabric_channel",
    ];
    for name in libraries.map(|library| format!(".debug/{library}.debug")) {
        let debug = plugins.directory.join(&name);
        files.extend(debug.is_file().then(|| file(format!("lib/{name}"), debug)));
    }
    let program = env::current_exe().map_err(|error| {
        ToolError::new(format!("this program's own file: {error}"), "is it there still?")
    })?;
    files.push(file(format!("bin/{PROGRAM}"), program));
    files.extend(of_options()?);
    // So that the same files give the same record.
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files)
}

fn channel(plugins: &Plugins) -> Vec<Named> {
    let library = plugins.directory.join(CHANNEL);
    let includes = ["../include", "../../include"].map(|at| plugins.directory.join(at));
    let include = includes.into_iter().find(|at| at.join("nvshmem_libfabric.h").is_file());
    let Some(include) = include.filter(|_| library.is_file()) else { return Vec::new() };
    let mut files = vec![
        (format!("lib/{CHANNEL}"), Content::File(library)),
        (format!("lib/{CHANNEL_LINK}"), Content::Link(String::from(CHANNEL))),
    ];
    for entry in fs::read_dir(&include).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("nvshmem_libfabric") {
            files.push((format!("include/{name}"), Content::File(entry.path())));
        }
    }
    let text = |text: &str| Content::Text(text.replace("@VERSION@", VERSION).into_bytes());
    files.extend(PACKAGES.map(|(name, of)| (name.to_owned(), text(of))));
    files
}

fn of_options() -> Result<Vec<Named>, ToolError> {
    let shown = |command: &&Command| !command.is_hide_set();
    let options = Options::command();
    // Completions would offer what is hidden.
    let mut command = Command::new(PROGRAM)
        .version(VERSION)
        .about(options.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .subcommands(options.get_subcommands().filter(shown).cloned());
    let mut files = Vec::new();
    for (shell, name) in COMPLETIONS {
        let mut text = Vec::new();
        generate(shell, &mut command, PROGRAM, &mut text);
        // What 4.6 of clap_complete writes for bash does not take a program's name with a hyphen
        // for the same in all places.
        let text = String::from_utf8_lossy(&text);
        let text = text.replace("nvshmem__subcmd__libfabric", "nvshmem__libfabric");
        files.push((name.to_owned(), Content::Text(text.into_bytes())));
    }
    command.build();
    let mut open = vec![command];
    while let Some(command) = open.pop() {
        open.extend(command.get_subcommands().filter(shown).cloned());
        let page = Man::new(command).source(format!("{PROGRAM} {VERSION}"));
        let mut text = Vec::new();
        page.render(&mut text).map_err(|error| {
            ToolError::new(format!("a page of the manual: {error}"), "report this, please")
        })?;
        let name = format!("share/man/man1/{}", page.get_filename());
        files.push((name, Content::Text(text)));
    }
    Ok(files)
}
