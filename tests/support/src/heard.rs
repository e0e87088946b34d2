//! Lines that a thread logs, for tests.

use std::cell::RefCell;
use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};

thread_local! {
    static HEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

struct Ear;

impl Log for Ear {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("{} {}\n", record.level(), record.args());
        HEARD.with_borrow_mut(|heard| {
            if let Some(heard) = heard {
                heard.push_str(&line);
            }
        });
    }

    fn flush(&self) {}
}

/// Runs a function; returns its result and what it logs on this thread, each line "LEVEL text".
pub fn heard<T>(run: impl FnOnce() -> T) -> (T, String) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Ear).expect("no test has a logger of its own");
        log::set_max_level(LevelFilter::Info);
    });
    HEARD.set(Some(String::new()));
    let outcome = run();
    (outcome, HEARD.take().unwrap_or_default())
}
