//! The memory that a PE has registered: its heap, chunk by chunk, and its local buffers; and how a
//! transfer is cut along their borders.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nvshmem_abi::c;

use crate::error::{Error, Result, error};
use crate::host::transport::{POISON, Transport};
use crate::memory::address::{BufferId, Place, Region, SymAddr};
use crate::memory::local::{Local, Mapping};
use crate::pe::bootstrap::Bootstrap;

const HANDLE: usize = c::NVT_MEM_HANDLE_SIZE as usize;

/// All memory of a PE that its transport knows.
///
/// # Threads
/// Any: transfers look chunks up while a user thread registers more.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) heap: Mapping,
    /// The heap's last chunk by its user's own address, where a user's buffer is mapped.
    pub(crate) again: Option<Mapping>,
    pub(crate) heap_bases: Vec<u64>,
    chunk_bytes: u64,
    pub(crate) me: u32,
    max_op_len: u64,
    chunks: RwLock<Vec<Handles>>,
    buffers: RwLock<Vec<Buffer>>,
}

/// 512-byte handles in a row: of every PE for a chunk of the heap, or one for a buffer.
///
/// They begin at an odd address, behind one byte more: NVSHMEM promises no alignment for them.
#[derive(Debug)]
struct Handles(Box<[u8]>);

#[derive(Debug)]
struct Buffer {
    memory: Mapping,
    skip: u64,
    len: u64,
    /// None for memory that is not registered, or not any more.
    handle: Option<Handles>,
}

/// A transfer, or the part of one, that touches one chunk on each side.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub(crate) pe: u32,
    pub(crate) remote: c::nvt_rma_memdesc,
    pub(crate) local: c::nvt_rma_memdesc,
    pub(crate) len: u64,
}

// SAFETY: the pointers are to memory and handles of this PE's regions, or are addresses in another
// PE. They mean the same on every thread.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Regions {
    pub(crate) fn new(
        heap: Mapping,
        again: Option<Mapping>,
        heap_bases: Vec<u64>,
        chunk_bytes: u64,
        me: u32,
        max_op_len: u64,
    ) -> Regions {
        let (chunks, buffers) = (RwLock::default(), RwLock::default());
        Regions { heap, again, heap_bases, chunk_bytes, me, max_op_len, chunks, buffers }
    }

    pub(crate) fn register_heap(
        &self,
        end: u64,
        transport: &Transport,
        bootstrap: &Bootstrap,
    ) -> Result<()> {
        let wanted = end.div_ceil(self.chunk_bytes).min(self.heap.len() / self.chunk_bytes);
        // Only this thread registers, so nobody adds a chunk between the two locks.
        let registered = read(&self.chunks).len() as u64;
        for chunk in registered..wanted {
            let memory = Local::of(&self.heap, chunk * self.chunk_bytes, self.chunk_bytes)?;
            let own = transport.get_mem_handle(memory.as_ptr(), memory.len(), false);
            // Everybody takes part in the exchange also when the registration failed here, else
            // the failure would show as a hang of the others.
            let part = own.as_ref().map_or([0; HANDLE], |handle| handle.bytes);
            let all = bootstrap.allgather(&part)?;
            own?;
            if let Some(pe) = all.chunks(HANDLE).position(|h| h.iter().all(|b| *b == 0)) {
                return Err(error!("plugin: PE {pe} has no handle for chunk {chunk} of the heap"));
            }
            write(&self.chunks).push(Handles::new(&all));
        }
        Ok(())
    }

    /// Ends all registrations: of the heap, then of the buffers. Returns the first failure.
    pub(crate) fn release(&self, transport: &Transport) -> Result<()> {
        let chunks = read(&self.chunks);
        let own = chunks.iter().map(|chunk| chunk.at(self.me as usize));
        let heap = own.map(|handle| transport.release_mem_handle(handle));
        let mut buffers = write(&self.buffers);
        let buffers = buffers.iter_mut().map(|buffer| buffer.release(transport));
        heap.chain(buffers).fold(Ok(()), Result::and)
    }

    pub(crate) fn add_buffer(
        &self,
        memory: Mapping,
        len: u64,
        skip: u64,
        transport: Option<&Transport>,
    ) -> Result<BufferId> {
        let start = Local::of(&memory, skip, len)?.as_ptr();
        let handle = transport.map(|transport| transport.get_mem_handle(start, len, true));
        let handle = handle.transpose()?.map(|handle| Handles::new(&handle.bytes));
        let buffer = Buffer { memory, skip, len, handle };
        let mut buffers = write(&self.buffers);
        buffers.push(buffer);
        Ok(BufferId(buffers.len() as u32 - 1))
    }

    pub(crate) fn release_buffer(&self, id: BufferId, transport: &Transport) -> Result<()> {
        let mut buffers = write(&self.buffers);
        buffers.get_mut(id.0 as usize).ok_or_else(|| no_buffer(id))?.release(transport)
    }

    /// The lifetime is that of all regions: a buffer's memory is never unmapped before.
    pub(crate) fn local(&self, place: Place, len: u64) -> Result<Local<'_>> {
        match place.region {
            Region::Heap => Local::of(&self.heap, place.offset, len),
            Region::Buffer(id) => {
                let buffers = read(&self.buffers);
                let buffer = buffers.get(id.0 as usize).ok_or_else(|| no_buffer(id))?;
                let whole = Local::of(&buffer.memory, buffer.skip, buffer.len)?;
                let part = whole.part(place.offset, len)?;
                // SAFETY: the mapping lives as long as `self`: buffers are only ever added, and
                // a Vec that grows moves the Mapping value, not the memory it stands for.
                Ok(unsafe { part.lengthen() })
            }
        }
    }

    /// A place in another PE's heap, with that PE's handle for its chunk, and how many bytes of
    /// the chunk follow.
    pub(crate) fn remote(&self, pe: u32, addr: SymAddr) -> Result<(c::nvt_rma_memdesc, u64)> {
        let (chunk, offset) = (addr.0 / self.chunk_bytes, addr.0 % self.chunk_bytes);
        let base = self.heap_bases.get(pe as usize).copied();
        let base = base.ok_or_else(|| error!("there is no PE {pe}"))?;
        let chunks = read(&self.chunks);
        let handles = chunks.get(chunk as usize);
        let handles = handles.ok_or_else(|| error!("{addr:?} is not registered"))?;
        let desc = c::nvt_rma_memdesc {
            ptr: std::ptr::without_provenance_mut((base + addr.0) as usize),
            offset,
            handle: handles.at(pe as usize),
        };
        Ok((desc, self.chunk_bytes - offset))
    }

    /// A place in this PE's memory as the local side of a transfer, and how many bytes of its
    /// chunk follow. `offset` is not initialised by NVSHMEM.
    fn local_side(&self, place: Place, len: u64) -> Result<(c::nvt_rma_memdesc, u64)> {
        let ptr = self.local(place, len)?.as_ptr().cast();
        let (handle, room) = match place.region {
            Region::Heap => {
                let (desc, room) = self.remote(self.me, SymAddr(place.offset))?;
                (desc.handle, room)
            }
            Region::Buffer(id) => {
                let buffers = read(&self.buffers);
                let handle = buffers[id.0 as usize].handle.as_ref();
                (handle.map_or(std::ptr::null_mut(), |handle| handle.at(0)), u64::MAX)
            }
        };
        Ok((c::nvt_rma_memdesc { ptr, offset: POISON, handle }, room))
    }

    /// Cuts a transfer at the borders of chunks on both sides and at the plugin's limit. One of no
    /// bytes is one piece of no bytes.
    pub(crate) fn cut(
        &self,
        pe: u32,
        remote: SymAddr,
        local: Place,
        len: u64,
    ) -> Result<Vec<Piece>> {
        let end = remote.0.checked_add(len).filter(|end| *end <= self.heap.len());
        if end.is_none() {
            return Err(error!("{len} bytes at {remote:?} of a heap of {}", self.heap.len()));
        }
        let (mut done, mut pieces) = (0, Vec::new());
        loop {
            let left = len - done;
            let (mut to, mut from) = (remote.plus(done), local.plus(done));
            if left == 0 {
                // The end of the last chunk belongs to no chunk.
                let last = self.heap.len() - 1;
                to.0 = to.0.min(last);
                if from.region == Region::Heap {
                    from.offset = from.offset.min(last);
                }
            }
            let (remote, remote_room) = self.remote(pe, to)?;
            let (local, local_room) = self.local_side(from, left)?;
            let piece = left.min(remote_room).min(local_room).min(self.max_op_len);
            done += piece;
            pieces.push(Piece { pe, remote, local, len: piece });
            if done == len {
                return Ok(pieces);
            }
        }
    }
}

impl Buffer {
    fn release(&mut self, transport: &Transport) -> Result<()> {
        let handle = self.handle.take();
        handle.map_or(Ok(()), |handle| transport.release_mem_handle(handle.at(0)))
    }
}

impl Handles {
    fn new(bytes: &[u8]) -> Handles {
        Handles([&[0], bytes].concat().into())
    }

    fn at(&self, index: usize) -> *mut c::nvt_mem_handle {
        // The index is below the number of handles kept: of PEs, or of pieces of the buffer, which
        // the callers have checked. Nobody writes there.
        self.0.as_ptr().wrapping_add(1 + index * HANDLE).cast_mut().cast()
    }
}

fn no_buffer(id: BufferId) -> Error {
    error!("there is no buffer {}", id.0)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
