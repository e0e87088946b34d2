//! The wire: what NICs of this process have under way, and its delivery.
//!
//! An operation is cut into packets. Which packet goes next, and which completion, is drawn within
//! a window. One lock holds all of it: a poll that finds it taken leaves the work to who has it.

use std::collections::{HashMap, VecDeque};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::peers::Peers;
use super::random::Random;
use crate::config::Config;
use crate::shared::Mapping;
use crate::shared::completions::{Completion, CompletionQueue};
use crate::shared::nic::{Gid, NO_AH, NicState, QpId, Region};
use crate::shared::posted::Write;
use crate::shared::receives::Receive;
use crate::verbs::{
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, Status,
};

const WINDOW: usize = 64;
const PER_POLL: usize = 16;
/// How long the device's thread leaves work to those who poll.
const PATIENCE: Duration = Duration::from_micros(200);
const NOT_READY: Duration = Duration::from_micros(50);
const FOR_EVER: u8 = 7;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
}

/// The data of an operation in its process.
#[derive(Debug)]
pub(crate) enum Data {
    /// It was copied when it was posted.
    Inline(Vec<u8>),
    /// Address and length of each part.
    Buffers(Vec<(u64, u64)>),
}

#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) nic: Arc<Mapping<NicState>>,
    pub(crate) gid: Gid,
    pub(crate) qp: QpId,
    pub(crate) completions: Arc<Mapping<CompletionQueue>>,
    pub(crate) target: Gid,
    pub(crate) target_qp: u32,
    pub(crate) target_qkey: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) immediate: Option<u32>,
    pub(crate) data: Data,
    pub(crate) of_device: bool,
    pub(crate) bytes: u64,
    pub(crate) tries: u8,
    /// What was wrong with it when it was posted.
    pub(crate) status: Status,
}

#[derive(Debug)]
struct UnderWay {
    operation: Operation,
    packets_left: usize,
    /// The packet that takes a receive is sent when the data is there.
    notice_due: bool,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    operation: usize,
    offset: u64,
    bytes: u64,
    notice: bool,
    tries: u8,
    not_before: Option<Instant>,
}

enum Outcome {
    Delivered,
    NotReady,
    Failed(Status),
}

#[derive(Debug)]
pub(crate) struct Wire {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug)]
struct State {
    random: Random,
    mtu: u64,
    operations: Vec<Option<UnderWay>>,
    free: Vec<usize>,
    packets: VecDeque<Packet>,
    done: Vec<(Arc<Mapping<CompletionQueue>>, Completion)>,
    peers: Peers,
    thread_waits: bool,
    /// Queue pairs that a message without a receive holds up, and until when. None: it holds up
    /// nothing else.
    held: Option<HashMap<(Gid, QpId), Instant>>,
}

impl Wire {
    pub(crate) fn get(config: &'static Config) -> &'static Self {
        static WIRE: OnceLock<Wire> = OnceLock::new();
        WIRE.get_or_init(|| {
            let spawned = thread::Builder::new()
                .name(String::from("efa-lab"))
                .spawn(move || Self::get(config).serve());
            spawned.expect("the device needs a thread");
            let seed = config.seed ^ u64::from(config.host) << 32;
            Self {
                state: Mutex::new(State {
                    random: Random::new(seed),
                    mtu: u64::from(config.persona.mtu),
                    operations: Vec::new(),
                    free: Vec::new(),
                    packets: VecDeque::new(),
                    done: Vec::new(),
                    peers: Peers::new(config.dir.clone()),
                    thread_waits: false,
                    held: config.faults.holds_up().then(HashMap::new),
                }),
                work: Condvar::new(),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, operations: impl Iterator<Item = Operation>) {
        let mut state = self.lock();
        for operation in operations {
            state.add(operation);
        }
        if state.thread_waits {
            self.work.notify_one();
        }
    }

    /// Does some of the work, unless another thread is at it.
    pub(crate) fn poll(&self) {
        match self.state.try_lock() {
            Ok(mut state) => state.deliver(PER_POLL),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().deliver(PER_POLL),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }

    pub(crate) fn flush(&self, gid: Gid, qp: QpId) {
        let mut state = self.lock();
        let State { operations, free, packets, done, .. } = &mut *state;
        let is_of =
            |under_way: &UnderWay| under_way.operation.gid == gid && under_way.operation.qp == qp;
        for (number, place) in operations.iter_mut().enumerate() {
            if place.as_ref().is_some_and(is_of) {
                *place = None;
                free.push(number);
            }
        }
        packets.retain(|packet| operations[packet.operation].is_some());
        done.retain(|(_, completion)| completion.qp != qp || completion.source != gid);
    }

    pub(crate) fn flush_writes(&self, config: &Config) {
        let mut state = self.lock();
        for nic in 0..config.nics {
            push_out(&mut state.peers, Gid::of(config.host, nic));
        }
    }

    /// The device's thread: delivers what nobody polls for.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            state.thread_waits = true;
            while state.packets.is_empty() && state.done.is_empty() {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.thread_waits = false;
            drop(state);
            thread::sleep(PATIENCE);
            state = self.lock();
            state.deliver(WINDOW);
        }
    }
}

impl State {
    fn add(&mut self, operation: Operation) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        let packet = |offset, bytes, notice| Packet {
            operation: number,
            offset,
            bytes,
            notice,
            tries: 0,
            not_before: None,
        };
        let first = self.packets.len();
        let bytes = operation.bytes;
        match operation.kind {
            Kind::Send => self.packets.push_back(packet(0, bytes, true)),
            Kind::Write | Kind::Read => {
                let mut offset = 0;
                while offset < bytes || offset == 0 {
                    let some = self.mtu.min(bytes - offset);
                    self.packets.push_back(packet(offset, some, false));
                    offset += some.max(1);
                }
            }
        }
        let packets_left = self.packets.len() - first;
        let notice_due = operation.kind == Kind::Write && operation.immediate.is_some();
        self.operations[number] = Some(UnderWay { operation, packets_left, notice_due });
    }

    /// Delivers at most so many packets, and most completions that are due.
    fn deliver(&mut self, most: usize) {
        let mut delivered = 0;
        let mut early = 0;
        while delivered < most && early < self.packets.len() {
            let at = self.random.below(self.packets.len().min(WINDOW));
            let Some(mut packet) = self.packets.swap_remove_front(at) else { break };
            let held = self.held.as_ref().zip(self.operations[packet.operation].as_ref());
            let held = held.and_then(|(held, UnderWay { operation, .. })| {
                held.get(&(operation.gid, operation.qp)).copied()
            });
            if packet.not_before.max(held).is_some_and(|due| Instant::now() < due) {
                self.packets.push_back(packet);
                early += 1;
                continue;
            }
            delivered += 1;
            let Some(under_way) = &self.operations[packet.operation] else { continue };
            let outcome = match under_way.operation.status {
                Status::Ok => attempt(&under_way.operation, &packet, &mut self.peers),
                failed => Outcome::Failed(failed),
            };
            match outcome {
                Outcome::Delivered => self.packet_ends(&packet, Status::Ok),
                Outcome::Failed(status) => self.packet_ends(&packet, status),
                Outcome::NotReady => {
                    let limit = under_way.operation.tries;
                    count(&under_way.operation.nic.counters.not_ready, 1);
                    if limit != FOR_EVER && packet.tries >= limit {
                        self.packet_ends(&packet, Status::NoReceive);
                    } else {
                        let due = Instant::now() + NOT_READY;
                        if let Some(held) = &mut self.held {
                            held.insert((under_way.operation.gid, under_way.operation.qp), due);
                        }
                        packet.tries = packet.tries.saturating_add(1);
                        packet.not_before = Some(due);
                        self.packets.push_back(packet);
                        early += 1;
                    }
                }
            }
        }
        while !self.done.is_empty() {
            let at = self.random.below(self.done.len());
            let (queue, completion) = self.done.swap_remove(at);
            queue.push(&completion);
            // The rest comes later, perhaps behind what is done by then.
            if self.random.below(4) == 0 {
                break;
            }
        }
    }

    fn packet_ends(&mut self, packet: &Packet, status: Status) {
        let Some(under_way) = &mut self.operations[packet.operation] else { return };
        under_way.packets_left -= 1;
        let operation = &mut under_way.operation;
        if operation.status == Status::Ok {
            operation.status = status;
        }
        if under_way.packets_left > 0 {
            return;
        }
        if under_way.notice_due && operation.status == Status::Ok {
            under_way.notice_due = false;
            under_way.packets_left = 1;
            let notice = Packet { offset: 0, bytes: 0, notice: true, ..*packet };
            self.packets.push_back(notice);
            return;
        }
        let counters = &operation.nic.counters;
        match operation.kind {
            Kind::Send => count(&counters.sends, 1),
            Kind::Write => count(&counters.writes, 1),
            Kind::Read => count(&counters.reads, 1),
        }
        match operation.status {
            Status::Ok => count(&counters.bytes, operation.bytes),
            _ => count(&counters.errors, 1),
        }
        let completion = Completion {
            qp: operation.qp,
            id: operation.id,
            status: operation.status,
            // As libefa has it: reads complete as sends do.
            opcode: match operation.kind {
                Kind::Write => IBV_WC_RDMA_WRITE,
                Kind::Send | Kind::Read => IBV_WC_SEND,
            },
            bytes: operation.bytes as u32,
            immediate: None,
            unsolicited: false,
            source: operation.gid,
            source_qp: operation.qp.number,
            source_ah: NO_AH,
        };
        self.done.push((Arc::clone(&operation.completions), completion));
        self.operations[packet.operation] = None;
        self.free.push(packet.operation);
    }
}

fn count(counter: &std::sync::atomic::AtomicU64, by: u64) {
    counter.fetch_add(by, std::sync::atomic::Ordering::Relaxed);
}

fn attempt(operation: &Operation, packet: &Packet, peers: &mut Peers) -> Outcome {
    if operation.nic.is_dead() {
        return Outcome::Failed(Status::Flushed);
    }
    let Ok(target) = peers.nic(operation.target) else {
        return Outcome::Failed(Status::Unreachable);
    };
    if target.is_dead() {
        return Outcome::Failed(Status::Unresponsive);
    }
    let Some(qp) = target.qp(operation.target_qp, operation.target_qkey) else {
        return Outcome::Failed(Status::NoQueuePair);
    };
    let domain = target.domain_of(qp);
    let known_as = target.ah(domain, operation.gid);
    if operation.kind != Kind::Send && known_as.is_none() {
        return Outcome::Failed(Status::UnknownPeer);
    }
    if packet.notice {
        return notify(operation, qp, known_as.unwrap_or(NO_AH), peers);
    }
    let right = match operation.kind {
        Kind::Read => IBV_ACCESS_REMOTE_READ,
        _ => IBV_ACCESS_REMOTE_WRITE,
    };
    let fits = |region: &Region| region.access & right != 0 && region.domain == domain;
    let region = target.mr(operation.key).filter(fits);
    // All of the operation has to be in bounds, before any of it is executed.
    let found =
        region.and_then(|region| Some((region, region.find(operation.address, operation.bytes)?)));
    let Some((region, address)) = found else {
        return Outcome::Failed(Status::RemoteAddress);
    };
    let remote = [(address + packet.offset, packet.bytes)];
    let Packet { offset, bytes, .. } = *packet;
    let (data, owner) = (&operation.data, region.process);
    let writes = operation.kind != Kind::Read;
    // A NIC's read of memory waits for what it has written there; what others have, it may pass.
    let (reader, of_device) = if writes {
        (operation.gid, operation.of_device)
    } else {
        (operation.target, region.device)
    };
    if of_device {
        push_out(peers, reader);
    }
    let (writer, to_device) = if writes {
        (operation.target, region.device)
    } else {
        (operation.gid, operation.of_device)
    };
    let moved = match peers.posted(writer) {
        Ok(posted) if to_device && bytes > 0 => {
            let mut copy = vec![0; bytes as usize];
            let here = [(copy.as_mut_ptr() as u64, bytes)];
            let parts = data.part(offset, bytes);
            let (fetched, process, to) = if writes {
                (exchange(process::id(), &here, &parts, false), owner, remote.to_vec())
            } else {
                (exchange(owner, &here, &remote, false), process::id(), parts)
            };
            fetched.map(|()| {
                let mut rest = copy.as_slice();
                for (address, length) in to {
                    let (data, others) = rest.split_at(length as usize);
                    posted.push(&Write { process, address, data: data.to_vec() }, carry_out);
                    rest = others;
                }
            })
        }
        _ => exchange(owner, &data.part(offset, bytes), &remote, writes),
    };
    match moved {
        Ok(()) => Outcome::Delivered,
        Err(status) => Outcome::Failed(status),
    }
}

fn push_out(peers: &mut Peers, nic: Gid) {
    if let Ok(posted) = peers.posted(nic) {
        posted.flush(carry_out);
    }
}

fn carry_out(write: Write) {
    let Write { process, address, data } = write;
    let bytes = data.len() as u64;
    let _ = exchange(process, &[(data.as_ptr() as u64, bytes)], &[(address, bytes)], true);
}

fn notify(operation: &Operation, qp: QpId, known_as: u32, peers: &mut Peers) -> Outcome {
    use std::sync::atomic::Ordering::Relaxed;
    let Ok(queue) = peers.receives(operation.target, qp) else {
        return Outcome::Failed(Status::NoQueuePair);
    };
    let (owner, number) = (queue.process.load(Relaxed), queue.completions.load(Relaxed));
    let Ok(completions) = peers.completions(owner, number) else {
        return Outcome::Failed(Status::NoQueuePair);
    };
    let is_message = operation.kind == Kind::Send;
    let unsolicited = !is_message && queue.unsolicited.load(Relaxed) != 0;
    let receive = if unsolicited {
        Receive::default()
    } else {
        match queue.take() {
            Some(receive) => receive,
            None => return Outcome::NotReady,
        }
    };
    let mut status = Status::Ok;
    if is_message {
        let room: u64 = receive.buffers.iter().map(|buffer| buffer.1).sum();
        status = if operation.bytes > room {
            Status::RemoteLength
        } else {
            if operation.of_device {
                push_out(peers, operation.gid);
            }
            let data = operation.data.part(0, operation.bytes);
            let room = within(&receive.buffers, 0, operation.bytes);
            match exchange(owner, &data, &room, true) {
                Ok(()) => Status::Ok,
                Err(status) => status,
            }
        };
    }
    completions.push(&Completion {
        qp,
        id: receive.id,
        status: if status == Status::RemoteLength { Status::LocalLength } else { status },
        opcode: if is_message { IBV_WC_RECV } else { IBV_WC_RECV_RDMA_WITH_IMM },
        bytes: operation.bytes as u32,
        immediate: operation.immediate,
        unsolicited,
        source: operation.gid,
        source_qp: operation.qp.number,
        source_ah: known_as,
    });
    match status {
        Status::Ok => Outcome::Delivered,
        failed => Outcome::Failed(failed),
    }
}

impl Data {
    /// Address and length of each part of `bytes` from an offset on.
    fn part(&self, offset: u64, bytes: u64) -> Vec<(u64, u64)> {
        match self {
            Self::Inline(copy) => vec![(copy.as_ptr() as u64 + offset, bytes)],
            Self::Buffers(buffers) => within(buffers, offset, bytes),
        }
    }
}

/// The parts of buffers that are `bytes` from an offset on.
fn within(buffers: &[(u64, u64)], offset: u64, bytes: u64) -> Vec<(u64, u64)> {
    let (mut skip, mut left) = (offset, bytes);
    let mut parts = Vec::new();
    for &(address, length) in buffers {
        let here = length.saturating_sub(skip).min(left);
        if here > 0 {
            parts.push((address + skip, here));
        }
        skip = skip.saturating_sub(length);
        left -= here;
    }
    parts
}

/// Copies between this process and another, as many bytes on both sides.
fn exchange(
    other: u32,
    ours: &[(u64, u64)],
    theirs: &[(u64, u64)],
    writes: bool,
) -> Result<(), Status> {
    let bytes: u64 = theirs.iter().map(|part| part.1).sum();
    if bytes == 0 {
        return Ok(());
    }
    let vector = |parts: &[(u64, u64)]| -> Vec<libc::iovec> {
        let part = |&(address, length): &(u64, u64)| libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: length as usize,
        };
        parts.iter().map(part).collect()
    };
    let (ours, theirs) = (vector(ours), vector(theirs));
    let (here, there) = (ours.len() as libc::c_ulong, theirs.len() as libc::c_ulong);
    let pid = other as libc::pid_t;
    // SAFETY: the kernel checks both sides, as a NIC's tables do; memory that is not there is an
    // error of the call. What the memory is used for is between those who registered it and those
    // who got its key.
    let moved = unsafe {
        if writes {
            libc::process_vm_writev(pid, ours.as_ptr(), here, theirs.as_ptr(), there, 0)
        } else {
            libc::process_vm_readv(pid, ours.as_ptr(), here, theirs.as_ptr(), there, 0)
        }
    };
    if moved == bytes as isize {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ESRCH) => Err(Status::Unresponsive),
        Some(libc::EPERM | libc::ENOSYS) => {
            eprintln!("efa-lab: this machine lets no process reach another's memory: {error}");
            process::abort()
        }
        _ => Err(Status::RemoteAddress),
    }
}
