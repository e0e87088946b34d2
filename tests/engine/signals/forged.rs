//! Messages that no lane has sent, those from outside of the job among them.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::wire::marks::Marks;
use engine::wire::message::{Body, Message, Packet, RequestId, Spot, Tag};
use engine::wire::seal::Seal;
use engine::wire::window::{Seq, WINDOW};
use sim_fabric::Script;

use super::Targets;
use crate::job::{FIRST_REGION, Job, Shape, cookie, seal};

/// An acknowledgement from PE 0, with what it says to have arrived.
fn ack_of(seq: Seq, ack: Seq) -> Vec<u8> {
    let mut packet = Packet::EMPTY;
    seal(&Message { from: Pe(0), seq, ack, behind: 0, body: Body::Ack }, 1, &mut packet);
    packet.bytes().to_vec()
}

#[test]
fn messages_from_outside_of_the_job_are_dropped() {
    let first = Seq(u32::MAX - 99);
    let uncovered = |from, seq| {
        let mut packet = Packet::EMPTY;
        let atomic =
            Atomic { op: AtomicOp::Set, width: Width::Eight, float: false, operand: 7, compare: 0 };
        let at = Spot { slot: FIRST_REGION, offset: 0 };
        let body = Body::Atomic { at, atomic };
        Message { from: Pe(from), seq, ack: first, behind: 0, body }.encode(&mut packet);
        packet.bytes().to_vec()
    };
    let mut late = atomic_message(0, first, FIRST_REGION, 0);
    late.truncate(31);
    let forged = [
        ("empty", Vec::new()),
        ("short", vec![0; 15]),
        ("noise", vec![0xff; 40]),
        ("cut", late),
        ("not sealed", uncovered(0, first)),
        ("not sealed, from nowhere", uncovered(9, Seq(0))),
        ("unknown PE", atomic_message(9, first, FIRST_REGION, 0)),
        ("out of the window", atomic_message(0, Seq(5000), FIRST_REGION, 0)),
        ("acknowledges what was not sent", ack_of(first, first.next())),
        ("says that what was not sent has arrived", ack_of(first.next(), first)),
    ];
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let heap = job.heap(1, 0, job.heap);
    for (number, (what, bytes)) in forged.iter().enumerate() {
        job.fabric.forge_message(Pe(1), RailId(1), bytes);
        for _ in 0..10 {
            job.members[1].lane.progress().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(job.heap(1, 0, job.heap), heap, "{what}");
        let foreign: Vec<u64> = job.members[1].lane.counters().map(|rail| rail.foreign).collect();
        assert_eq!(foreign, [0, number as u64 + 1], "{what}");
    }
    // The genuine first message is not taken for one that was there before.
    job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        job.members[1].lane.progress().unwrap();
        job.members[0].lane.progress().unwrap();
    }
    assert_ne!(job.heap(1, 0, 8), heap[..8]);
}

#[test]
fn what_cannot_be_received_is_dropped() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    for (number, code) in (1..).zip([265, 125, 104, 5, 22]) {
        job.fabric.break_message(Pe(1), RailId(1), code);
        job.members[1].lane.progress().unwrap_or_else(|error| panic!("{code}: {error}"));
        let foreign: Vec<u64> = job.members[1].lane.counters().map(|rail| rail.foreign).collect();
        assert_eq!(foreign, [0, number]);
    }
}

#[test]
fn a_message_that_was_overheard_gives_no_other() {
    let mut job = Job::new(3, &Shape { n_pes: 3, ..Shape::default() }, Script::default());
    let targets = Targets::of(&job);
    job.fabric.overhear();
    for _ in 0..3 {
        job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Add, 1)).unwrap();
    }
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        job.members.iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
    }
    let heaps = [0, 1, 2].map(|pe| job.heap(pe, 0, job.heap));
    assert_eq!(heaps[1][..8], 3_u64.to_le_bytes());
    let heard = job.fabric.overheard();
    assert!(heard.len() >= 3, "{heard:?}");
    let first = Seq(u32::MAX - 99);
    for (number, (to, rail, bytes)) in (0..).zip(&heard) {
        let mut others: Vec<(Pe, Vec<u8>)> =
            [0, 1, 2].map(|pe| (Pe(pe), bytes.clone())).into_iter().collect();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            others.push((*to, changed));
        }
        // As later messages would look where all lie under the same bytes.
        for ahead in 0..20 {
            let at = Spot { slot: FIRST_REGION, offset: 0 };
            let body = Body::Atomic { at, atomic: word(AtomicOp::Add, 1) };
            let message = |number| {
                let seq = Seq(first.0.wrapping_add(number));
                let mut packet = Packet::EMPTY;
                Message { from: Pe(0), seq, ack: first, behind: 0, body }.encode(&mut packet);
                packet
            };
            let (known, wanted) = (message(number), message(ahead));
            let mut forged = wanted.bytes().to_vec();
            for at in 0..16.min(bytes.len()) {
                forged[at] ^= bytes[at] ^ known.bytes()[at];
            }
            others.push((Pe(1), forged));
        }
        for (to, bytes) in others {
            job.fabric.forge_message(to, *rail, &bytes);
            job.members[to.index()].lane.progress().unwrap();
            job.fabric.pass_time(100_000);
        }
    }
    assert_eq!([0, 1, 2].map(|pe| job.heap(pe, 0, job.heap)), heaps);
}

#[test]
fn requests_that_no_lane_has_sent_are_errors_and_change_nothing() {
    let first = Seq(u32::MAX - 99);
    let forged = [
        ("unknown region", atomic_message(0, first, 77, 0)),
        ("outside", atomic_message(0, first, FIRST_REGION, 1 << 20)),
        ("not aligned", atomic_message(0, first, FIRST_REGION, 3)),
        ("local region", atomic_message(0, first, 2 << 20 | 1, 0)),
        ("another region in its place", atomic_message(0, first, 2 << 20, 0)),
    ];
    for (what, bytes) in forged {
        let mut job = Job::new(3, &Shape::default(), Script::default());
        job.fabric.forge_message(Pe(1), RailId(0), &bytes);
        let heap = job.heap(1, 0, job.heap);
        let error = (0..10).find_map(|_| job.members[1].lane.progress().err());
        assert!(error.is_some(), "{what} was taken");
        assert_eq!(job.heap(1, 0, job.heap), heap, "{what}");
    }
    // A reply to nothing is late news, not an error.
    let mut job = Job::new(4, &Shape::default(), Script::default());
    let reply = Body::Reply { request_id: RequestId { slot: 5, seq: Seq(0) }, value: 1 };
    job.fabric.forge_message(Pe(1), RailId(0), &message(0, Seq(0), reply));
    for _ in 0..10 {
        job.members[1].lane.progress().unwrap();
    }
}

/// The sender of a request that comes a second time has not heard of the acknowledgement.
#[test]
fn a_request_that_comes_again_is_acknowledged_again() {
    let first = Seq(u32::MAX - 99);
    // What comes in takes a long way where it fetches, or carries an acknowledgement that is not
    // the latest.
    for (is_fetch, is_late) in [(false, false), (false, true), (true, false)] {
        let mut job = Job::new(1, &Shape::default(), Script::default());
        if is_late {
            let targets = Targets::of(&job);
            job.members[1].lane.atomic(&targets.atomic(0, 0, AtomicOp::Inc, 0)).unwrap();
            while !job.members[1].lane.is_quiet(Pe(0)).unwrap() {
                job.members.iter_mut().for_each(|member| {
                    member.lane.progress().unwrap();
                });
            }
        }
        let request =
            if is_fetch { fetch_message(first) } else { atomic_message(0, first, FIRST_REGION, 0) };
        job.fabric.forge_message(Pe(1), RailId(0), &request);
        let iterate = |job: &mut Job| {
            job.members[1].lane.progress().unwrap();
            job.fabric.in_flight()
        };
        // What a fetch calls forth at first is its reply, which says as much.
        assert_eq!(iterate(&mut job), usize::from(is_fetch), "nobody has asked");
        while iterate(&mut job) > 0 {
            job.fabric.pass_time(100_000);
        }
        for _ in 0..3 {
            job.fabric.forge_message(Pe(1), RailId(0), &request);
            assert!(iterate(&mut job) > 0, "a fetch: {is_fetch}, late: {is_late}");
            while iterate(&mut job) > 0 {
                job.fabric.pass_time(100_000);
            }
        }
        let once = if is_fetch { 1 } else { u64::MAX };
        assert_eq!(job.heap(1, 0, 8), once.to_le_bytes(), "and executed once");
    }
}

fn atomic_message(from: u32, seq: Seq, slot: u32, offset: u64) -> Vec<u8> {
    let at = Spot { slot, offset };
    message(from, seq, Body::Atomic { at, atomic: word(AtomicOp::Set, u64::MAX) })
}

/// From PE 0, about its own number and the first word of the first region.
fn fetch_message(seq: Seq) -> Vec<u8> {
    let (at, request_id) = (Spot { slot: FIRST_REGION, offset: 0 }, RequestId { slot: 0, seq });
    let atomic = word(AtomicOp::FetchAdd, 1);
    message(0, seq, Body::Fetch { at, atomic, request_id, place: 0 })
}

fn word(op: AtomicOp, operand: u64) -> Atomic {
    Atomic { op, width: Width::Eight, float: false, operand, compare: 0 }
}

fn message(from: u32, seq: Seq, body: Body<'_>) -> Vec<u8> {
    let mut packet = Packet::EMPTY;
    let ack = Seq(u32::MAX - 99);
    seal(&Message { from: Pe(from), seq, ack, behind: 0, body }, 1, &mut packet);
    packet.bytes().to_vec()
}

#[test]
fn a_peer_that_breaks_the_rules_has_no_endless_queue_here() {
    let first = Seq(u32::MAX - 99);
    let fetch = fetch_message(first);
    let mut job = Job::new(1, &Shape::default(), Script::default());
    job.fabric.refuse(Pe(0), true);
    let ended = (0..5000).find_map(|_| {
        job.fabric.forge_message(Pe(1), RailId(0), &fetch);
        job.members[1].lane.progress().err()
    });
    let why = ended.expect("an end to it").to_string();
    assert!(why.contains("PE 0") && why.contains("asks for more at a time"), "{why}");
}

#[test]
fn a_peer_that_breaks_the_rules_has_a_window_of_requests_waiting_at_most() {
    let number = |number: u32| Seq((u32::MAX - 99).wrapping_add(number));
    let at = |offset| Spot { slot: FIRST_REGION, offset };
    let (tag, segments, mark_bytes) = (Tag::FIRST, 1, 8);
    let atomic = word(AtomicOp::Set, 7);
    let signal = Body::CountedSignal { at: at(8), atomic, tag, segments };
    let behind_all = |seq| {
        let (from, ack, atomic) = (Pe(0), number(0), word(AtomicOp::Add, 1));
        let mut packet = Packet::EMPTY;
        let body = Body::Atomic { at: at(16), atomic };
        seal(&Message { from, seq, ack, behind: 1, body }, 1, &mut packet);
        packet.bytes().to_vec()
    };
    let mut job = Job::new(1, &Shape { mark_bytes, ..Shape::default() }, Script::default());
    let before = u64::from_le_bytes(job.heap(1, 16, 8).try_into().unwrap());
    let deliver = |job: &mut Job, bytes: &[u8]| {
        job.fabric.forge_message(Pe(1), RailId(0), bytes);
        job.members[1].lane.progress().unwrap();
        job.fabric.pass_time(1000);
    };
    let found = |job: &mut Job| {
        let foreign: u64 = job.members[1].lane.counters().map(|rail| rail.foreign).sum();
        let applied = u64::from_le_bytes(job.heap(1, 16, 8).try_into().unwrap());
        (foreign, applied.wrapping_sub(before))
    };
    let window = u64::from(WINDOW);
    let all = 1..3 * WINDOW;
    // Nothing has come of its data.
    deliver(&mut job, &message(0, number(0), signal));
    all.clone().for_each(|seq| deliver(&mut job, &behind_all(number(seq))));
    assert_eq!(found(&mut job), (2 * window, 0));
    let marks = Marks::new(cookie(), Pe(0), 2, mark_bytes);
    job.fabric.forge_immediate_data(Pe(1), RailId(0), marks.of_mine(Pe(1), tag));
    job.members[1].lane.progress().unwrap();
    assert_eq!(found(&mut job), (2 * window, window - 1));
    all.for_each(|seq| deliver(&mut job, &behind_all(number(seq))));
    assert_eq!(found(&mut job), (2 * window, 3 * window - 1));
}

#[test]
fn reply_belongs_to_its_own_fetch() {
    let mut job = Job::new(3, &Shape { rails: 1, ..Shape::default() }, Script::default());
    let first = Seq(u32::MAX - 99);
    let forge = |job: &mut Job, number: u32, behind: u16| {
        let (at, seq) = (Spot { slot: FIRST_REGION, offset: 0 }, Seq(first.0.wrapping_add(number)));
        let (width, float, operand, compare) = (Width::Eight, false, 5, 0);
        let atomic = |op| Atomic { op, width, float, operand, compare };
        let request_id = RequestId { slot: 10 + number, seq };
        let body = match number {
            1 => Body::Atomic { at, atomic: atomic(AtomicOp::Add) },
            _ => Body::Fetch { at, atomic: atomic(AtomicOp::FetchAdd), request_id, place: 0 },
        };
        let mut packet = Packet::EMPTY;
        seal(&Message { from: Pe(0), seq, ack: first, behind, body }, 1, &mut packet);
        job.fabric.forge_message(Pe(1), RailId(0), packet.bytes());
        for _ in 0..10 {
            job.members[1].lane.progress().unwrap();
            job.fabric.pass_time(100_000);
        }
    };
    let replies = |job: &Job| {
        let read = |(to, _, bytes): &(Pe, RailId, Vec<u8>)| {
            let mut packet = Packet::EMPTY;
            packet.fill(bytes);
            Seal::new(cookie(), *to).open(&mut packet);
            match Message::decode(packet.bytes()).unwrap().body {
                Body::Reply { request_id, value } => Some((request_id.slot, value)),
                _ => None,
            }
        };
        job.fabric.overheard().iter().filter_map(read).collect::<Vec<_>>()
    };
    job.fabric.overhear();
    forge(&mut job, 0, 0);
    assert_eq!(replies(&job), [(10, 0)]);
    // Behind one that is not here.
    for _ in 0..3 {
        forge(&mut job, 2, 1);
        assert_eq!(replies(&job), [(10, 0)]);
    }
    forge(&mut job, 1, 0);
    assert_eq!(replies(&job), [(10, 0), (12, 10)]);
    forge(&mut job, 2, 1);
    assert_eq!(replies(&job), [(10, 0), (12, 10), (12, 10)], "asked for again");
}
