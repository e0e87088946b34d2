//! What the engine's threads hand over: user threads' operations, and regions, to lanes.
//!
//! The queue between the threads is a lock here, which orders no more than what is in it.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::check;
use crate::ids::Pe;
use crate::outstanding::Outstanding;
use crate::versioned_cell::VersionedCell;

const TO: Pe = Pe(1);

/// A job of two PEs: what was handed over, and the memory that the proxy thread writes for it.
struct Job {
    outstanding: Outstanding<u32>,
    queue: Mutex<Vec<usize>>,
    memory: [UnsafeCell<u32>; 2],
}

impl Job {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            outstanding: Outstanding::new(2),
            queue: Mutex::new(Vec::new()),
            memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    /// A user thread hands a get over.
    fn begin(&self, at: usize) {
        self.outstanding.begin(TO);
        self.queue.lock().unwrap().push(at);
    }

    fn ended(&self, at: usize) -> Option<(u32, Option<u32>)> {
        if !self.outstanding.is_quiet(TO) {
            return None;
        }
        // SAFETY: the proxy thread is done with it; loom fails a read ahead of its write.
        let got = self.memory[at].with(|word| unsafe { *word });
        Some((got, self.outstanding.failure(TO)))
    }

    /// The proxy thread: looks so often for something to execute, and loses each.
    fn serve(&self, looks: usize) {
        for _ in 0..looks {
            let taken = self.queue.lock().unwrap().pop();
            let Some(at) = taken else {
                thread::yield_now();
                continue;
            };
            // SAFETY: as in `quiet`, the other way round.
            self.memory[at].with_mut(|word| unsafe { *word = 7 });
            self.outstanding.end(TO, Some(5));
        }
    }
}

#[test]
fn quiet_publishes_results_and_failures() {
    check(|| {
        let job = Job::new();
        let other = Arc::clone(&job);
        let other = thread::spawn(move || other.begin(1));
        let proxy = Arc::clone(&job);
        let proxy = thread::spawn(move || proxy.serve(2));
        job.begin(0);
        // It does not wait: of three threads that poll, two could do so for ever.
        assert!(job.ended(0).is_none_or(|ended| ended == (7, Some(5))));
        other.join().unwrap();
        assert!(job.ended(1).is_none_or(|ended| ended == (7, Some(5))));
        proxy.join().unwrap();
        job.serve(2);
        assert_eq!(job.ended(1), Some((7, Some(5))));
    });
}

struct Copy {
    number: u64,
    value: [u32; 2],
}

impl Copy {
    fn sync(&mut self, table: &VersionedCell<[u32; 2]>) {
        if !table.is_version(self.number) {
            self.number = table.read(|value| self.value = *value);
        }
    }
}

/// Two threads register regions. A peer told of one finds it; a current copy has whole changes.
#[test]
fn announced_change_is_visible() {
    check(|| {
        let table = Arc::new(VersionedCell::<[u32; 2]>::default());
        let told = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let changes: Vec<_> = (0..2)
            .map(|at| {
                let (table, told) = (Arc::clone(&table), Arc::clone(&told));
                thread::spawn(move || {
                    table.change(|value| value[at] = 1);
                    // Tells the peer of it, and hears of the peer in turn, as it were.
                    told[at].store(true, Ordering::Release);
                })
            })
            .collect();
        let mut copy = Copy { number: 0, value: [0; 2] };
        for _ in 0..2 {
            let heard = [0, 1].map(|at| told[at].load(Ordering::Acquire));
            copy.sync(&table);
            for (heard, value) in heard.into_iter().zip(copy.value) {
                assert!(!heard || value == 1);
            }
            assert_eq!(copy.value.iter().map(|value| u64::from(*value)).sum::<u64>(), copy.number);
        }
        changes.into_iter().for_each(|change| change.join().unwrap());
        copy.sync(&table);
        assert_eq!((copy.number, copy.value), (2, [1, 1]));
    });
}
