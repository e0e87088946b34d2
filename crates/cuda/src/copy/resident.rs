//! Resident kernel: one warp of a context of our own that copies short bytes and stores words.
//!
//! Copy engines and stream memory operations wait for a quiet bus: 7 µs alone, 300 beside 32 blocks
//! that poll host memory. Loads and stores of a running kernel do not. It needs the multi-process
//! service: else the contexts of a device run in turns.
//!
//! - *Launches.* The kernel ends when it was idle, and after [`LIFE`] in any case, so that calls
//!   that wait for an idle context return. Whoever submits orders or waits for them launches it
//!   again once it has ended; at most one launch is under way.
//! - *A full device.* Kernels of the program may leave no room for it and wait for the very orders
//!   that it is to execute. So a launch that does not start is revoked, and a stream executes the
//!   orders. The kernel says that it has started before it reads what is revoked, and the processor
//!   revokes before it reads what has started, so never do both execute them.

use std::iter;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::calls::copy_piece;
use crate::copy::progress::{ProgressCounter, has_passed};
use crate::copy::request::{Direction, StreamOp, Transfer};
use crate::copy::resident_kernel::{
    AFTER, Arguments, BYTES, DONE, ENDED, LAP_SHIFT, NAME, ORDER, ORDERS, PTX, REPORT, REVOKED,
    RING, STARTED, STORE, THREADS, TO_HOST, UNIT_SHIFT,
};
use crate::copy::rows::copy_in_rows;
use crate::copy::writes::WordWrite;
use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::driver::module::{Kernel, Module};
use crate::driver::stream::{Stream, wait_for};
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::memory::range::DeviceRange;
use ::engine::atomic::Width;

const IDLE: Duration = Duration::from_micros(100);

const LIFE: Duration = Duration::from_millis(2);

/// Maximum bytes of a copy and of a batch: streams carry more sooner.
const MAX_COPY: usize = 4096;
const MAX_BATCH: usize = 16_384;

const MAX_ORDERS: u32 = 32;

const PATIENCE: Duration = Duration::from_secs(10);

/// # Threads
/// One at a time, as for the engines that share it.
#[derive(Debug)]
pub(crate) struct ResidentKernel {
    stream: Stream,
    kernel: Kernel,
    module: Arc<Module>,
    /// Executes the orders of a revoked launch.
    rescue: Stream,
    /// The orders that are done; it is the first word of `page`.
    done: ProgressCounter,
    page: Arc<PinnedMemory>,
    /// Number of the last launch, and nanoseconds from `made` to it.
    launched: AtomicU32,
    launched_at: AtomicU64,
    made: Instant,
    /// Time for a launch to start. If others fill the device, orders wait so long once.
    patience: Duration,
    /// Number of the next order.
    issued: AtomicU32,
    /// The first order of the last launch, or the one behind those that streams have got.
    first: AtomicU32,
    /// Why orders were lost.
    failed: OnceLock<CudaError>,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    to: usize,
    /// The source, or the low half of a word.
    from: usize,
    flags: u64,
    high: u32,
}

impl ResidentKernel {
    /// Loads the kernel. May wait for all work on the device.
    ///
    /// # Errors
    /// The driver's reason, or that streams cannot do what is left of a revoked launch.
    pub(crate) fn new(context: &Arc<Context>, patience: Duration) -> Result<Self, String> {
        let text = |error: CudaError| error.to_string();
        let (stream, rescue) =
            (Stream::new(context).map_err(text)?, Stream::new(context).map_err(text)?);
        let page = PinnedMemory::new(context, BYTES).map_err(text)?;
        // SAFETY: page-locked memory of this length, which nobody else knows yet.
        unsafe { (page.addr() as *mut u8).write_bytes(0, BYTES) };
        let done = ProgressCounter::new(&rescue, Arc::clone(&page))?;
        // SAFETY: PTX with its end, for which the driver has a compiler.
        let module = unsafe { Module::load(context, PTX.as_bytes()) }.map_err(text)?;
        let kernel = module.kernel(NAME).map_err(text)?;
        let new = Self {
            stream,
            kernel,
            module,
            rescue,
            done,
            page,
            launched: AtomicU32::new(0),
            launched_at: AtomicU64::new(0),
            made: Instant::now(),
            patience,
            // The words of no order have lap 0, so the first one has 1.
            issued: AtomicU32::new(RING),
            first: AtomicU32::new(RING),
            failed: OnceLock::new(),
        };
        new.word(DONE).store(RING, Relaxed);
        // As of a launch before the first one, which has ended.
        new.long_word(ENDED).store(u64::from(RING) << 32, Relaxed);
        new.word(REVOKED).store(u32::MAX, Relaxed);
        Ok(new)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset % 4 == 0 && offset < BYTES);
        // SAFETY: an aligned word of the page, which lives as long; uses of it are atomic.
        unsafe { AtomicU32::from_ptr((self.page.addr() + offset) as *mut u32) }
    }

    fn long_word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0 && offset < BYTES);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr((self.page.addr() + offset) as *mut u64) }
    }

    fn order_word(&self, number: u32, word: usize) -> &AtomicU64 {
        self.long_word(ORDERS + (number % RING) as usize * ORDER + 8 * word)
    }

    /// Returns true if all orders before a number are done.
    #[inline]
    pub(crate) fn reached(&self, number: u32) -> bool {
        self.done.reached(number)
    }

    /// Returns the number of the order from which the next launch continues, if the last one has
    /// ended.
    #[inline]
    fn ended(&self) -> Option<u32> {
        let ended = self.long_word(ENDED).load(Acquire);
        let (next, first) = ((ended >> 32) as u32, self.first.load(Relaxed));
        // A launch whose orders streams have got ended before them. They are done before the next.
        let next = if has_passed(first, next) { first } else { next };
        let is_over = next == (ended >> 32) as u32 || self.reached(next);
        (is_over && ended as u32 == self.launched.load(Relaxed)).then_some(next)
    }

    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended().is_some()
    }

    fn launch(&self, next: u32) -> Result<(), CudaError> {
        let number = self.launched.load(Relaxed).wrapping_add(1);
        let (page, idle_ns, life_ns) =
            (self.page.addr() as u64, IDLE.as_nanos() as u32, LIFE.as_nanos() as u32);
        let arguments = Arguments { page, number, next, idle_ns, life_ns };
        // SAFETY: the kernel's argument. Its memory is kept until it has ended: the page by `drop`,
        // that of the orders by the engines.
        let launched = unsafe { self.kernel.launch(&self.stream, 1, THREADS, arguments) };
        launched.inspect_err(|refused| {
            log::debug!(target: MEM, "streams do the work of a kernel: {refused}");
        })?;
        self.launched.store(number, Relaxed);
        self.first.store(next, Relaxed);
        self.launched_at.store(self.made.elapsed().as_nanos() as u64, Relaxed);
        Ok(())
    }

    /// Submits a batch of checked operations, in which each but an unordered copy follows all
    /// before it. Returns the number to wait for; None, with nothing submitted, for a batch that a
    /// stream has to execute. The context must be bound.
    pub(crate) fn submit<'a>(
        &self,
        ops: impl Iterator<Item = StreamOp<'a>> + Clone,
    ) -> Option<u32> {
        let first = self.issued.load(Relaxed);
        let mut bytes = 0;
        let takes = |op: StreamOp<'_>| {
            let (range, len, is_whole) = match op {
                StreamOp::Copy { transfer: Transfer { range, len, .. }, .. } if len > MAX_COPY => {
                    (range, len, false)
                }
                StreamOp::Copy {
                    transfer: Transfer { range, addr, memory, offset, len, .. },
                    ..
                } => {
                    // No naturally aligned word is cut.
                    let word = 1 << len.ilog2().min(3);
                    (range, len, (addr ^ (memory.addr() + offset)) % word == 0)
                }
                StreamOp::Store { range, width, .. } => (range, width.bytes(), true),
            };
            bytes += len;
            is_whole && bytes <= MAX_BATCH && self.reaches(range)
        };
        if self.failed.get().is_some() || !ops.clone().all(takes) {
            return None;
        }
        let orders = ops.flat_map(orders);
        let (free, count) = (RING - first.wrapping_sub(self.done.value()), orders.clone().count());
        if count > free.min(MAX_ORDERS) as usize {
            return None;
        }
        match self.ended() {
            // Before the orders are written: none is left behind if it is refused.
            Some(next) => self.launch(next).ok()?,
            // Until it starts, the device is full.
            None if self.word(REVOKED).load(Relaxed) == self.launched.load(Relaxed) => return None,
            None => {}
        }
        let mut number = first;
        let mut orders = orders.peekable();
        while let Some(Order { to, from, mut flags, high }) = orders.next() {
            if number == first {
                flags &= !AFTER;
            }
            if orders.peek().is_none() {
                flags |= REPORT;
            }
            let lap = u64::from(number / RING % 256) << LAP_SHIFT;
            for (word, value) in
                [to as u64, from as u64, flags, high.into()].into_iter().enumerate()
            {
                debug_assert!(value >> LAP_SHIFT == 0);
                self.order_word(number, word).store(value | lap, Release);
            }
            number = number.wrapping_add(1);
        }
        self.issued.store(number, Relaxed);
        Some(number)
    }

    /// Returns true if the kernel reaches the memory of a range: a mapping of the device, or memory
    /// of its own context.
    fn reaches(&self, range: &DeviceRange) -> bool {
        let is_own = !range.is_owned() || range.context().is(self.context());
        range.kind() == Kind::Device && is_own
    }

    /// Keeps orders going: launches the kernel again, or revokes a launch that does not start. The
    /// context must be bound.
    ///
    /// # Errors
    /// The driver's, also that of a failed kernel. Of orders that were lost all engines are told.
    #[cold]
    pub(crate) fn attend(&self) -> Result<(), CudaError> {
        if let Some(failed) = self.failed.get() {
            return Err(failed.clone());
        }
        let (launched, issued) = (self.launched.load(Relaxed), self.issued.load(Relaxed));
        match self.ended() {
            Some(next) if next != issued => {
                self.launch(next).or_else(|_| self.hand_over(next, issued))
            }
            Some(_) => self.rescue.is_done().map(drop),
            None if self.word(REVOKED).load(Relaxed) == launched => self.rescue.is_done().map(drop),
            None if self.word(STARTED).load(Acquire) == launched => self.stream.is_done().map(drop),
            None => {
                let at = Duration::from_nanos(self.launched_at.load(Relaxed));
                let is_late = self.made.elapsed() > at + self.patience;
                if is_late { self.revoke(launched, issued) } else { Ok(()) }
            }
        }
    }

    fn revoke(&self, launched: u32, issued: u32) -> Result<(), CudaError> {
        self.word(REVOKED).store(launched, Relaxed);
        // Between this store and the next load, as one of the kernel's is between its own two.
        fence(SeqCst);
        if self.word(STARTED).load(Acquire) == launched {
            return Ok(());
        }
        // The launch before it has ended, and this one executes nothing.
        log::debug!(target: MEM, "other kernels fill the device of {}", self.context());
        self.hand_over(self.first.load(Relaxed), issued)
    }

    /// Gives a stream the orders from a number, which no launch executes.
    fn hand_over(&self, number: u32, issued: u32) -> Result<(), CudaError> {
        self.give_stream(number, issued).inspect_err(|refused| {
            // What the stream has may still use memory that is given back after an error.
            wait_for(PATIENCE, || self.rescue.is_idle() != Ok(false));
            let _ = self.failed.set(refused.clone());
        })
    }

    fn give_stream(&self, mut number: u32, issued: u32) -> Result<(), CudaError> {
        while number != issued {
            let words = [0, 1, 2, 3].map(|word| self.order_word(number, word).load(Relaxed));
            let [to, from, flags, high] = words.map(|word| word & ((1 << LAP_SHIFT) - 1));
            let (addr, from, unit) = (to as usize, from as usize, (flags >> UNIT_SHIFT) & 7);
            let len = (flags as u32 as usize) << unit;
            // SAFETY: the order was checked when it was submitted, and its memory is held until it
            // is done; the kernel does not execute it. The context is bound, by the caller.
            unsafe {
                if flags & STORE != 0 {
                    let width = if unit == 2 { Width::Four } else { Width::Eight };
                    WordWrite { addr, width, value: from as u64 | high << 32 }
                        .submit(&self.rescue)?;
                } else if flags & TO_HOST != 0 {
                    copy_piece(&self.rescue, Direction::FromDevice, from, addr, len)?;
                } else {
                    copy_in_rows(&self.rescue, addr, from, len)?;
                }
            }
            number = number.wrapping_add(1);
        }
        self.done.write(issued).submit(&self.rescue)?;
        self.first.store(issued, Relaxed);
        Ok(())
    }
}

/// Returns the orders of an operation.
fn orders(op: StreamOp<'_>) -> impl Iterator<Item = Order> + Clone {
    let (range, word, mut copy, mut flags) = match op {
        StreamOp::Store { range, addr, width, value } => {
            let flags = STORE | AFTER | u64::from(width.bytes().ilog2()) << UNIT_SHIFT | 1;
            let (from, high) = (value as u32 as usize, (value >> 32) as u32);
            (range, Some(Order { to: addr, from, flags, high }), (0, 0, 0), 0)
        }
        StreamOp::Copy { transfer, is_ordered } => {
            let Transfer { direction, range, addr, memory, offset, len } = transfer;
            let (host, after) = (memory.addr() + offset, if is_ordered { AFTER } else { 0 });
            match direction {
                Direction::ToDevice => (range, None, (addr, host, len), after),
                Direction::FromDevice => (range, None, (host, addr, len), after | TO_HOST),
            }
        }
    };
    let parts = iter::from_fn(move || {
        let (to, from, len) = copy;
        if len == 0 {
            return None;
        }
        // Streams, which may have to execute it, take no copy across allocations.
        let device = if flags & TO_HOST != 0 { from } else { to };
        let (unit, count) = part_of(to, from, range.pieces(device, len).next()?.1);
        let part = count << unit;
        copy = (to + part, from + part, len - part);
        let order = Order {
            to,
            from,
            flags: flags | u64::from(unit) << UNIT_SHIFT | count as u64,
            high: 0,
        };
        flags &= !AFTER;
        Some(order)
    });
    word.into_iter().chain(parts)
}

/// Returns the first part of a copy that is one order: the logarithm of its unit's bytes, which is
/// as long as both addresses are aligned, and the number of units.
fn part_of(to: usize, from: usize, len: usize) -> (u32, usize) {
    let best = (to ^ from).trailing_zeros().min(4);
    let unit = to.trailing_zeros().min(best).min(len.ilog2());
    let most = if unit == 4 { 256 } else { THREADS as usize };
    (unit, if unit == best { (len >> unit).min(most) } else { 1 })
}

impl Drop for ResidentKernel {
    /// Waits until it was idle for so long that it has ended. If it does not end, its memory is
    /// leaked, and its code.
    fn drop(&mut self) {
        let idle = |stream: &Stream| stream.is_idle() != Ok(false);
        if !wait_for(PATIENCE, || idle(&self.stream) && idle(&self.rescue)) {
            log::error!(target: MEM, "a kernel on {} does not end; it is not unloaded", self.context());
            std::mem::forget((Arc::clone(&self.page), Arc::clone(&self.module)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn parts_cut_no_aligned_word() {
        for to in 0x1000..0x1020_usize {
            for (from, len) in
                (0..32).flat_map(|from| (1..200_usize).map(move |len| (0x8000 + from, len)))
            {
                if (to ^ from) % (1 << len.ilog2().min(3)) != 0 {
                    continue;
                }
                let (mut at, mut words) = (0, Vec::new());
                while at < len {
                    let (unit, count) = part_of(to + at, from + at, len - at);
                    assert!(
                        count > 0 && (to + at) % (1 << unit) == 0 && (from + at) % (1 << unit) == 0
                    );
                    words
                        .extend((0..count).map(|unit_at| (to + at + (unit_at << unit), 1 << unit)));
                    at += count << unit;
                }
                assert_eq!(at, len, "{len} bytes from {from:#x} to {to:#x}");
                for width in [2, 4, 8] {
                    for word in
                        (to..to + len).filter(|at| at % width == 0 && at + width <= to + len)
                    {
                        let has =
                            |(at, len): &(usize, usize)| *at <= word && word + width <= at + len;
                        assert!(words.iter().any(has), "{width} bytes at {word:#x} of {len}");
                    }
                }
            }
        }
    }
}
