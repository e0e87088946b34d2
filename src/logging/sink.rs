//! Sinks of log lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use env_logger::{Builder, Logger, Target};
use log::{LevelFilter, Log, Metadata, Record};

use super::config::{Config, OURS, expand};
use super::{TRANSPORT, VERSION, line};

pub(super) fn install(config: &Config) -> bool {
    let (sink, problem) = Sink::open(config);
    let level = sink.level();
    if log::set_boxed_logger(Box::new(sink)).is_err() {
        return false;
    }
    log::set_max_level(level);
    if let Some(problem) = problem {
        log::warn!("{problem}");
    }
    true
}

struct Sink {
    main: Logger,
    /// Errors a second time, on the standard error stream, when `main` is a file: NVSHMEM itself
    /// says next to nothing when a transport fails to start.
    errors: Option<Logger>,
}

impl Sink {
    fn open(config: &Config) -> (Self, Option<String>) {
        let Some(template) = &config.file else {
            return (Self::stderr(config), None);
        };
        let path = expand(template, line::host(), std::process::id());
        match append(&path) {
            Ok(file) => (Self::to_file(config, Box::new(file)), None),
            Err(error) => {
                let problem = format!(
                    "NVSHMEM_DEBUG_FILE: cannot open {path:?}: {error}. The log goes to the \
                     standard error stream"
                );
                (Self::stderr(config), Some(problem))
            }
        }
    }

    fn stderr(config: &Config) -> Self {
        Self { main: builder(config).target(Target::Stderr).build(), errors: None }
    }

    fn to_file(config: &Config, file: Box<dyn Write + Send>) -> Self {
        Self {
            main: builder(config).target(Target::Pipe(file)).build(),
            errors: Some(shape().filter_level(LevelFilter::Error).target(Target::Stderr).build()),
        }
    }

    fn level(&self) -> LevelFilter {
        self.main.filter()
    }
}

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.main.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.main.log(record);
        if let Some(errors) = &self.errors {
            errors.log(record);
        }
    }

    fn flush(&self) {
        self.main.flush();
    }
}

/// Appends, so that PEs which share a file do not overwrite one another: each record is one
/// write.
fn append(path: &str) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn shape() -> Builder {
    let mut builder = Builder::new();
    builder.format(line::write);
    builder
}

fn builder(config: &Config) -> Builder {
    let mut builder = shape();
    for (name, shown) in OURS.into_iter().zip(config.subsystems) {
        let level = if shown { config.level } else { LevelFilter::Warn };
        builder.filter(Some(name), level);
        if name == TRANSPORT {
            // And for records without a target of ours.
            builder.filter(None, level);
        }
    }
    let version = if config.version { LevelFilter::Info } else { LevelFilter::Off };
    builder.filter(Some(VERSION), version);
    builder
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use log::Level;

    use super::super::{INIT, MEM};
    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(variables: &[(&str, &str)], records: &[(&str, Level)]) -> Vec<String> {
        let (config, _) = Config::load(variables.iter().copied());
        let file = Shared::default();
        let sink = Sink::to_file(&config, Box::new(file.clone()));
        for &(target, level) in records {
            sink.log(
                &Record::builder()
                    .target(target)
                    .level(level)
                    .args(format_args!("{target}"))
                    .build(),
            );
        }
        let bytes = file.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines()
            .map(|line| String::from(line.split_once(" NVSHMEM ").expect("the prefix").1))
            .collect()
    }

    #[test]
    fn warnings_alone_are_shown_by_default() {
        let records =
            [(MEM, Level::Warn), (INIT, Level::Info), (VERSION, Level::Info), ("x", Level::Warn)];
        assert_eq!(shown(&[], &records), ["WARN MEM", "WARN x"]);
    }

    #[test]
    fn subsystems_left_out_still_show_warnings() {
        let variables = [("NVSHMEM_DEBUG", "INFO"), ("NVSHMEM_DEBUG_SUBSYS", "^MEM")];
        let records = [
            (MEM, Level::Info),
            (MEM, Level::Warn),
            (INIT, Level::Info),
            (INIT, Level::Trace),
            ("crate::module", Level::Info),
            (VERSION, Level::Info),
        ];
        assert_eq!(
            shown(&variables, &records),
            ["WARN MEM", "INFO INIT", "INFO crate::module", "VERSION VERSION"]
        );
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_a_warning() {
        let (config, _) = Config::load([("NVSHMEM_DEBUG_FILE", "/nonexistent/n-%p.log")]);
        let (sink, problem) = Sink::open(&config);
        assert!(sink.errors.is_none());
        let problem = problem.expect("a warning");
        let path = format!("/nonexistent/n-{}.log.libfabric", std::process::id());
        assert!(problem.contains(&path), "{problem}");
        assert!(problem.contains("No such file"), "{problem}");
    }
}
