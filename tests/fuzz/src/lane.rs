//! A lane on the scripted fake, with canaries around all memory: arbitrary bytes come in as
//! messages with the job's cookie, and well-formed answers that nobody has asked for.
//!
//! PE 0 has the lane. PE 1 and 2 have memory and no lane: what they say is what the input says.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use engine::Watchdog;
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::lane::{Lane, LaneConfig};
use engine::port::copies::Reach;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::port::{Access, Direction, RailLimits};
use engine::regions::RegionTable;
use engine::request::{AtomicRequest, LocalSide, PutSignalRequest, Request};
use engine::wire::cookie::Cookie;
use engine::wire::handle::{Handle, HandleBytes};
use engine::wire::message::{Body, HEAD, MAP_BYTES, Numbers, RegionAddr, Seq, VERSION};
use engine::wire::seal::Seal;
use engine::wire::staging::{FURTHER_GET, GetId, Pull, PullSource, PullTarget as To, WireRecord};
use sim_fabric::{
    CALM, FakeFabric, FakeMemory, FakePort, PortCall, RAIL, SHARE, Script, lane_config,
    straight_paths,
};

use crate::messages::{close, frame};
use crate::{Target, part};

pub(crate) const TARGET: Target = Target { name: "lane-answers", short: 16, run, seeds };

const MOST: u64 = 40;
const PES: u32 = 3;
const RAILS: u8 = 2;
const LEN: usize = 1024;
const CANARY: usize = 64;
const SONG: u8 = 0xc5;
/// Regions of PE 0, those of bounce memory included.
const REGIONS: u32 = 8;
/// Most gets of an input, and the distance of their places in memory.
const GETS: usize = 8;
const APART: usize = 1024;

#[derive(Clone, Copy)]
struct Guarded {
    pe: Pe,
    /// The first byte between the canaries.
    base: usize,
    len: usize,
    fill: u8,
}

impl Guarded {
    fn new(fabric: &FakeFabric, pe: u32, reach: Reach, (len, fill): (usize, u8)) -> Self {
        let pe = Pe(pe);
        let start = fabric.alloc_reached(pe, len + 2 * CANARY, reach);
        fabric.store(pe, start, &vec![SONG; len + 2 * CANARY]);
        let base = start + CANARY;
        fabric.store(pe, base, &vec![fill; len]);
        Self { pe, base, len, fill }
    }

    fn check(self, fabric: &FakeFabric) {
        for at in [self.base - CANARY, self.base + self.len] {
            assert_eq!(fabric.load(self.pe, at, CANARY), [SONG; CANARY], "a canary of {}", self.pe);
        }
    }

    fn is_untouched(self, fabric: &FakeFabric, bytes: Range<usize>) -> bool {
        let found = fabric.load(self.pe, self.base + bytes.start, bytes.len());
        found.iter().all(|byte| *byte == self.fill)
    }
}

struct Bed {
    fabric: FakeFabric,
    lane: Lane<FakePort>,
    /// Keeps what is registered so.
    _tables: Vec<Arc<RegionTable<FakeMemory>>>,
    /// Of PE 0: a heap, staged memory of the heap, local memory, local memory that is staged. Then
    /// a heap of each peer, of which PE 2's is staged, and PE 0's local memory for gets.
    memory: Vec<Guarded>,
    handles: Vec<HandleBytes>,
    /// Lengths of gets into that, each in the next place.
    gets: Vec<usize>,
}

impl Bed {
    /// As the bits of a byte have it.
    fn new(how: u8) -> Self {
        let is = |bit: u8| how >> bit & 1 != 0;
        let again_percent = if is(0) { 20 } else { 0 };
        let script = Script { again_percent, delay: (1, 1000), ..CALM };
        let fabric = FakeFabric::new(how.into(), PES, script);
        if is(6) {
            fabric.world().sharing.extend((0..PES).map(Pe));
        }
        let tables: Vec<_> = (0..PES)
            .map(|pe| RegionTable::new(fabric.memory(Pe(pe), RAILS).with_bounce(256, 2, 2), Pe(pe)))
            .collect();
        let rail = RailLimits {
            depth: 4,
            needs_desc: is(1),
            immediate_data: is(3),
            longest_message: if is(7) { MAX_LONG_MESSAGE } else { MAX_MESSAGE },
            ..RAIL
        };
        let port = fabric.port(Pe(0), vec![rail; RAILS.into()]);
        let config = LaneConfig {
            watchdog: Watchdog::new(None, Some(Duration::from_secs(2))),
            counted: if is(3) { 4 } else { 0 },
            devices: true,
            ..lane_config(Pe(0), straight_paths(PES, RAILS), tables[0].directory())
        };
        let mut lane = Lane::new(port, config);
        if is(4) {
            lane.order_signals();
        }
        // Which most answers are about.
        let staged = Reach::Staged;
        let (both, local) = (Access::LocalAndRemote, Access::Local);
        let plan = [
            (0, Reach::Direct, both, LEN),
            (0, staged, both, LEN),
            (0, Reach::Direct, local, LEN),
            (0, staged, local, LEN),
            (1, Reach::Direct, both, LEN),
            (2, staged, both, LEN),
            (0, if is(2) { staged } else { Reach::Direct }, local, GETS * APART),
        ];
        let (mut memory, mut handles) = (Vec::new(), Vec::new());
        for (number, (pe, reach, access, len)) in (1..).zip(plan) {
            let guarded = Guarded::new(&fabric, pe, reach, (len, number));
            handles.push(tables[pe as usize].register(guarded.base, len, access).unwrap());
            memory.push(guarded);
        }
        let gets = Vec::new();
        Self { fabric, lane, _tables: tables, memory, handles, gets }
    }

    /// Runs the lane until nothing is under way or it was given up. The lane waits for nobody
    /// beyond its deadline; what a damaged handle or a peer asks for byte by byte takes longer.
    fn end(&mut self) {
        for pe in 0..PES {
            let (mut turns, mut still, mut events) = (0, 0, 0);
            while matches!(self.lane.is_quiet(Pe(pe)), Ok(false)) {
                let _ = self.lane.progress();
                self.fabric.pass_time(20_000_000);
                let before = std::mem::replace(&mut events, self.fabric.events().len());
                still = if events == before { still + 1 } else { 0 };
                turns += 1;
                assert!(still < 2000, "40 s without movement, and neither quiet nor an error");
                assert!(turns < 50_000, "a thousand seconds, and neither quiet nor an error");
            }
        }
        self.lane.drain_before_close(Duration::from_millis(100));
        self.memory.iter().for_each(|memory| memory.check(&self.fabric));
    }

    fn iterate(&mut self, turns: u8) {
        for _ in 0..turns {
            let _ = self.lane.progress();
            self.fabric.pass_time(2_000);
        }
    }

    fn get(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (len, place) = (usize::from(u.int_in_range(1..=900u16)?), self.gets.len() * APART);
        if self.gets.len() < GETS {
            self.gets.push(len);
            let _ = self.lane.start(&Request {
                direction: Direction::Read,
                pe: Pe(2),
                remote_handle: &self.handles[5],
                remote_addr: self.memory[5].base as u64,
                local: LocalSide::Memory(self.memory[6].base + place),
                len,
            });
        }
        Ok(())
    }

    /// Starts an operation that reads local memory alone.
    fn operate(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let what = u.int_in_range(0..=5)?;
        let (far, near) = (u.int_in_range(0..=2)?, u.ratio(1, 2)?);
        // The heap of PE 0, or of a peer.
        let far = [0, 4, 5][far];
        let near = if near { 3 } else { 2 };
        let len = usize::from(u.int_in_range(1..=600u16)?);
        let at = usize::from(u.int_in_range(0..=LEN as u16 - 8)?) & !7;
        let pe = self.memory[far].pe;
        let remote_addr = (self.memory[far].base + at) as u64;
        let remote_handle = &self.handles[far];
        let put = Request {
            direction: Direction::Write,
            pe,
            remote_handle,
            remote_addr,
            local: LocalSide::Memory(self.memory[near].base),
            len,
        };
        let op = |op| AtomicRequest {
            pe,
            remote_handle,
            remote_addr,
            atomic: Atomic { op, width: Width::Eight, float: false, operand: 1, compare: 0 },
            result: None,
        };
        let lane = &mut self.lane;
        let _ = match what {
            0 => lane.start(&put),
            1 => lane.start(&Request { local: LocalSide::Value(9), len: 1 + len % 8, ..put }),
            2 => lane.atomic(&op(AtomicOp::Add)),
            3 => lane
                .put_signal(&PutSignalRequest { parts: &[put], signal: op(AtomicOp::SignalAdd) }),
            4 => lane.atomic(&op(AtomicOp::SignalSet)),
            _ => lane.fence(pe),
        };
        Ok(())
    }

    fn befall(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (pe, rail) = (Pe(u.int_in_range(0..=PES - 1)?), RailId(u.int_in_range(0..=RAILS - 1)?));
        match u.int_in_range(0..=5)? {
            0 => self.fabric.set_rail(pe, rail, false),
            1 => self.fabric.set_rail(pe, rail, true),
            2 => self.fabric.fail_calls(PortCall::Deliver, 0, 1),
            3 => self.fabric.forge_immediate_data(Pe(0), rail, u.arbitrary()?),
            4 => self.fabric.world().fail_copies = (0, 1),
            _ => self.fabric.pass_time(u64::from(u.arbitrary::<u8>()?) * 10_000_000),
        }
        Ok(())
    }
}

/// A message of a peer, unsealed: as the input has it, or with a head that gets further.
fn message(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let len = u.int_in_range(0..=MAX_MESSAGE as u16 + 4)?;
    let mut bytes = u.bytes(usize::from(len).min(u.len()))?.to_vec();
    if u.ratio(1u8, 8u8)? || bytes.len() < HEAD {
        return Ok(bytes);
    }
    let number = |u: &mut Unstructured<'_>| -> Result<[u8; 4]> {
        let delta = u.int_in_range(-2i8..=6)?;
        Ok(Seq::FIRST.low().wrapping_add_signed(delta.into()).to_le_bytes())
    };
    bytes[0] = bytes[0] & 0xf0 | VERSION;
    bytes[2..4].copy_from_slice(&[u.int_in_range(1..=2)?, 0]);
    bytes[4..8].copy_from_slice(&number(u)?);
    bytes[8..12].copy_from_slice(&number(u)?);
    if u.ratio(1u8, 4u8)? {
        bytes[12..16].copy_from_slice(&region(u)?.to_le_bytes());
    }
    Ok(bytes)
}

fn region(u: &mut Unstructured<'_>) -> Result<u32> {
    let place = u.int_in_range(0..=REGIONS)?;
    let stamp = if u.ratio(1u8, 16u8)? { u.int_in_range(0..=REGIONS)? } else { place + 1 };
    Ok(stamp << 20 | place)
}

/// Seals a message to PE 0, of whomever it says it is from.
fn seal(bytes: &[u8]) -> Vec<u8> {
    let seal = Seal::new(Cookie::of([SHARE]), Pe(1));
    let from = Pe(u16::from_le_bytes(part(bytes, 2)).into());
    close(&seal, Pe(0), bytes, seal.mask(from, Pe(0), Seq::FIRST.high()))
}

/// Puts and sums only read local memory and gets write where they were to, whatever peers say.
fn run(input: &[u8]) {
    let Some((how, rest)) = input.split_first() else { return };
    let mut bed = Bed::new(*how);
    let _ = answer(&mut bed, &mut Unstructured::new(rest));
    bed.end();
    assert!(bed.memory[2..4].iter().all(|memory| memory.is_untouched(&bed.fabric, 0..LEN)));
    for (place, len) in bed.gets.iter().copied().chain([0; GETS]).take(GETS).enumerate() {
        let beside = place * APART + len..(place + 1) * APART;
        assert!(bed.memory[6].is_untouched(&bed.fabric, beside), "get {place} of {len}");
    }
}

fn answer(bed: &mut Bed, u: &mut Unstructured<'_>) -> Result<()> {
    // A put of each kind of local memory to each peer.
    for (far, near) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        bed.operate(&mut Unstructured::new(&[0, far, near, 0, 200, 0, 0]))?;
    }
    bed.get(u)?;
    bed.iterate(4);
    let mut next = [Seq::FIRST; PES as usize];
    for _ in 0..MOST {
        match u.int_in_range(0..=9)? {
            _ if u.is_empty() => break,
            0 => bed.operate(u)?,
            1 => bed.get(u)?,
            2 | 3 => bed.iterate(u.int_in_range(1..=8)?),
            4 => bed.befall(u)?,
            5 => bed.fabric.forge_message(Pe(0), RailId(1), &seal(&message(u)?)),
            _ => {
                let bytes = some_answer(u, &mut next, bed)?;
                bed.fabric.forge_message(Pe(0), RailId(0), &bytes);
            }
        }
    }
    Ok(())
}

/// A well-formed message from a peer, about what may be under way. `next`: the next number of each.
fn some_answer(u: &mut Unstructured<'_>, next: &mut [Seq], bed: &Bed) -> Result<Vec<u8>> {
    let from = Pe(u.int_in_range(1..=2)?);
    let sent = |u: &mut Unstructured<'_>| Ok(Seq(Seq::FIRST.0 + u.int_in_range(0..=6u64)?));
    let of = sent(u)?.low();
    let get = GetId { number: u.int_in_range(0..=4)?, low: of };
    let offset = u.int_in_range(0..=66u64)? * 8;
    let at = RegionAddr { region: region(u)?, offset };
    // Of the get that is named, and of those that may share its request, as often as not.
    let row = bed.gets.iter().skip(get.number as usize).take(u.int_in_range(1..=3)?);
    let asked = row.fold(0, |end: usize, len| end.next_multiple_of(8) + len).max(1);
    let more = [[8, 0, 0, 0, 100, 0, 0]; 3].concat();
    let len = if u.ratio(1u8, 2u8)? { asked } else { u.int_in_range(1..=900usize)? };
    let (op, width) = (AtomicOp::SignalAdd, Width::Eight);
    let atomic = Atomic { op, width, float: false, operand: 1, compare: 0 };
    let (payload, map) = ([0xee; 3 * 904], [u.arbitrary::<u8>()?; MAP_BYTES]);
    let mut brought = &payload[..0];
    // Those of the peer's memory, or of none.
    let handle = Handle::decode(&bed.handles[if from == Pe(1) { 4 } else { 5 }]).unwrap();
    let keys = if u.ratio(7u8, 8u8)? { handle.keys } else { vec![1; u.int_in_range(0..=2)?] };
    let keys: Vec<u8> = keys.into_iter().flat_map(u64::to_le_bytes).collect();
    let address = if u.ratio(1u8, 16u8)? { u64::MAX - offset } else { offset };
    let body = match u.int_in_range(0..=9)? {
        0 => Body::Ack(u.arbitrary::<bool>()?.then_some(&map)),
        1 => Body::Reply { reply_slot: u.int_in_range(0..=3)?, low: of, value: 9 },
        2 => Body::Refusal { low: of, why: "no" },
        3 => Body::GetReply { get, payload: &payload[..len.min(200)] },
        4 => Body::InlinePut { to: at, payload: &payload[..len.min(200)] },
        5 => {
            let more = &more[..FURTHER_GET * u.int_in_range(0..=3)?];
            Body::GetRequest { from: at, len: len as u32, get: get.number, more }
        }
        6 => {
            let atomic = Atomic { op: AtomicOp::FetchAdd, ..atomic };
            Body::Fetch { addr: at, atomic, reply_slot: 3 }
        }
        _ => {
            let target = match u.int_in_range(0..=4)? {
                0 => {
                    let signal = u.arbitrary::<bool>()?.then_some((at, atomic));
                    let len = len as u32;
                    To::One(WireRecord { to: at, len, offset: 0, signal, is_ordered: false })
                }
                1 => To::List(u.int_in_range(2..=3)?),
                _ => To::Get(get),
            };
            let source = match u.ratio(1u8, 3u8)? {
                true => PullSource::Bounce(address),
                false => PullSource::Fabric(address, &keys),
            };
            if matches!(source, PullSource::Fabric(..)) && u.arbitrary::<bool>()? {
                brought = &payload[..len];
            }
            Body::Pull(Pull { target, len: len as u32, source, payload: &[] })
        }
    };
    let of_peer = &mut next[from.index()];
    // The next one, mostly.
    let seq = if u.ratio(7u8, 8u8)? { *of_peer } else { sent(u)? };
    if seq == *of_peer && !matches!(body, Body::Ack(_) | Body::Reply { .. } | Body::Refusal { .. })
    {
        *of_peer = seq.next();
    }
    let ack = if u.ratio(3u8, 4u8)? { Seq::FIRST } else { sent(u)? };
    let mark = if u.ratio(3u8, 4u8)? { 0 } else { u.int_in_range(1..=3)? };
    let seal = Seal::new(Cookie::of([SHARE]), from);
    let numbers = Numbers { seq, ack, mark, mask: seal.mask(from, Pe(0), seq.high()) };
    Ok([frame(&seal, from, Pe(0), &numbers, &body).bytes(), brought].concat())
}

fn seeds() -> Vec<Vec<u8>> {
    let bytes = |seed: u32| (0..400).map(move |at| (seed.wrapping_mul(at) >> 16) as u8);
    (1..=16).map(|seed| bytes(seed * 0x0019_660d).collect()).collect()
}
