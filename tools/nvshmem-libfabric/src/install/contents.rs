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
const HEADER: &str = "nvshmem_libfabric.h";

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

/// All that is installed of what is in and beside the directory of the plugin files.
pub(super) fn all(plugins: &Plugins) -> Result<Vec<Named>, ToolError> {
    let mut files = Vec::new();
    for number in numbers() {
        let plugin = plugins.of(number)?;
        files.push((format!("lib/{}", file_name(number)), Content::File(plugin.path.clone())));
    }
    if let Some(plugin) = &plugins.nccl {
        files.push((format!("lib/{NCCL_FILE}"), Content::File(plugin.path.clone())));
    }
    files.extend(channel(plugins));
    // Of each library by its name, which is what debuggers look for.
    for library in [
        "nvshmem_transport_libfabric",
        "libnccl-rma-nvshmem-libfabric",
        "libnvshmem_libfabric_channel",
    ] {
        let name = format!(".debug/{library}.debug");
        let debug = plugins.directory.join(&name);
        if debug.is_file() {
            files.push((format!("lib/{name}"), Content::File(debug)));
        }
    }
    let program = env::current_exe();
    let program = program.map_err(|error| {
        ToolError::new(format!("this program's own file: {error}"), "is it there still?")
    })?;
    files.push((format!("bin/{PROGRAM}"), Content::File(program)));
    files.extend(of_options()?);
    Ok(files)
}

fn channel(plugins: &Plugins) -> Vec<Named> {
    let library = plugins.directory.join(CHANNEL);
    let includes = ["../include", "../../include"].map(|at| plugins.directory.join(at));
    let include = includes.into_iter().find(|at| at.join(HEADER).is_file()).unwrap_or_default();
    if !library.is_file() || !include.join(HEADER).is_file() {
        return Vec::new();
    }
    let mut files = vec![
        (format!("lib/{CHANNEL}"), Content::File(library)),
        (format!("lib/{CHANNEL_LINK}"), Content::Link(String::from(CHANNEL))),
    ];
    let entries = fs::read_dir(&include).into_iter().flatten().flatten();
    let headers = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry)));
    let mut headers: Vec<Named> = headers
        .filter(|(name, _)| name.starts_with("nvshmem_libfabric"))
        .map(|(name, entry)| (format!("include/{name}"), Content::File(entry.path())))
        .collect();
    headers.sort_by(|(one, _), (other, _)| one.cmp(other));
    files.extend(headers);
    files.extend(PACKAGES.map(|(name, text)| {
        (name.to_owned(), Content::Text(text.replace("@VERSION@", VERSION).into_bytes()))
    }));
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
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files)
}
