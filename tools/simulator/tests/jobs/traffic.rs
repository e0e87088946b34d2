//! A job that moves data by every call of the interface and checks what has become of it.

use std::time::{Duration, Instant};

use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Host, Job, Pattern, SymAddr};

/// Bytes of a transfer. Odd, so that what is behind begins at any alignment.
const LEN: u64 = 40_001;

/// Where a kind of thread works: the same places on every PE, in a chunk of their own.
#[derive(Clone, Copy)]
struct Places {
    source: SymAddr,
    /// Written by the neighbour. The byte behind stays as it is.
    target: SymAddr,
    value: SymAddr,
}

impl Places {
    fn alloc(host: &Host<'_>) -> Result<Self, BoxError> {
        let place = || host.alloc(LEN + 1, 128 << 10);
        Ok(Self { source: place()?, target: place()?, value: host.alloc(8, 8)? })
    }

    /// After a barrier: what the neighbour before has put here is here, and nothing else.
    fn check(&self, host: &Host<'_>, who: &str, from: u32) -> Result<(), BoxError> {
        let target = host.local(self.target, LEN)?;
        target.verify(Pattern::new(from.into()), 0).map_err(|e| format!("put by {who}: {e}"))?;
        let behind = host.local(self.target.plus(LEN), 1)?.to_vec()?;
        if behind != [0] {
            return Err(format!("the byte behind the put of {who} is {behind:?}").into());
        }
        let value = host.local(self.value, 8)?.load_acquire()?;
        if value != 0x1234 {
            return Err(format!("value by {who}: {value:#x}").into());
        }
        Ok(())
    }
}

pub(crate) fn traffic(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let (after, before) = ((me + 1) % n, (me + n - 1) % n);
    let host = job.init()?;
    let (by_user, by_proxy) = (Places::alloc(&host)?, Places::alloc(&host)?);
    let words = host.alloc(48, 8)?;
    let (sum, signal, fetched) = (words, words.plus(8), words.plus(16));
    for places in [by_user, by_proxy] {
        host.local(places.source, LEN)?.fill(Pattern::new(me.into()), 0)?;
        // What a put that is too long takes along.
        host.local(places.source.plus(LEN), 1)?.set(0xff)?;
    }
    host.local(fetched.plus(16), 8)?.store_release(7)?;
    host.barrier()?;

    host.user().put_nbi(after, by_user.target, by_user.source, LEN)?;
    host.user().p(after, by_user.value, 0x1234, 2)?;
    host.proxy().put(after, by_proxy.target, by_proxy.source, LEN)?;
    host.proxy().p(after, by_proxy.value, 0x1234, 2)?;
    host.barrier()?;
    by_user.check(&host, "the user", before)?;
    by_proxy.check(&host, "the proxy", before)?;

    let copy = host.register(LEN, 13)?;
    host.user().get(after, by_user.source, copy.at(0), LEN)?;
    host.local(copy.at(0), LEN)?.verify(Pattern::new(after.into()), 0)?;
    host.unregister(copy)?;

    host.proxy().amo(after, sum, Amo::new(c::NVT_AMO_ADD, 8, 40))?;
    let mut fetch = Amo::new(c::NVT_AMO_FETCH_ADD, 8, 1);
    (fetch.fetch_to, fetch.flag) = (Some(fetched), 5);
    host.proxy().amo(after, fetched.plus(16), fetch)?;
    wait_for(&host, fetched.plus(8), 5)?;
    let old = host.local(fetched, 8)?.load_acquire()?;
    if old != 7 {
        return Err(format!("fetched {old}, not 7").into());
    }
    host.barrier()?;
    let found = host.local(sum, 8)?.load_acquire()?;
    if found != 40 {
        return Err(format!("the sum is {found}, not 40").into());
    }

    host.local(by_proxy.target, LEN)?.set(0)?;
    host.barrier()?;
    let set = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 9);
    host.proxy().put_signal(after, by_proxy.target, by_proxy.source, LEN, signal, set)?;
    wait_for(&host, signal, 9)?;
    let arrived = host.local(by_proxy.target, LEN)?;
    let arrived = arrived.verify(Pattern::new(before.into()), 0);
    arrived.map_err(|e| format!("data behind its signal: {e}"))?;
    host.finalize()?;
    Ok(())
}

/// Waits until a word has a value, as a kernel would. The PE's proxy thread works meanwhile.
fn wait_for(host: &Host<'_>, word: SymAddr, value: u64) -> Result<(), BoxError> {
    let start = Instant::now();
    let word = host.local(word, 8)?;
    while word.load_acquire()? != value {
        if start.elapsed() > Duration::from_secs(30) {
            let found = word.load_acquire()?;
            return Err(format!("a word is {found} and does not become {value}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
