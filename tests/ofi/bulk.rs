//! Bulk connections: threads move what they are handed, and its completion comes by the rail.

use std::thread;
use std::time::Instant;

use engine::ids::{RailId, WrId};
use engine::port::packet::LongPacket;
use engine::port::{
    Access, DataPath, Direction, Incoming, Messaging, Operation, PeerAddr, Posted, Transfer,
};
use ofi::{BulkChoice, Devices, Opened, Options, Provider};
use test_support::random::pattern;

use crate::process::{HANG, Lane, Memory, completed, open, options};

const LEN: usize = 1 << 20;
const RAIL: RailId = RailId(0);

const PROVIDERS: [Provider; 2] = [Provider::Tcp, Provider::TcpRxm];

fn with(provider: Provider, connections: u8) -> Options {
    let devices = Devices::Include(vec![String::from("127.0.0.1")]);
    Options { bulk: BulkChoice::Each(connections), devices, ..options(provider) }
}

struct Pair {
    from: Opened,
    to: Opened,
    /// The second as the first knows it.
    peer: PeerAddr,
    near: Memory,
    far: Memory,
}

impl Pair {
    /// With so many connections each.
    fn new(provider: Provider, from: u8, to: u8) -> Self {
        let (mut from, mut to) = (open(&with(provider, from)), open(&with(provider, to)));
        let (there, here) = (to.proxy.address(RAIL).to_vec(), from.proxy.address(RAIL).to_vec());
        let peer = from.proxy.insert(RAIL, &[there]).expect("the second's")[0];
        to.proxy.insert(RAIL, &[here]).expect("the first's");
        let near = Memory::new(&from, pattern(LEN, 1), Access::Local);
        let far = Memory::new(&to, vec![0; LEN], Access::LocalAndRemote);
        Self { from, to, peer, near, far }
    }

    fn transfer(&self, direction: Direction) -> Transfer {
        Transfer {
            direction,
            local: self.near.local(0, Lane::Proxy, RAIL),
            len: LEN,
            remote: self.far.remote(0),
            key: self.far.key(RAIL),
        }
    }

    fn post(&mut self, wr_id: WrId, operation: Operation<'_>) -> (bool, bool) {
        let (port, peer) = (&mut self.from.proxy, self.peer);
        match port.post_bulk(RAIL, peer, wr_id, operation).expect("a post") {
            Some(posted) => (posted == Posted::Yes, true),
            None => {
                let posted = port.post(RAIL, peer, wr_id, operation).expect("a post");
                (posted == Posted::Yes, false)
            }
        }
    }

    /// Has an operation moved so often, several at a time, by work-request ids from 1 on, until the
    /// connections have reached the peer and have moved some. How many they have.
    fn run(&mut self, operation: Operation<'_>) -> usize {
        const AT_A_TIME: usize = 9;
        let has_bulk = self.from.proxy.limits()[RAIL.index()].bulk > 0;
        let begun = Instant::now();
        let mut by_bulk = 0;
        loop {
            let (mut posted, mut done) = (0, Vec::new());
            while done.len() < AT_A_TIME {
                if posted < AT_A_TIME {
                    let (is_under_way, is_bulk) = self.post(WrId(posted as u32 + 1), operation);
                    posted += usize::from(is_under_way);
                    by_bulk += usize::from(is_under_way && is_bulk);
                }
                done.extend(completed(&mut self.from.proxy, RAIL));
                assert!(
                    completed(&mut self.to.proxy, RAIL).is_empty(),
                    "the target has posted nothing"
                );
                assert!(begun.elapsed() < HANG, "{} of {posted} have ended", done.len());
                thread::yield_now();
            }
            done.sort_unstable_by_key(|wr_id| wr_id.0);
            let all: Vec<WrId> = (1..=AT_A_TIME as u32).map(WrId).collect();
            assert_eq!(done, all, "each once");
            if !has_bulk || by_bulk > AT_A_TIME {
                return by_bulk;
            }
        }
    }
}

#[test]
fn threads_move_whatever_the_peer_has() {
    for provider in PROVIDERS {
        for (from, to) in [(1, 1), (3, 3), (2, 0), (0, 2), (3, 1), (1, 6)] {
            let mut pair = Pair::new(provider, from, to);
            assert_eq!(pair.from.proxy.limits()[0].bulk, from);
            let rails = &pair.from.report.rails;
            assert_eq!(rails[0].bulk, usize::from(from), "{}", pair.from.report);
            let write = pair.transfer(Direction::Write);
            let by_bulk = pair.run(Operation::Transfer(&write));
            assert_eq!(by_bulk > 0, from > 0, "{provider:?} {from} {to}");
            assert_eq!(pair.far.now_all(), pattern(LEN, 1), "{provider:?} {from} {to}");
            let fresh = pattern(LEN, 2);
            // SAFETY: nothing is under way.
            unsafe {
                let place = pair.far.bytes.as_ptr().cast_mut();
                place.copy_from_nonoverlapping(fresh.as_ptr(), LEN);
            }
            let read = pair.transfer(Direction::Read);
            pair.run(Operation::Transfer(&read));
            assert_eq!(pair.near.now_all(), fresh, "{provider:?} {from} {to}");
        }
    }
}

#[test]
fn unreached_peer_gets_nothing_by_bulk() {
    for provider in PROVIDERS {
        // Without a thread of its own it answers when it is polled, and it is not.
        let mut pair = Pair::new(provider, 2, 0);
        let write = pair.transfer(Direction::Write);
        for _ in 0..300 {
            let (port, peer) = (&mut pair.from.proxy, pair.peer);
            let answer = port.post_bulk(RAIL, peer, WrId(1), Operation::Transfer(&write));
            assert_eq!(answer, Ok(None), "{provider:?}");
            assert!(completed(port, RAIL).is_empty());
            thread::yield_now();
        }
        assert!(pair.run(Operation::Transfer(&write)) > 0, "it is reached when it goes on");
    }
}

/// It comes in where the write does, and once.
#[test]
fn immediate_data_comes_by_the_rail() {
    const COUNT: u64 = 40;
    for provider in PROVIDERS {
        for (from, to) in [(2, 2), (2, 0), (0, 2)] {
            let mut pair = Pair::new(provider, from, to);
            let write = pair.transfer(Direction::Write);
            pair.run(Operation::Transfer(&write));
            let begun = Instant::now();
            let (mut told, mut ended, mut posted) = (Vec::new(), 0, 0);
            let mut packet = LongPacket::EMPTY;
            while told.len() < COUNT as usize || ended < COUNT {
                if posted < COUNT {
                    let operation = Operation::WriteWithImmediate(&write, 100 + posted);
                    let wr_id = WrId(posted as u32);
                    posted += u64::from(pair.post(wr_id, operation).0);
                }
                ended += completed(&mut pair.from.proxy, RAIL).len() as u64;
                assert!(completed(&mut pair.to.proxy, RAIL).is_empty());
                while let Incoming::ImmediateData(data) = pair.to.proxy.receive(RAIL, &mut packet) {
                    told.push(data);
                }
                assert!(begun.elapsed() < HANG, "{ended} have ended, {} are told", told.len());
                thread::yield_now();
            }
            told.sort_unstable();
            assert!(
                told.iter().copied().eq(100..100 + COUNT),
                "{provider:?} {from} {to}: {told:?}"
            );
        }
    }
}
