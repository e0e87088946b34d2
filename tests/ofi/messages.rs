//! Messages between lanes.

use std::time::Instant;

use engine::ids::{RailId, WrId};
use engine::port::packet::{LongPacket, MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::port::{DataPath, Incoming, Messaging, PeerAddr, Polled, Posted, Tail};
use ofi::{OfiPort, Options, Provider, Threading};
use test_support::random::pattern;

use crate::process::{HANG, Lane, PROVIDERS, Process, options, poll, rails};

const MESSAGE: WrId = WrId(u32::MAX);

struct Pair {
    ends: [Process; 2],
    peers: [Vec<PeerAddr>; 2],
}

impl Pair {
    fn start(provider: Provider) -> Self {
        let mut ends = [0, 1].map(|_| Process::start(&options(provider)));
        let peers = [0, 1].map(|end| {
            let mut peers = Vec::new();
            for rail in rails(&ends[0].opened.proxy) {
                let address = ends[1 - end].opened.proxy.address(rail).to_vec();
                let inserted = ends[end].opened.proxy.insert(rail, &[address]);
                peers.extend(inserted.expect("insert the other end"));
            }
            peers
        });
        Self { ends, peers }
    }

    fn send(&mut self, from: usize, rail: RailId, bytes: &[u8]) -> bool {
        let peer = self.peers[from][rail.index()];
        send(&mut self.ends[from].opened.proxy, rail, peer, bytes)
    }

    fn receive(&mut self, end: usize, rail: RailId) -> Vec<Vec<u8>> {
        progress(&mut self.ends[end].opened.proxy, rail);
        take_all(&mut self.ends[end].opened.proxy, rail)
    }
}

fn send(port: &mut OfiPort, rail: RailId, peer: PeerAddr, bytes: &[u8]) -> bool {
    match port.send(rail, peer, MESSAGE, bytes) {
        Ok(posted) => posted == Posted::Yes,
        Err(error) => panic!("{error}"),
    }
}

fn progress(port: &mut OfiPort, rail: RailId) {
    match poll(port, rail).1 {
        Polled::Empty => {}
        other => panic!("unexpected on rail {rail}: {other:?}"),
    }
}

fn take_all(port: &mut OfiPort, rail: RailId) -> Vec<Vec<u8>> {
    let mut packet = LongPacket::EMPTY;
    let mut messages = Vec::new();
    while port.receive(rail, &mut packet) == Incoming::Message {
        messages.push(packet.bytes().to_vec());
    }
    messages
}

fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut message = pattern(len, number as usize);
    message[..4].copy_from_slice(&number.to_le_bytes());
    message
}

fn number_of(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[..4].try_into().expect("four bytes"))
}

#[test]
fn message_tail_comes_from_elsewhere() {
    const HEAD: usize = 48;
    for provider in PROVIDERS {
        let mut pair = Pair::start(provider);
        for rail in rails(&pair.ends[0].opened.proxy) {
            let longest = pair.ends[0].opened.proxy.limits()[rail.index()].longest_message;
            assert!((MAX_MESSAGE..=MAX_LONG_MESSAGE).contains(&longest), "{provider:?} {longest}");
            let most = longest - HEAD;
            // On both sides of what is injected, and of a line of the cache.
            let lens = [1, 8, 63, 64, 80, 81, 128, most / 2, most - 1, most, most, most];
            let content =
                |number: usize| (numbered(number as u32, HEAD), pattern(lens[number], number));
            let mut tail = vec![0; most];
            let peer = pair.peers[0][rail.index()];
            let (mut sent, mut arrived) = (0, Vec::new());
            let start = Instant::now();
            while arrived.len() < lens.len() {
                assert!(start.elapsed() < HANG, "{provider:?}: {sent} sent");
                if sent < lens.len() {
                    let (head, bytes) = content(sent);
                    tail[..bytes.len()].copy_from_slice(&bytes);
                    let from = Tail { addr: tail.as_ptr() as usize, len: bytes.len() };
                    let port = &mut pair.ends[0].opened.proxy;
                    match port.send_with_tail(rail, peer, MESSAGE, &head, from) {
                        Ok(posted) => sent += usize::from(posted == Posted::Yes),
                        Err(error) => panic!("{provider:?}: {error}"),
                    }
                    tail.fill(0xee);
                }
                assert!(pair.receive(0, rail).is_empty());
                arrived.extend(pair.receive(1, rail));
            }
            arrived.sort_by_key(|message| number_of(message));
            for (number, message) in arrived.iter().enumerate() {
                let (head, bytes) = content(number);
                assert_eq!(*message, [head, bytes].concat(), "{provider:?} {}", lens[number]);
            }
            let from = Tail { addr: tail.as_ptr() as usize, len: most };
            let port = &mut pair.ends[0].opened.proxy;
            let refused = port.send_with_tail(rail, peer, MESSAGE, &[0; HEAD + 1], from);
            let refused = refused.expect_err("too long").to_string();
            assert!(refused.contains(&format!("{} bytes", longest + 1)), "{refused}");
        }
    }
}

#[test]
fn a_burst_loses_nothing() {
    const BURST: u32 = 4000;
    for provider in PROVIDERS {
        for polls in [false, true] {
            let mut pair = Pair::start(provider);
            let rail = RailId(0);
            let message = |number: u32| numbered(number, 4 + number as usize % (MAX_MESSAGE - 3));
            // The connection is made by polling both of its ends.
            let start = Instant::now();
            while !pair.send(0, rail, &message(0)) {
                assert!(start.elapsed() < HANG);
                assert!(pair.receive(0, rail).is_empty() && pair.receive(1, rail).is_empty());
            }
            let (mut sent, mut refused) = (1, 0);
            while sent < BURST && refused < 200 {
                if pair.send(0, rail, &message(sent)) {
                    (sent, refused) = (sent + 1, 0);
                } else {
                    refused += 1;
                    progress(&mut pair.ends[0].opened.proxy, rail);
                }
                if polls {
                    progress(&mut pair.ends[1].opened.proxy, rail);
                }
            }
            println!("{provider:?}: {sent} messages taken with the receiver polling: {polls}");

            let mut seen = vec![0; BURST as usize];
            let mut arrived = 0;
            let start = Instant::now();
            while arrived < BURST {
                assert!(start.elapsed() < HANG, "{provider:?}: {arrived} of {sent} arrived");
                while sent < BURST && pair.send(0, rail, &message(sent)) {
                    sent += 1;
                }
                progress(&mut pair.ends[0].opened.proxy, rail);
                for received in pair.receive(1, rail) {
                    let number = number_of(&received);
                    assert_eq!(received, message(number));
                    seen[number as usize] += 1;
                    arrived += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{provider:?}: each once");
            assert!(pair.receive(1, rail).is_empty());
        }
    }
}

#[test]
fn rail_receives_from_both_lanes() {
    let levels = [Threading::Completion, Threading::Domain];
    for (provider, threading) in PROVIDERS.into_iter().flat_map(|p| levels.map(|t| (p, t))) {
        let options = Options { threading, ..options(provider) };
        let mut process = Process::start(&options);
        for rail in rails(&process.opened.proxy) {
            for (lane, len) in [(Lane::Proxy, 32), (Lane::Proxy, 256), (Lane::Host, 40)] {
                let message = numbered(7, len);
                let (from, peer) = process.path(lane, rail);
                let start = Instant::now();
                let mut sent = false;
                let mut arrived = Vec::new();
                while arrived.is_empty() {
                    assert!(start.elapsed() < HANG, "{provider:?}");
                    sent = sent || send(process.port(lane), from, peer, &message);
                    for rail in rails(&process.opened.proxy) {
                        progress(&mut process.opened.proxy, rail);
                    }
                    progress(&mut process.opened.host, RailId(0));
                    arrived = take_all(&mut process.opened.proxy, rail);
                }
                assert_eq!(arrived, [message]);
            }
        }
    }
}

#[test]
fn the_host_lane_does_not_receive() {
    for provider in PROVIDERS {
        let mut process = Process::start(&options(provider));
        let rail = RailId(0);
        let address = process.opened.host.address(rail).to_vec();
        let host = process.opened.proxy.insert(rail, &[address]).expect("insert the host lane")[0];
        let own = process.from_proxy[0];
        let messages = [(host, numbered(1, 32)), (own, numbered(2, 32))];
        let mut sent = 0;
        let mut arrived = Vec::new();
        let start = Instant::now();
        // When the second one is there, the first one has had its time.
        while arrived.is_empty() {
            assert!(start.elapsed() < HANG, "{provider:?}");
            if let Some((peer, message)) = messages.get(sent) {
                sent += usize::from(send(&mut process.opened.proxy, rail, *peer, message));
            }
            progress(&mut process.opened.host, rail);
            assert!(take_all(&mut process.opened.host, rail).is_empty());
            progress(&mut process.opened.proxy, rail);
            arrived = take_all(&mut process.opened.proxy, rail);
        }
        assert_eq!(arrived, [messages[1].1.clone()]);
    }
}

#[test]
fn invalid_messages_are_refused() {
    for provider in PROVIDERS {
        let mut process = Process::start(&options(provider));
        let peer = process.from_proxy[0];
        let port = &mut process.opened.proxy;
        for (rail, len, why) in [(0, 257, "257 bytes"), (0, 4096, "at most 256"), (9, 32, "rail 9")]
        {
            let error = port.send(RailId(rail), peer, MESSAGE, &vec![1; len]).expect_err(why);
            assert!(error.to_string().contains(why), "{error}");
        }
        for rail in [9, 0] {
            let nothing = port.receive(RailId(rail), &mut LongPacket::EMPTY.clone());
            assert_eq!(nothing, Incoming::Nothing);
        }
        let none = RailId(9);
        let tail = Tail { addr: 0, len: 0 };
        assert!(port.send_with_tail(none, peer, MESSAGE, &[1], tail).is_err());
        assert!(port.insert(none, &[[1]]).is_err() && port.address(none).is_empty());
        assert!(!port.has_message(none) && port.endpoint_error(none).is_none());
    }
}
