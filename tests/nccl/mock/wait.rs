use std::thread;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}");
        thread::yield_now();
    }
}
