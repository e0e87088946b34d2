//! `top`: the counters of running PEs of this machine, by rail and peer, from the pages that they
//! publish.

mod page;
mod prometheus;
mod table;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::output;
use nvshmem_transport_libfabric::job::counters::page as pages;
use nvshmem_transport_libfabric::job::counters::page::Life;
use serde::Serialize;

use self::page::Page;
use crate::error::ToolError;
use crate::info::print_json;
use crate::options::TopOptions;

/// What has PEs publish their counters.
const HOW: &str =
    "set NVSHMEM_LIBFABRIC_COUNTERS_PAGE=auto for the job, or the directory that --dir names";

/// Whether the process of a page can be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Running,
    /// In another container: it may have ended.
    Elsewhere,
}

/// A PE, by its page.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pe {
    state: State,
    #[serde(flatten)]
    page: Page,
}

/// What a directory has.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Look {
    directory: PathBuf,
    pes: Vec<Pe>,
    /// Pages of processes that have ended, which are gone now.
    removed: Vec<PathBuf>,
    /// Pages that cannot be read, and why.
    unread: Vec<String>,
}

impl Look {
    fn at(directory: &Path) -> Result<Self, ToolError> {
        let refuse = |error: io::Error| {
            let hint = "pages are read from a directory that is this user's, and nobody else's: ask as the user of the job, \
                        and name its directory with --dir";
            ToolError::file(directory, "is not read", error, hint)
        };
        pages::check_directory(directory).map_err(refuse)?;
        let mut look = Self {
            directory: directory.to_owned(),
            removed: pages::sweep(directory).map_err(refuse)?,
            ..Self::default()
        };
        let found = pages::list(directory).map_err(refuse)?;
        for (path, name) in found.into_iter().filter(|(path, _)| pages::is_whole(path)) {
            let state = match name.life() {
                Life::Lives => State::Running,
                Life::Elsewhere => State::Elsewhere,
                Life::Ended => continue,
            };
            match Page::read(&path) {
                Ok(Some(page)) => look.pes.push(Pe { state, page }),
                // It ended just now.
                Ok(None) => {}
                Err(why) => look.unread.push(format!("{}: {why}", path.display())),
            }
        }
        look.pes.sort_by_key(|pe| (pe.page.pe, pe.page.pid));
        Ok(look)
    }

    /// What is not for the table.
    fn remark(&self) {
        for path in &self.removed {
            eprintln!("{}: its process has ended; removed", path.display());
        }
        for why in &self.unread {
            eprintln!("{why}");
        }
        if self.pes.is_empty() {
            eprintln!("no PE publishes counters in {}\nhint: {HOW}", self.directory.display());
        }
    }
}

/// Shows, until it is ended or once. Whether every page could be read.
///
/// # Errors
/// The directory is not there, or not this user's.
pub(crate) fn run(options: &TopOptions) -> Result<bool, ToolError> {
    let directory = match &options.dir {
        Some(directory) => directory.clone(),
        None => {
            let directory = pages::default_directory();
            // Nobody has published anything as yet.
            if !directory.exists() && (options.once || options.json || options.prometheus) {
                let none = Look { directory, ..Look::default() };
                return show_once(options, &none);
            }
            directory
        }
    };
    if options.once || options.json || options.prometheus {
        return show_once(options, &Look::at(&directory)?);
    }
    if !io::stdout().is_terminal() {
        return Err(ToolError::new(
            "a table that is drawn anew needs a terminal",
            "--once, --json or --prometheus is for files and other programs",
        ));
    }
    let mut before: Option<Look> = None;
    print!("\x1b[2J");
    loop {
        // Until there is one.
        let look = match Look::at(&directory) {
            Err(_) if options.dir.is_none() && !directory.exists() => {
                Look { directory: directory.clone(), ..Look::default() }
            }
            look => look?,
        };
        let (width, height) = output::size(&io::stdout()).unwrap_or((usize::MAX, usize::MAX));
        let mut lines = table::lines(&look, before.as_ref(), options.peers, width);
        if look.pes.is_empty() {
            lines.push(format!("no PE publishes counters in {}", directory.display()));
            lines.push(format!("hint: {HOW}"));
        }
        let screen = table::screen(&lines, width, height);
        let mut out = io::stdout().lock();
        if out.write_all(screen.as_bytes()).and_then(|()| out.flush()).is_err() {
            // Nobody looks any more.
            return Ok(true);
        }
        drop(out);
        before = Some(look);
        thread::sleep(Duration::from_secs_f64(options.interval));
    }
}

fn show_once(options: &TopOptions, look: &Look) -> Result<bool, ToolError> {
    if options.json {
        print_json(look)?;
    } else if options.prometheus {
        output::print_whole(format_args!("{}", prometheus::text(&look.pes)));
    } else {
        let width = output::size(&io::stdout()).map_or(usize::MAX, |(width, _)| width);
        for line in table::lines(look, None, options.peers, width) {
            println!("{line}");
        }
    }
    look.remark();
    Ok(look.unread.is_empty())
}
