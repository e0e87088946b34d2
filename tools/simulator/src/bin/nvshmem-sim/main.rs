//! The host simulator's command line.
//!
//! `nvshmem-sim rail-lab` runs experiments on several hosts with several rails, all on this machine.

mod rail_lab;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nvshmem_sim::{lab, pe_entry};

/// The transport plugin at work, without a GPU and without NVSHMEM.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Several hosts with several rails: bandwidth, slow rails, rails that fail
    RailLab(rail_lab::Options),
}

/// Where the plugin is when nobody says otherwise: installed beside this program.
fn default_plugin_dir() -> PathBuf {
    let here = std::env::current_exe().ok();
    here.and_then(|program| Some(program.parent()?.parent()?.join("install/lib")))
        .unwrap_or_default()
}

fn main() -> ExitCode {
    // A process that the launcher started as a PE ends in here.
    pe_entry(&[(lab::SCENARIO, lab::pe)]);
    let done = match Arguments::parse().command {
        Command::RailLab(options) => rail_lab::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-sim: {error}");
            ExitCode::FAILURE
        }
    }
}
