//! Immediate data between two processes: it comes once, after its write's data.
//!
//! The second process is this test program again, running [`target`]. In one process alone shm
//! would copy in another way, and a connection of tcp would have both its ends in one thread.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use engine::ids::{RailId, WrId};
use engine::port::packet::LongPacket;
use engine::port::{
    Access, Clock, DataPath, Direction, Incoming, Messaging, Operation, PeerAddr, Polled, Posted,
    Transfer,
};
use ofi::{OfiPort, Opened, Provider};
use serde_json::json;

use crate::process::{HANG, Lane, Memory, PROVIDERS, completed, open, options, poll, rails};

const ROUNDS: u32 = 2000;
const SLOT: usize = 320 << 10;
const SLOTS: u32 = 4;
/// Tells the second process what it is, and for which provider.
const ROLE: &str = "OFI_TEST_TARGET_OF";
/// The test, which in the second process is [`target`].
const TEST: &str = "immediate_data::data_comes_before_immediate_data";
/// What the processes tell one another stands on lines that begin so.
const MARK: &str = "@ ";
/// The high bytes of every word, so that all eight are seen to arrive.
const HIGH: u64 = 0xa5c3_f00d_5a96_0000;

fn len_of(round: u32) -> usize {
    [SLOT, 8, 4096, (64 << 10) - 8, 64 << 10, 200][(round / SLOTS) as usize % 6]
}

fn stamp_of(round: u32) -> u8 {
    (round % 251) as u8 + 1
}

/// What processes tell one another: where memory begins, its keys, and their addresses.
type Hello = (u64, Vec<u64>, Vec<Vec<u8>>);

fn hear(from: &mut impl BufRead) -> Hello {
    // Anything may stand before it: test programs print names without ending the line.
    let said = from.lines().find_map(|line| Some(line.ok()?.split_once(MARK)?.1.to_owned()));
    serde_json::from_str(&said.expect("the other process lives")).expect("what it says")
}

fn addresses(opened: &Opened) -> Vec<&[u8]> {
    rails(&opened.proxy).map(|rail| opened.proxy.address(rail)).collect()
}

fn insert(port: &mut OfiPort, addresses: Vec<Vec<u8>>) -> Vec<PeerAddr> {
    let insert =
        |(rail, address)| port.insert(RailId(rail as u8), &[address]).expect("insert the peer")[0];
    addresses.into_iter().enumerate().map(insert).collect()
}

struct Target(Child);

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn data_comes_before_immediate_data() {
    if let Ok(role) = std::env::var(ROLE) {
        return target(&role);
    }
    for provider in PROVIDERS {
        let mut opened = open(&options(provider));
        println!("{}", opened.report);
        assert!(opened.report.immediate_data.offered, "{}", opened.report);
        assert!(opened.proxy.limits().iter().all(|rail| rail.immediate_data));
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", TEST, "--nocapture"])
            .env(ROLE, format!("{provider:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut target = Target(child.expect("a second process"));
        let mut out = BufReader::new(target.0.stdout.take().expect("piped"));
        let mut stdin = target.0.stdin.take().expect("piped");
        let (remote, keys, others) = hear(&mut out);
        writeln!(stdin, "{MARK}{}", json!((0, [0; 0], addresses(&opened)))).expect("it listens");
        let peers = insert(&mut opened.proxy, others);
        send_all(provider, &mut opened, remote, &keys, &peers);
        // The last answers have come, so the other process has nothing left to do.
        writeln!(stdin, "{MARK}over").expect("it listens");
        let ended = target.0.wait().expect("it ends");
        assert!(ended.success(), "{provider:?}: the target found something wrong");
    }
}

fn send_all(
    provider: Provider,
    opened: &mut Opened,
    remote: u64,
    keys: &[u64],
    peers: &[PeerAddr],
) {
    let bytes = vec![0; SLOT * SLOTS as usize];
    let mut source = Memory::new(opened, bytes, Access::Local);
    let start = Instant::now();
    let (mut written, mut answers) = (0, HashSet::new());
    // A slot is free when its write has completed and the target has looked at it.
    let mut busy = [[false; 2]; SLOTS as usize];
    while answers.len() < ROUNDS as usize {
        assert!(start.elapsed() < HANG, "{provider:?}: {written} written, {}", answers.len());
        let slot = (written % SLOTS) as usize;
        if written < ROUNDS && busy[slot] == [false; 2] {
            let rail = RailId((written / SLOTS) as u8 % keys.len() as u8);
            let (at, len) = (slot * SLOT, len_of(written));
            source.bytes[at..at + len].fill(stamp_of(written));
            let transfer = Transfer {
                direction: Direction::Write,
                local: source.local(at, Lane::Proxy, rail),
                len,
                remote: remote + at as u64,
                key: keys[rail.index()],
            };
            let (to, wr_id) = (peers[rail.index()], WrId(slot as u32));
            let posted = opened.proxy.post(
                rail,
                to,
                wr_id,
                Operation::WriteWithImmediate(&transfer, HIGH | u64::from(written)),
            );
            if posted.unwrap_or_else(|error| panic!("{error}")) == Posted::Yes {
                busy[slot] = [true; 2];
                written += 1;
            }
        }
        for rail in rails(&opened.proxy) {
            for wr_id in completed(&mut opened.proxy, rail) {
                busy[wr_id.index()][0] = false;
            }
            let mut packet = LongPacket::EMPTY;
            while opened.proxy.receive(rail, &mut packet) == Incoming::Message {
                let round = u32::from_le_bytes(packet.bytes().try_into().expect("four bytes"));
                assert!(answers.insert(round), "{provider:?}: {round} was told twice");
                busy[(round % SLOTS) as usize][1] = false;
            }
        }
        opened.proxy.relax();
    }
    assert_eq!(answers, (0..ROUNDS).collect());
}

fn target(role: &str) {
    let provider = PROVIDERS.into_iter().find(|provider| format!("{provider:?}") == role);
    let mut opened = open(&options(provider.expect("a provider")));
    let bytes = vec![0; SLOT * SLOTS as usize];
    let memory = Memory::new(&opened, bytes, Access::LocalAndRemote);
    let keys: Vec<u64> = rails(&opened.proxy).map(|rail| memory.key(rail)).collect();
    println!("\n{MARK}{}", json!((memory.remote(0), keys, addresses(&opened))));
    let mut stdin = BufReader::new(std::io::stdin());
    let peers = insert(&mut opened.proxy, hear(&mut stdin).2);

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = String::new();
            let _ = stdin.read_line(&mut rest);
            over.store(true, Ordering::Relaxed);
        });
        // Answers that found no room yet.
        let mut due: Vec<u32> = Vec::new();
        while !over.load(Ordering::Relaxed) {
            for rail in rails(&opened.proxy) {
                match poll(&mut opened.proxy, rail).1 {
                    Polled::Empty => {}
                    other => fail(format!("unexpected on {rail}: {other:?}")),
                }
                loop {
                    match opened.proxy.receive(rail, &mut LongPacket::EMPTY.clone()) {
                        Incoming::Nothing => break,
                        other @ (Incoming::Message | Incoming::Broken { .. }) => {
                            fail(format!("{other:?}"));
                        }
                        // The first thing after it is the data, its end first.
                        Incoming::ImmediateData(word) => {
                            let round = (word & 0xffff) as u32;
                            let at = (round % SLOTS) as usize * SLOT;
                            let mut bytes = (at..at + len_of(round)).rev();
                            let late = bytes.find(|&at| memory.now(at) != stamp_of(round));
                            if late.is_some() || word & !0xffff != HIGH {
                                fail(format!("{word:#x} came before its data: {late:?}"));
                            }
                            due.push(round);
                        }
                    }
                }
            }
            let answer = |round: &u32| {
                let sent = opened.proxy.send(RailId(0), peers[0], WrId(0), &round.to_le_bytes());
                sent.unwrap_or_else(|error| fail(error.to_string())) != Posted::Yes
            };
            due.retain(answer);
            opened.proxy.relax();
        }
    });
}

/// At once, with the reason where the caller of the tests sees it: the other process waits.
fn fail(why: String) -> ! {
    eprintln!("{why}");
    std::process::exit(1);
}
