//! Operations on a stream of CUDA: they are begun when the stream's earlier work is done, by a host
//! function in it that puts descriptors into a ring of their own.

use std::ffi::c_void;
use std::iter;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use channel_sys as c;

use crate::channel::Channel;
use crate::channel::error::ChannelError;
use crate::channel::regions::Registered;
use crate::channel::ring::descriptor::{Descriptor, Place, RegionIndex};
use crate::channel::ring::slot::{Published, Slot, lap};
use crate::channel::ring::{PublishedIn, Ring, RingMemory};
use cuda::{Context, Driver, run_in_stream};
use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;

/// Slots, as a logarithm: what streams have begun and the proxy thread has not taken.
const SLOTS_LOG2: u32 = 10;

/// Looks at what has not changed before a host function sleeps between two.
const LOOKS: u32 = 2000;

/// How long it sleeps then.
const PAUSE: Duration = Duration::from_micros(20);

/// A slot where a ring has to have it.
#[repr(C, align(32))]
#[derive(Debug, Default)]
struct Aligned(Slot);

/// The ring that host functions put into. It is in plain memory: no device reaches it.
#[derive(Debug)]
pub(crate) struct StreamRing {
    slots: Box<[Aligned]>,
    published: Published,
    /// Slots written. Held while one is.
    head: Mutex<u64>,
}

impl StreamRing {
    pub(crate) fn new() -> Arc<Self> {
        let slots = (0..1 << SLOTS_LOG2).map(|_| Aligned::default()).collect();
        Arc::new(Self { slots, published: Published::default(), head: Mutex::new(0) })
    }

    /// Its consumer.
    ///
    /// # Safety
    /// Called once, and this outlives it.
    pub(crate) unsafe fn consumer(&self) -> Result<Ring, ChannelError> {
        let memory = RingMemory {
            slots: NonNull::from(&self.slots[0].0),
            slots_log2: SLOTS_LOG2,
            published: NonNull::from(&self.published),
            published_in: PublishedIn::Host,
        };
        // SAFETY: memory of these sizes, zeroed; slots are written by `push` alone; the caller
        // promises the rest.
        Ok(unsafe { Ring::new(memory) }?)
    }

    /// Slots written by now.
    pub(crate) fn head(&self) -> u64 {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait that the channel has failed, where the proxy thread cannot.
    pub(crate) fn publish_failed(&self) {
        self.published.state.store(c::NLF_STATE_FAILED, Ordering::Release);
    }

    /// Waits until it is so, or the proxy thread takes nothing any more.
    fn wait(&self, mut is_so: impl FnMut(&Published) -> bool) -> bool {
        let mut looks = 0;
        while !is_so(&self.published) {
            if self.published.state.load(Ordering::Acquire) != c::NLF_STATE_RUNNING {
                return is_so(&self.published);
            }
            if looks < LOOKS {
                looks += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        true
    }

    /// Puts a descriptor in. Nothing, if the proxy thread takes nothing any more: the channel's
    /// error says why.
    fn push(&self, descriptor: &Descriptor) {
        let encoded = descriptor.encode();
        let slots = 1 + u64::from(encoded.second.is_some());
        let mut head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        let end = *head + slots;
        let has_room =
            |published: &Published| end - published.tail.load(Ordering::Acquire) <= 1 << SLOTS_LOG2;
        if !self.wait(has_room) {
            return;
        }
        for [q0, q1, q2, q3] in iter::once(encoded.first).chain(encoded.second) {
            let lap = lap(*head, SLOTS_LOG2);
            let slot = &self.slots[(*head & ((1 << SLOTS_LOG2) - 1)) as usize].0;
            slot.words[0].store(q0, Ordering::Relaxed);
            slot.words[2].store(q2, Ordering::Relaxed);
            slot.words[1].store(q1 | lap, Ordering::Release);
            slot.words[3].store(q3 | lap, Ordering::Release);
            *head += 1;
        }
    }

    /// Waits until what is in it now is delivered.
    fn quiet(&self) {
        let end = self.head();
        self.wait(|published| published.done.load(Ordering::Acquire) >= end);
    }
}

/// A signal behind a put: [`Channel::put_on_stream`].
#[derive(Clone, Copy, Debug)]
pub struct StreamSignal {
    /// The word, of symmetric memory of this PE: the same place at the peer is changed.
    pub word: *mut u64,
    /// What it is set to, or what is added.
    pub value: u64,
    /// `NLF_KIND_SET` or `NLF_KIND_ADD`.
    pub kind: u32,
}

impl Channel {
    /// Puts bytes, and signals behind them if a signal is given, when what is in the stream by now
    /// is done. What comes later in the stream does not wait for it, but for
    /// [`Channel::quiet_on_stream`]. Any thread may call it.
    ///
    /// # Errors
    /// There is no such memory or PE, the driver does not take it, or the stream is captured.
    ///
    /// # Safety
    /// The stream is one of the context that is current on this thread, or null for its default
    /// stream. The bytes stay what they are until they are delivered.
    pub unsafe fn put_on_stream(
        &self,
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
        signal: Option<StreamSignal>,
        pe: u32,
        stream: *mut c_void,
    ) -> Result<(), ChannelError> {
        if pe >= self.n_pes() {
            return Err(refused(format!("there is no PE {pe}")));
        }
        let Some(descriptor) = self.describe(dst, src, bytes, signal, Pe(pe))? else {
            return Ok(());
        };
        let ring = self.stream_ring()?;
        // SAFETY: the caller's promise.
        unsafe { self.in_stream(stream, move || ring.push(&descriptor)) }
    }

    /// Holds the stream up until what streams have put before is delivered, or the channel has
    /// failed, as [`Channel::error`] says. Any thread may call it.
    ///
    /// # Errors
    /// As [`Channel::put_on_stream`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn quiet_on_stream(&self, stream: *mut c_void) -> Result<(), ChannelError> {
        let ring = self.stream_ring()?;
        // SAFETY: the caller's promise.
        unsafe { self.in_stream(stream, move || ring.quiet()) }
    }

    /// # Safety
    /// As [`Channel::put_on_stream`].
    unsafe fn in_stream(
        &self,
        stream: *mut c_void,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), ChannelError> {
        let driver = Driver::of_process().map_err(|none| refused(none.to_string()))?;
        if Context::current(driver)?.is_none() {
            return Err(refused(String::from("no context is current on this thread")));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { run_in_stream(driver, stream, Box::new(run)) }?)
    }

    /// What is to be put in; nothing for what is no operation.
    fn describe(
        &self,
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
        signal: Option<StreamSignal>,
        pe: Pe,
    ) -> Result<Option<Descriptor>, ChannelError> {
        let serial = self.serial_here()?;
        let find = |addr: usize, len: usize, symmetric: bool| {
            place(&serial.regions, addr, len, symmetric).ok_or_else(|| {
                refused(format!(
                    "{len} bytes at {addr:#x} are not all in registered memory of the kind it takes"
                ))
            })
        };
        let signal = match signal {
            None => None,
            Some(StreamSignal { word, value, kind }) => {
                let op = match kind {
                    c::NLF_KIND_SET => AtomicOp::SignalSet,
                    c::NLF_KIND_ADD => AtomicOp::SignalAdd,
                    _ => return Err(refused(format!("a signal has no kind {kind}"))),
                };
                if word.addr() % 8 != 0 {
                    return Err(refused(format!("the word at {word:p} is not aligned")));
                }
                Some((find(word.addr(), 8, true)?, op, value))
            }
        };
        if bytes as u64 > u64::from(c::NLF_MAX_BYTES) {
            return Err(refused(format!("{bytes} bytes are too many")));
        }
        if bytes == 0 {
            return Ok(signal.map(|(dst, op, value)| {
                let op = if op == AtomicOp::SignalSet { AtomicOp::Set } else { AtomicOp::Add };
                let (width, compare, fetch) = (Width::Eight, 0, None);
                Descriptor::Atomic { pe, dst, width, op, value, compare, fetch }
            }));
        }
        let (dst, src) = (find(dst.addr(), bytes, true)?, find(src.addr(), bytes, false)?);
        let bytes = bytes as u32;
        Ok(Some(match signal {
            None => Descriptor::Put { pe, dst, src, bytes },
            Some((signal, op, value)) => {
                Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value }
            }
        }))
    }
}

/// Where bytes are, as descriptors have it.
fn place(regions: &[Registered], addr: usize, len: usize, symmetric: bool) -> Option<Place> {
    let holds = |region: &&Registered| {
        let is_kind = region.symmetric || !symmetric;
        let offset = addr.checked_sub(region.base);
        is_kind && offset.is_some_and(|offset| offset < region.len && len <= region.len - offset)
    };
    let region = regions.iter().find(holds)?;
    Place::new(RegionIndex::new(region.index)?, (addr - region.base) as u64)
}

fn refused(why: String) -> ChannelError {
    ChannelError::OnStream { why }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::channel::api::tests::alone_in_its_job;
    use crate::channel::ring::State;
    use engine::wire::handle::HANDLE_BYTES;

    const ROOM: u64 = 1 << SLOTS_LOG2;

    fn at(region: u8, offset: u64) -> Place {
        Place::new(RegionIndex::new(region).unwrap(), offset).unwrap()
    }

    /// One of two slots for each number that 3 divides, else of one.
    fn numbered(number: u32) -> Descriptor {
        let value = if number % 3 == 0 { u64::MAX } else { number.into() };
        Descriptor::PutValue { pe: Pe(number), dst: at(1, 8), bytes: 8, value }
    }

    /// The ring goes round several times; the thread that pushes waits for room.
    #[test]
    fn what_is_pushed_is_taken_in_order_and_waits_for_room_and_for_delivery() {
        const COUNT: u32 = 3000;
        let ring = StreamRing::new();
        // SAFETY: once, and the ring stays longer.
        let mut consumer = unsafe { ring.consumer() }.unwrap();
        let pushes = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            (0..COUNT).for_each(|number| pushes.push(&numbered(number)));
            pushes.quiet();
            pushes.published.done.load(Ordering::Acquire)
        });
        let mut next = 0;
        while next < COUNT {
            while !consumer.has_next() {
                thread::yield_now();
            }
            while let Some(taken) = consumer.take() {
                assert_eq!(taken, Ok(numbered(next)));
                next += 1;
            }
            consumer.publish_tail();
        }
        let end = u64::from(COUNT + COUNT / 3);
        assert_eq!((consumer.taken(), ring.head()), (end, end));
        consumer.publish_done(end - 1);
        consumer.publish_done(end);
        assert_eq!(thread.join().unwrap(), end, "quiet is what is delivered");
    }

    #[test]
    fn a_full_ring_is_full_to_the_last_slot_and_nobody_waits_for_a_thread_that_takes_nothing() {
        let ring = StreamRing::new();
        // SAFETY: once, and the ring stays longer.
        let mut consumer = unsafe { ring.consumer() }.unwrap();
        (0..ROOM).for_each(|_| ring.push(&numbered(1)));
        assert_eq!(ring.head(), ROOM);
        consumer.publish_state(State::Stopped);
        ring.push(&numbered(2));
        assert_eq!(ring.head(), ROOM, "there is no room, and nobody makes any");
        ring.quiet();
        assert!(!ring.wait(|_| false) && ring.wait(|_| true));
        consumer.publish_state(State::Running);
        ring.publish_failed();
        assert!(!ring.wait(|_| false), "nor after a failure");
    }

    #[test]
    fn a_wait_goes_on_while_the_thread_runs_and_ends_with_what_it_is_for() {
        let ring = StreamRing::new();
        let mut looks = 0;
        let waited = ring.wait(|_| {
            looks += 1;
            looks > LOOKS + 10
        });
        assert!(waited);
    }

    #[test]
    fn bytes_have_a_place_where_all_of_them_are_in_a_region_of_their_kind() {
        let region = |index, base, symmetric| {
            Registered::new(index, (base, 0x100), symmetric, [0; HANDLE_BYTES], None)
        };
        let regions = [region(3, 0x2000, false), region(5, 0x1000, true)];
        for (addr, len, symmetric, found) in [
            (0x1000, 0x100, true, Some(at(5, 0))),
            (0x1000, 0x100, false, Some(at(5, 0))),
            (0x10f8, 8, true, Some(at(5, 0xf8))),
            (0x10f9, 8, true, None),
            (0x1000, 0x101, true, None),
            (0x0fff, 8, true, None),
            (0x1100, 0, true, None),
            (0x10ff, 0, true, Some(at(5, 0xff))),
            (0x2008, 8, false, Some(at(3, 8))),
            (0x2008, 8, true, None),
            (0x20ff, 1, false, Some(at(3, 0xff))),
            (0x1008, usize::MAX, true, None),
        ] {
            assert_eq!(place(&regions, addr, len, symmetric), found, "{len} at {addr:#x}");
        }
    }

    /// What a stream is asked for is described before anything is put into it.
    #[test]
    fn operations_on_streams_are_described_as_kernels_would() {
        let channel = alone_in_its_job();
        let heap = channel.allocate_symmetric(4096).unwrap();
        let word = heap.wrapping_add(64).cast::<u64>();
        let describe = |bytes, signal: Option<(*mut u64, u32)>| {
            let signal = signal.map(|(word, kind)| StreamSignal { word, value: 9, kind });
            channel.describe(heap.wrapping_add(8), heap, bytes, signal, Pe(0))
        };
        let (set, add) = (c::NLF_KIND_SET, c::NLF_KIND_ADD);
        for (kind, with_bytes, without) in
            [(set, AtomicOp::SignalSet, AtomicOp::Set), (add, AtomicOp::SignalAdd, AtomicOp::Add)]
        {
            match describe(16, Some((word, kind))).unwrap() {
                Some(Descriptor::PutSignal { bytes, op, value, signal, dst, src, .. }) => {
                    assert_eq!((bytes, op, value), (16, with_bytes, 9));
                    assert_eq!((dst.offset(), src.offset(), signal.offset()), (8, 0, 64));
                }
                other => panic!("{other:?}"),
            }
            match describe(0, Some((word, kind))).unwrap() {
                Some(Descriptor::Atomic { op, value, dst, fetch: None, .. }) => {
                    assert_eq!((op, value, dst.offset()), (without, 9, 64));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(describe(16, None), Ok(Some(Descriptor::Put { bytes: 16, .. }))));
        assert!(matches!(describe(0, None), Ok(None)));
        let odd = heap.wrapping_add(68).cast::<u64>();
        let most = c::NLF_MAX_BYTES as usize;
        for (bytes, signal, why) in [
            (8, Some((word, 2)), "a signal has no kind 2"),
            (8, Some((odd, set)), "is not aligned"),
            (8, Some((heap.wrapping_add(4096).cast(), set)), "are not all in registered memory"),
            (4096, None, "are not all in registered memory"),
            (most, None, "are not all in registered memory"),
            (most + 1, None, "are too many"),
            (most + 2, None, "are too many"),
        ] {
            let refused = describe(bytes, signal).unwrap_err().to_string();
            assert!(refused.contains(why), "{bytes} bytes: {refused}");
        }
        // SAFETY: refused, as there is no such PE.
        let refused = unsafe {
            channel
                .put_on_stream(heap, heap, 8, None, 1, std::ptr::null_mut())
                .unwrap_err()
                .to_string()
        };
        assert!(refused.contains("there is no PE 1"), "{refused}");
    }
}
