//! `trace`: what NVSHMEM has called, from recordings of a job's PEs: as a timeline, and looked
//! through for what is read before anything has ordered it.

mod check;
mod job;
mod order;
mod timeline;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};

use crate::output;

use self::job::Job;
use crate::error::ToolError;
use crate::options::{TraceCommand, TraceShowOptions};

/// Does what is asked for. Whether all was well.
///
/// # Errors
/// Recordings cannot be read, or what is made of them cannot be written.
pub(crate) fn run(command: &TraceCommand) -> Result<bool, ToolError> {
    match command {
        TraceCommand::Show(options) => show(options).map(|()| true),
        TraceCommand::Check(options) => check::run(options),
    }
}

fn show(options: &TraceShowOptions) -> Result<(), ToolError> {
    let job = Job::read(&options.files)?;
    for remark in job.remarks() {
        eprintln!("{remark}");
    }
    let Some(path) = &options.out else {
        let mut out = BufWriter::new(io::stdout().lock());
        if let Err(error) = timeline::write(&job, &mut out).and_then(|()| out.flush()) {
            output::unsaid(&error);
        }
        return Ok(());
    };
    let file = File::create_new(path).map_err(|error| {
        let hint = "name another file with --out; none is overwritten";
        ToolError::file(path, "cannot be made", error, hint)
    })?;
    let mut out = BufWriter::new(file);
    timeline::write(&job, &mut out).and_then(|()| out.flush()).map_err(|error| {
        // Half a timeline is none.
        let _ = fs::remove_file(path);
        ToolError::file(path, "cannot be written", error, "look at the file system")
    })?;
    println!("{}: open it in Perfetto (https://ui.perfetto.dev)", path.display());
    Ok(())
}

#[cfg(test)]
mod tests;
