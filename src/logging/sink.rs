use std::fs::OpenOptions;

use env_logger::{Builder, Logger, Target};
use log::{LevelFilter, Log, Metadata, Record};

use super::config::{Config, OURS, expand};
use super::{TRANSPORT, VERSION, line};

struct Sink {
    main: Logger,
    /// Errors on standard error too if `main` is a file: NVSHMEM says little when start fails.
    errors: Option<Logger>,
}

pub(super) fn install(config: &Config) -> bool {
    let (mut target, mut errors, mut problem) = (Target::Stderr, None, None);
    if let Some(template) = &config.file {
        let path = expand(template, line::host(), std::process::id());
        // Appends, one write per record, so that PEs that share a file keep each other's.
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => {
                target = Target::Pipe(Box::new(file));
                errors = Some(shape().filter_level(LevelFilter::Error).build());
            }
            Err(error) => {
                problem = Some(format!(
                    "NVSHMEM_DEBUG_FILE: cannot open {path:?}: {error}. The log goes to the \
                     standard error stream"
                ));
            }
        }
    }
    let main = builder(config).target(target).build();
    let level = main.filter();
    if log::set_boxed_logger(Box::new(Sink { main, errors })).is_err() {
        return false;
    }
    log::set_max_level(level);
    if let Some(problem) = problem {
        log::warn!("{problem}");
    }
    true
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
            // Also for records without a target of ours.
            builder.filter(None, level);
        }
    }
    let version = if config.version { LevelFilter::Info } else { LevelFilter::Off };
    builder.filter(Some(VERSION), version);
    builder
}
