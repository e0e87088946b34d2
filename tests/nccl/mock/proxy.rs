//! NCCL's progress thread: what kernels and streams ask for goes into a queue for each context and
//! rank, and this thread gives it to the plugin, tests what is under way, and calls for progress.
//!
//! It calls as NCCL 2.30 does, which has two such threads. That of the device interface (GIN) tests
//! everything that is under way, takes one operation of each queue in a pass, and calls for
//! progress of a block at its end. That of the host's calls tests the oldest of each queue alone,
//! takes what there is room for, and calls for progress first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use nvshmem_transport_libfabric::nccl::abi::MORE_FOLLOWS;

use crate::mock::library::{
    Answer, At, Block, Context, Group, On, Plugin, Rank, Region, Request, Signal,
};
use crate::mock::wait::until;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    Device,
    Host,
}

/// A context of a group, counted over all its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ContextId(pub(crate) usize);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Put { from: At, len: usize, to: At },
    PutSignal { from: At, len: usize, to: At, signal: Signal },
    Get { from: At, len: usize, to: At },
    Flush { region: Region },
}

/// What to do once an operation is complete; an error ends the thread.
pub(crate) type Done = Box<dyn FnOnce() -> Result<(), String> + Send>;

struct Posted {
    call: Call,
    done: Done,
}

struct Flying {
    /// None once it is complete.
    request: Option<Request>,
    done: Option<Done>,
}

pub(crate) struct Work {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) group: Group,
    pub(crate) ranks: usize,
    pub(crate) blocks: Vec<(Block, usize)>,
    /// Operations under way for a context and rank at most.
    pub(crate) limit: usize,
    pub(crate) style: Style,
}

pub(crate) struct Queues {
    work: Work,
    contexts: Vec<(Block, Context)>,
    queues: Vec<Mutex<VecDeque<Posted>>>,
    open: AtomicUsize,
    passes: AtomicU64,
    ends: AtomicBool,
    failure: OnceLock<String>,
}

impl Queues {
    pub(crate) fn post(&self, context: ContextId, rank: Rank, call: Call, done: Done) {
        self.open.fetch_add(1, Ordering::Relaxed);
        let queue = &self.queues[context.0 * self.work.ranks + rank.0 as usize];
        lock(queue).push_back(Posted { call, done });
    }

    pub(crate) fn start(&self, context: ContextId, rank: Rank, call: Call) -> Arc<AtomicBool> {
        let done = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&done);
        let is_done: Done = Box::new(move || {
            its.store(true, Ordering::Release);
            Ok(())
        });
        self.post(context, rank, call, is_done);
        done
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(crate) fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        until(what, || {
            if let Some(why) = self.failure() {
                panic!("while waiting for {what}: {why}");
            }
            is_so()
        });
    }

    pub(crate) fn drain(&self) {
        self.wait("operations to be complete", || self.open.load(Ordering::Acquire) == 0);
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Proxy {
    pub(crate) queues: Arc<Queues>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn start(work: Work) -> Self {
        let of_block = |&(block, contexts): &(Block, usize)| {
            (0..contexts).map(move |context| (block, Context(context as i32)))
        };
        let contexts: Vec<_> = work.blocks.iter().flat_map(of_block).collect();
        let queues = (0..contexts.len() * work.ranks).map(|_| Mutex::default()).collect();
        let queues = Arc::new(Queues {
            work,
            contexts,
            queues,
            open: AtomicUsize::new(0),
            passes: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            failure: OnceLock::new(),
        });
        let its = Arc::clone(&queues);
        let thread = thread::Builder::new().name("NCCL progress".into());
        let thread = thread.spawn(move || run(&its)).unwrap();
        Self { queues, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.queues.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(queues: &Queues) {
    let mut thread =
        Thread { queues, flying: queues.queues.iter().map(|_| VecDeque::new()).collect() };
    while !queues.ends.load(Ordering::Relaxed) {
        if let Err(why) = thread.pass() {
            let _ = queues.failure.set(why);
            return;
        }
        queues.passes.fetch_add(1, Ordering::Relaxed);
        thread::yield_now();
    }
}

struct Thread<'a> {
    queues: &'a Queues,
    flying: Vec<VecDeque<Flying>>,
}

impl Thread<'_> {
    fn pass(&mut self) -> Result<(), String> {
        let Work { plugin, blocks, ranks, style, .. } = &self.queues.work;
        let mut at = 0;
        for &(block, contexts) in blocks {
            let progress = || plugin.progress(block).map_err(|refused| refused.to_string());
            if *style == Style::Host {
                progress()?;
            }
            for _ in 0..contexts {
                for queue in at..at + ranks {
                    self.test(queue)?;
                }
                for queue in at..at + ranks {
                    self.issue(queue)?;
                }
                at += ranks;
            }
            if *style == Style::Device {
                progress()?;
            }
        }
        Ok(())
    }

    fn test(&mut self, queue: usize) -> Result<(), String> {
        let Work { plugin, group, style, .. } = &self.queues.work;
        let flying = &mut self.flying[queue];
        for one in flying.iter_mut() {
            let is_complete = match one.request {
                Some(request) => plugin.test(*group, request).map_err(|it| it.to_string())?,
                None => true,
            };
            if is_complete {
                one.request = None;
                if let Some(done) = one.done.take() {
                    done()?;
                    self.queues.open.fetch_sub(1, Ordering::Release);
                }
            } else if *style == Style::Host {
                break;
            }
        }
        // What is complete behind what is not keeps its room, as in NCCL's queues.
        while flying.front().is_some_and(|one| one.done.is_none()) {
            flying.pop_front();
        }
        Ok(())
    }

    fn issue(&mut self, queue: usize) -> Result<(), String> {
        let Work { plugin, ranks, limit, style, .. } = &self.queues.work;
        let (block, context) = self.queues.contexts[queue / ranks];
        let rank = Rank((queue % ranks) as u32);
        let room = limit - self.flying[queue].len();
        // Only a version with flags can be told that more follows at once.
        let together = if plugin.version.has_flags() { 3 } else { 1 };
        let most = room.min(if *style == Style::Host { room } else { together });
        let mut taken: VecDeque<Posted> = {
            let mut waiting = lock(&self.queues.queues[queue]);
            let most = most.min(waiting.len());
            waiting.drain(..most).collect()
        };
        while let Some(Posted { call, done }) = taken.pop_front() {
            let next_is_flush =
                taken.front().is_none_or(|next| matches!(next.call, Call::Flush { .. }));
            let flags = if !next_is_flush && plugin.version.has_flags() { MORE_FOLLOWS } else { 0 };
            let on = On { block, context, rank, flags };
            let request =
                start(plugin, on, call).map_err(|refused| format!("{refused}: {call:?}"))?;
            self.flying[queue].push_back(Flying { request, done: Some(done) });
        }
        Ok(())
    }
}

fn start(plugin: &Plugin, on: On, call: Call) -> Answer<Option<Request>> {
    match call {
        Call::Put { from, len, to } => plugin.put(on, from, len, to).map(Some),
        Call::PutSignal { from, len, to, signal } => {
            plugin.put_signal(on, from, len, to, signal).map(Some)
        }
        Call::Get { from, len, to } => plugin.get(on, from, len, to).map(Some),
        Call::Flush { region } => plugin.flush(on, region),
    }
}
