//! Answers of the proxy thread to user threads, waited for.

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};

use engine::thread_wait::Wait;

/// Shortest and longest pause between two checks for an answer.
pub(crate) const PAUSES: (Duration, Duration) =
    (Duration::from_micros(10), Duration::from_millis(1));

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoAnswer {
    Late,
    Ended,
}

/// Polls for the proxy thread's answer. A wakeup would need thread-local variables, which exit
/// handlers may have lost. Time in which this process is stopped is not counted.
pub(crate) fn wait_for<T>(answer: &Receiver<T>, patience: Duration) -> Result<T, NoAnswer> {
    let (mut pause, longest) = PAUSES;
    let mut wait = Wait::new();
    loop {
        match answer.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Disconnected) => return Err(NoAnswer::Ended),
            Err(TryRecvError::Empty) if wait.left_of(patience).is_none() => {
                return Err(NoAnswer::Late);
            }
            Err(TryRecvError::Empty) => std::thread::sleep(pause),
        }
        pause = (2 * pause).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;

    #[test]
    fn answers_arrive_late_or_never() {
        let long = Duration::from_secs(3600);
        let (say, hear) = bounded(1);
        assert_eq!(wait_for(&hear, Duration::ZERO), Err(NoAnswer::Late));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait_for(&hear, long));
            say.send(7).unwrap();
            assert_eq!(waits.join().unwrap(), Ok(7));
        });
        drop(say);
        assert_eq!(wait_for(&hear, long), Err(NoAnswer::Ended));
    }
}
