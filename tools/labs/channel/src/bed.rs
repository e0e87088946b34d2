//! A context on a machine: rings, regions, heaps of all PEs, and room for what kernels tell.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use channel_producer::{AREAS, Form, KernelArgs};
use channel_sys as c;
use nvshmem_transport_libfabric::channel::ring::{PublishedIn, Ring, RingMemory, State};

use crate::image::{AREA, Image, PES};
use crate::machines::machine::{Machine, MachineError, Memory};
use crate::machines::reach::{Reach, copy_near};

pub(crate) const HEAP: usize = AREAS * AREA as usize * 8;

pub(crate) const THREADS: usize = 4096;

/// Index of the region that is memory of PE 0 alone, and of the symmetric one.
pub(crate) const LOCAL: usize = 0;
pub(crate) const SYMMETRIC: usize = 1;

/// Barriers that PE 0 has passed before, so that the count wraps soon.
pub(crate) const FIRST_BARRIER: u64 = u64::MAX - 4;

/// Where kernels are told that the heap is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeapAt {
    /// In memory of the host.
    Host,
    /// In memory of the device: the CPU stands in for peers by the device's copies.
    Device,
    /// Somewhere, with room for this many bytes: nobody follows addresses there.
    Nowhere(u64),
}

const NOWHERE: u64 = 1 << 44;

/// A context, and what it is made of.
#[derive(Debug)]
pub(crate) struct Bed<'m> {
    context: Memory,
    _rings: Memory,
    _regions: Memory,
    _producers: Memory,
    _claims: Memory,
    _proxy_error: Memory,
    _slots: Vec<Memory>,
    published: Memory,
    error: Memory,
    /// Of each PE: the first is in memory that kernels have.
    heaps: Vec<Memory>,
    /// What is the library's own, of each PE.
    own: Vec<Memory>,
    _own_producers: Memory,
    status: Memory,
    out: Memory,
    heap_at: u64,
    /// All of it, as the CPU reads and writes it.
    pub(crate) reach: Reach<'m>,
    machine: &'m dyn Machine,
    is_far: bool,
    pub(crate) rings: Vec<Ring>,
}

impl<'m> Bed<'m> {
    pub(crate) fn new(
        machine: &'m dyn Machine,
        n_rings: u32,
        slots_log2: u32,
        spins: u64,
        heap_at: HeapAt,
    ) -> Result<Self, MachineError> {
        let count = n_rings as usize;
        let slots: Vec<Memory> =
            (0..count).map(|_| machine.shared(32 << slots_log2)).collect::<Result<_, _>>()?;
        let published = machine.shared(64 * count)?;
        let producers = machine.fast(&vec![0; size_of::<c::nlf_producers>() * count])?;
        let error = machine.shared(size_of::<c::nlf_error>())?;
        let proxy_error = machine.shared(size_of::<c::nlf_error>())?;
        let claims = machine.fast(&0_u32.to_ne_bytes())?;
        let is_far = heap_at == HeapAt::Device;
        let heap = |pe: u32| match pe {
            0 if is_far => machine.device(HEAP),
            _ => machine.shared(HEAP),
        };
        let heaps: Vec<Memory> = (0..PES).map(heap).collect::<Result<_, _>>()?;
        let far = if is_far { heaps[0].addr..heaps[0].addr + HEAP } else { 0..0 };
        let own = (0..PES).map(|_| machine.shared(size_of::<c::nlf_own>()));
        let own: Vec<Memory> = own.collect::<Result<_, _>>()?;
        for word in 0..c::NLF_BARRIER_ROUNDS as usize {
            // SAFETY: a word of memory that nobody else knows yet.
            unsafe { (own[0].addr as *mut u64).add(word).write(FIRST_BARRIER) };
        }
        let mut counts = vec![0; size_of::<c::nlf_own_producers>()];
        counts[..8].copy_from_slice(&FIRST_BARRIER.to_le_bytes());
        let own_producers = machine.fast(&counts)?;
        let status = machine.shared(4 * THREADS)?;
        let out = machine.shared(8 * THREADS)?;
        let (heap_at, heap_bytes) = match heap_at {
            HeapAt::Host | HeapAt::Device => (heaps[0].addr as u64, HEAP as u64),
            HeapAt::Nowhere(bytes) => (NOWHERE, bytes),
        };

        let rings: Vec<c::nlf_ring> = (0..count)
            .map(|ring| c::nlf_ring {
                slots: slots[ring].addr as *mut _,
                producers: (producers.addr + ring * size_of::<c::nlf_producers>()) as *mut _,
                published: (published.addr + ring * 64) as *const _,
            })
            .collect();
        let regions = [
            c::nlf_region { base: out.addr as u64, size: out.len as u64 },
            c::nlf_region { base: heap_at, size: heap_bytes | c::NLF_REGION_SYMMETRIC },
        ];
        let rings_memory = machine.fast(bytes_of(&rings))?;
        let regions_memory = machine.fast(bytes_of(&regions))?;
        let context = machine.fast(bytes_of(&[c::nlf_context {
            version: c::NLF_RING_VERSION,
            me: 0,
            n_pes: PES,
            n_rings,
            slots_log2,
            n_regions: regions.len() as u32,
            spins,
            rings: rings_memory.addr as *const _,
            regions: regions_memory.addr as *const _,
            error: error.addr as *mut _,
            error_claims: claims.addr as *mut _,
            proxy_error: proxy_error.addr as *const _,
            own: own[0].addr as *const _,
            own_producers: own_producers.addr as *mut _,
        }]))?;
        let consumers = (0..count).map(|ring| {
            let memory = RingMemory {
                slots: pointer(slots[ring].addr)?,
                slots_log2,
                published: pointer(published.addr + ring * 64)?,
                published_in: PublishedIn::Host,
            };
            // SAFETY: the memory is zeroed, of that size and aligned to a page; the bed keeps it,
            // and makes one consumer of each ring. Producers are the device API's.
            unsafe { Ring::new(memory) }.map_err(|error| MachineError(error.to_string()))
        });
        let consumers = consumers.collect::<Result<_, _>>()?;
        Ok(Self {
            context,
            _rings: rings_memory,
            _regions: regions_memory,
            _producers: producers,
            _claims: claims,
            _proxy_error: proxy_error,
            _slots: slots,
            published,
            error,
            heaps,
            own,
            _own_producers: own_producers,
            status,
            out,
            heap_at,
            reach: Reach::new(machine, far),
            machine,
            is_far,
            rings: consumers,
        })
    }

    pub(crate) fn args(&self, form: Form, rounds: u64, bytes: u64, flags: u32) -> KernelArgs {
        KernelArgs {
            ctx: self.context.addr as *const _,
            heap: self.heap_at as *mut u64,
            status: self.status.addr as *mut i32,
            out: self.out.addr as *mut u64,
            area: AREA,
            rounds,
            bytes,
            form,
            flags,
        }
    }

    pub(crate) fn heap(&self, pe: u32) -> usize {
        self.heaps[pe as usize].addr
    }

    pub(crate) fn region(&self, index: usize, pe: u32) -> Option<(usize, u64)> {
        match index {
            LOCAL if pe == 0 => Some((self.out.addr, self.out.len as u64)),
            SYMMETRIC => Some((self.heap(pe), HEAP as u64)),
            _ if index == c::NLF_OWN_REGION as usize => {
                let own = &self.own[pe as usize];
                Some((own.addr, own.len as u64))
            }
            _ => None,
        }
    }

    /// A word of PE 0's own memory of the library, by which a round of a barrier is told.
    pub(crate) fn arrived(&self, round: u64) -> &AtomicU64 {
        assert!(round < u64::from(c::NLF_BARRIER_ROUNDS));
        // SAFETY: a word of the memory, which lives as long as this and is changed atomically.
        unsafe { AtomicU64::from_ptr((self.own[0].addr as *mut u64).add(round as usize)) }
    }

    pub(crate) fn set(&self, image: &Image) -> Result<(), MachineError> {
        for pe in 0..PES {
            let (bytes, to) = (image.heap(pe), self.heap(pe));
            if pe == 0 && self.is_far {
                self.machine.write(to, &bytes)?;
            } else {
                // SAFETY: a heap, of the length of every image's.
                unsafe { copy_near(bytes.as_ptr() as usize, to, HEAP) };
            }
        }
        Ok(())
    }

    pub(crate) fn image(&self, threads: u64) -> Result<Image, MachineError> {
        let mut image = Image::default();
        let mut bytes = vec![0; HEAP];
        for pe in 0..PES {
            if pe == 0 && self.is_far {
                self.machine.read(self.heap(pe), &mut bytes)?;
            } else {
                // SAFETY: as in `set`.
                unsafe { copy_near(self.heap(pe), bytes.as_mut_ptr() as usize, HEAP) };
            }
            image.set_heap(pe, &bytes);
        }
        image.out = (0..threads).map(|thread| self.out(thread)).collect();
        image.error = self.error();
        Ok(image)
    }

    pub(crate) fn out(&self, thread: u64) -> u64 {
        assert!((thread as usize) < THREADS);
        // SAFETY: within the array.
        unsafe { ((self.out.addr + 8 * thread as usize) as *const u64).read_volatile() }
    }

    pub(crate) fn status(&self, thread: u64) -> i32 {
        assert!((thread as usize) < THREADS);
        // SAFETY: within the array.
        unsafe { ((self.status.addr + 4 * thread as usize) as *const i32).read_volatile() }
    }

    pub(crate) fn error(&self) -> c::nlf_error {
        // SAFETY: the memory is an `nlf_error`.
        unsafe { (self.error.addr as *const c::nlf_error).read_volatile() }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        let error = self.error.addr as *mut c::nlf_error;
        // SAFETY: the memory is an `nlf_error`, of which producers change this word atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*error).abandoned) }.load(Ordering::Acquire) != 0
    }

    pub(crate) fn publish_state(&mut self, state: State) {
        debug_assert!(self.published.len >= 64 * self.rings.len());
        for ring in &mut self.rings {
            ring.publish_state(state);
        }
    }
}

fn pointer<T>(addr: usize) -> Result<NonNull<T>, MachineError> {
    NonNull::new(addr as *mut T).ok_or_else(|| MachineError(String::from("memory at zero")))
}

fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: the structures of the header have no padding that is not a field; of those that are
    // made here, every byte is set.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
