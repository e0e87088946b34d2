//! What the plugin is told that is wrong, peers that die, and strangers: nothing hangs, and what
//! has failed is said.

use std::collections::HashSet;
use std::ffi::c_int;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use launcher::Place;
use nvshmem_transport_libfabric::nccl::abi::{
    MR_FORCE_SO, PTR_HOST, SIGNAL_ADD, SIGNAL_INC, Status,
};
use test_jobs::memory::{Memory, bound};
use test_jobs::{Meeting, Stopped, is_gone};
use test_support::random::Random;

use crate::mock::group::{Communicator, DEVICE};
use crate::mock::library::{
    Answer, At, Context, On, Plugin, Rank, Region, Registration, Request, Signal,
};
use crate::mock::log;
use crate::mock::pair::{LEN, Pair, communicator};
use crate::mock::proxy::Style;
use crate::mock::wait::until;

pub(crate) fn killed(place: &Place) {
    dies(place, true);
}

pub(crate) fn aborted(place: &Place) {
    dies(place, false);
}

fn dies(place: &Place, waits: bool) {
    let mut meeting = Meeting::of(place);
    let _bound = bound();
    let communicator = communicator();
    let mut pair = Pair::new(&communicator, 1, &mut meeting);
    pair.connection.start();
    let pids = meeting.pids();
    pair.exchange(&mut meeting);
    let last = place.n_pes as usize - 1;
    for to in 0..place.n_pes as usize {
        pair.put(to, LEN);
    }
    if place.me as usize == last {
        // Something is under way, from all and to all.
        until("a signal", || (0..last).all(|from| pair.signals(from) > 1));
        // SAFETY: ends this process.
        unsafe { libc::kill(pids[last], libc::SIGKILL) };
    }
    let queues = Arc::clone(pair.connection.queues());
    // As much as there is room for in the plugin, again and again.
    let fill = || {
        let puts: Vec<_> = (0..64).map(|_| pair.put(last, LEN)).collect();
        until("puts, or a failure", || {
            queues.failure().is_some() || puts.iter().all(|put| put.load(Ordering::Acquire))
        });
    };
    if waits {
        // What goes into its memory may still arrive when its process has just gone.
        while queues.failure().is_none() {
            fill();
        }
        assert!(pair.connection.has_error());
        let told = log::warnings().join("\n");
        assert!(told.contains(&format!("PE {last}")), "{told}");
    } else {
        until("its end", || is_gone(pids[last]));
        for _ in 0..64 {
            pair.put(last, LEN);
        }
        let passes = queues.passes();
        until("calls after its end", || queues.failure().is_some() || queues.passes() > passes + 8);
    }
    drop(queues);
    // NCCL ends the threads first, whatever is under way. Neither waits for who is gone.
    pair.connection.end();
    communicator.end();
}

/// Rank 0 aborts while it gets from a rank that has stopped, and uses the memory for something else
/// when it was deregistered. What comes late does not come there.
pub(crate) fn released(place: &Place) {
    let mut meeting = Meeting::of(place);
    let _bound = bound();
    let communicator = communicator();
    let mut pair = Pair::new(&communicator, 1, &mut meeting);
    pair.connection.start();
    let pids = meeting.pids();
    pair.exchange(&mut meeting);
    let queues = Arc::clone(pair.connection.queues());
    if place.me == 1 {
        meeting.barrier();
        // It has gone on, and answered.
        let passes = queues.passes();
        until("passes", || queues.failure().is_some() || queues.passes() > passes + 2000);
        meeting.barrier();
    } else {
        let stopped = Stopped::new(pids[1]);
        (0..4).for_each(|_| drop(pair.get(1, LEN)));
        let passes = queues.passes();
        until("gets", || queues.passes() > passes + 100);
        pair.connection.destroy_blocks();
        pair.connection.deregister(pair.region);
        pair.memory.fill(0, pair.memory.len(), |_| 0x77);
        drop(stopped);
        meeting.barrier();
        meeting.barrier();
        let found = pair.memory.bytes(0, pair.memory.len());
        assert!(found.iter().all(|byte| *byte == 0x77), "bytes have arrived");
    }
    drop(queues);
    pair.connection.end();
    communicator.end();
}

pub(crate) fn strangers(place: &Place) {
    let mut meeting = Meeting::of(place);
    let _bound = bound();
    let communicator = communicator();
    let Communicator { plugin, .. } = &communicator;
    for turn in 0..4 {
        let before = ports();
        let instance = communicator.instance(Style::Device);
        let (listening, handle) = plugin.listen(instance, DEVICE).unwrap();
        let fresh: Vec<u16> = ports().difference(&before).copied().collect();
        let [port] = fresh[..] else { panic!("it listens: {fresh:?}") };
        let handles = meeting.allgather(&handle);
        let over = AtomicBool::new(false);
        let rank = Rank(place.me);
        let group = thread::scope(|scope| {
            let (over, first) = (&over, Arc::new(AtomicBool::new(false)));
            let began = Arc::clone(&first);
            scope.spawn(move || {
                let mut random = Random::of(&[turn, u64::from(place.me)]);
                let mut kept = Vec::new();
                // The port is closed as soon as the ranks are there.
                while !over.load(Ordering::Acquire) {
                    for kind in 0..6 {
                        let Some(stream) = stranger(port, kind, &mut random) else { continue };
                        kept.push(stream);
                    }
                    kept.truncate(256);
                    began.store(true, Ordering::Release);
                }
            });
            until("strangers", || first.load(Ordering::Acquire));
            if turn % 2 == 0 {
                meeting.barrier();
            }
            let group = plugin.connect(instance, &handles, rank, listening);
            over.store(true, Ordering::Release);
            group.unwrap()
        });
        plugin.close_listen(listening).unwrap();
        assert!(!ports().contains(&port), "it listens no longer");
        plugin.close(group).unwrap();
    }
    // And the plugin is as good as before.
    let mut pair = Pair::new(&communicator, 1, &mut meeting);
    pair.connection.start();
    pair.exchange(&mut meeting);
    pair.connection.end();
    communicator.end();
}

fn stranger(port: u16, kind: u32, random: &mut Random) -> Option<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    let noise = |random: &mut Random, len: usize| -> Vec<u8> {
        (0..len).map(|_| random.next() as u8).collect()
    };
    // That it is closed meanwhile is its right.
    let _ = match kind {
        // Nothing is said.
        0 => Ok(()),
        1 => return None,
        2 => stream.write_all(&noise(random, 1)),
        3 => stream.write_all(&noise(random, 4096)),
        4 => stream
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .and_then(|()| stream.shutdown(Shutdown::Write)),
        // As long as it is read.
        _ => (0..16).try_for_each(|_| stream.write_all(&[0; 64 << 10])),
    };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
    let _ = stream.read(&mut [0; 64]);
    Some(stream)
}

fn ports() -> HashSet<u16> {
    let descriptors = fs::read_dir("/proc/self/fd").expect("a directory").flatten();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        let name = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        Some(name)
    };
    let ours: HashSet<String> = links.filter_map(inode).collect();
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let lines: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let port = |line: &String| {
        const LISTENS: &str = "0A";
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let is_it = *state == LISTENS && ours.contains(*inode);
        let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        is_it.then_some(port)
    };
    lines.iter().filter_map(port).collect()
}

/// Rank 1 does not know the group's secret, or has bytes that are no handle: it is refused, and the
/// others wait for one that does.
pub(crate) fn wrong_secret(place: &Place) {
    let mut meeting = Meeting::of(place);
    let communicator = communicator();
    let Communicator { plugin, .. } = &communicator;
    let instance = communicator.instance(Style::Device);
    let (listening, handle) = plugin.listen(instance, DEVICE).unwrap();
    let handles = meeting.allgather(&handle);
    let rank = Rank(place.me);
    if place.me == 1 {
        // Of the number that rank 0 has drawn, and of what every handle begins with.
        for byte in [8, 15, 0, 7] {
            let mut wrong = handles.clone();
            wrong[0][byte] ^= 0x10;
            let (listening, _) = plugin.listen(instance, DEVICE).unwrap();
            let before = log::warnings().len();
            let refused = plugin.connect(instance, &wrong, rank, listening).unwrap_err();
            assert_ne!(refused.status, Status::SUCCESS);
            let told = log::warnings();
            assert!(told.len() > before && told[before].contains("connect"), "{told:?}");
            plugin.close_listen(listening).unwrap();
        }
    }
    let group = plugin.connect(instance, &handles, rank, listening).unwrap();
    plugin.close_listen(listening).unwrap();
    plugin.close(group).unwrap();
    communicator.end();
}

pub(crate) fn bad_arguments(place: &Place) {
    let mut meeting = Meeting::of(place);
    let _bound = bound();
    let communicator = communicator();
    let mut pair = Pair::new(&communicator, 2, &mut meeting);
    let plugin = Arc::clone(&pair.connection.plugin);
    assert_eq!(plugin.name(), "nvshmem-libfabric");
    outside_of_groups(&plugin, &communicator, &mut meeting);
    let (block, _) = pair.connection.blocks()[0];
    let rank = Rank((place.me + 1) % place.n_pes);
    let on = On { block, context: Context(0), rank, flags: 0 };
    let len = pair.memory.len() as u64;
    let at = |offset| At { region: pair.region, offset };
    let nobody = Rank(place.n_pes);
    let closed = {
        let memory = Memory::host(64, 1);
        let region = pair.connection.register(&memory, MR_FORCE_SO);
        pair.connection.deregister(region);
        refused("deregMrSym", plugin.deregister(pair.connection.group, region));
        region
    };
    let of = |region: Region| At { region, offset: 0 };
    let never = Region(0x7fff_ffff_f000_usize as *mut _);
    let operations: [(&str, On, At, usize, At); 11] = [
        ("no such rank", On { rank: nobody, ..on }, at(0), 8, at(8)),
        ("no such rank", On { rank: Rank(u32::MAX), ..on }, at(0), 8, at(8)),
        ("no such context", On { context: Context(2), ..on }, at(0), 8, at(8)),
        ("no such context", On { context: Context(-1), ..on }, at(0), 8, at(8)),
        ("beyond the source", on, at(len - 7), 8, at(8)),
        ("beyond the target", on, at(0), 8, at(len - 7)),
        ("far beyond", on, at(0), 8, at(u64::MAX - 3)),
        ("too long", on, at(8), usize::MAX, at(8)),
        ("released", on, of(closed), 8, at(0)),
        ("released", on, at(0), 8, of(closed)),
        ("of nothing", on, At::NOWHERE, 8, of(never)),
    ];
    let signal =
        Signal { at: at(8 * u64::from(place.me)), value: 0, operation: SIGNAL_INC, strong: true };
    for (what, on, from, len, to) in operations {
        refused(what, plugin.put(on, from, len, to));
        refused(what, plugin.get(on, to, len, from));
        refused(what, plugin.put_signal(on, from, len, to, signal));
    }
    let signals = [
        ("no such operation", Signal { operation: 0, ..signal }),
        ("no such operation", Signal { operation: SIGNAL_ADD + 1, ..signal }),
        ("beyond the words", Signal { at: at(len - 7), ..signal }),
        ("no word", Signal { at: at(4), ..signal }),
        ("released", Signal { at: of(closed), ..signal }),
        ("nowhere", Signal { at: At::NOWHERE, ..signal }),
    ];
    for (what, signal) in signals {
        refused(what, plugin.put_signal(on, At::NOWHERE, 0, At::NOWHERE, signal));
        refused(what, plugin.put_signal(on, at(64), 8, at(4096), signal));
    }
    refused("no such context", plugin.flush(On { context: Context(7), ..on }, pair.region));
    // Of what was never started nothing is under way.
    for request in [usize::MAX, 0x1000] {
        let _ = plugin.test(pair.connection.group, Request(request as *mut _));
    }
    // Registration is of all, so all are told.
    let memory = Memory::host(64, 0);
    let part = |len: usize, kind: c_int| Registration {
        addr: memory.at(0),
        len,
        kind,
        flags: 0,
        dma_buf: None,
    };
    refused("no such kind", plugin.register(pair.connection.group, part(64, 64)));
    refused("no length", plugin.register(pair.connection.group, part(0, PTR_HOST)));
    let what = Registration { len: usize::MAX - 4096, ..part(64, PTR_HOST) };
    refused("more than there is", plugin.register(pair.connection.group, what));
    let from = 0..place.n_pes as usize;
    assert!(from.map(|from| pair.signals(from)).all(|count| count == 0), "nothing was signalled");
    meeting.barrier();
    pair.connection.start();
    pair.exchange(&mut meeting);
    assert!(!pair.connection.has_error());
    pair.connection.end();
    communicator.end();
}

fn outside_of_groups(plugin: &Plugin, communicator: &Communicator, meeting: &mut Meeting) {
    let instance = communicator.instance(Style::Device);
    let devices = plugin.devices().unwrap();
    for device in [-1, devices, c_int::MAX] {
        refused("no such device", plugin.listen(instance, device));
        refused("no such device", plugin.properties(device));
    }
    let handle_of = || plugin.listen(instance, DEVICE).unwrap();
    for handle in [vec![0; 128], vec![0xff; 128]] {
        let (listening, _) = handle_of();
        let handles = vec![handle; meeting.n_pes];
        let rank = Rank(meeting.me as u32);
        refused("no handle", plugin.connect(instance, &handles, rank, listening));
        plugin.close_listen(listening).unwrap();
    }
    let (listening, mine) = handle_of();
    let handles = vec![mine.to_vec()];
    refused("no such rank", plugin.connect(instance, &handles, Rank(1), listening));
    refused("no ranks", plugin.connect(instance, &[], Rank(0), listening));
    // Alone, and once.
    let group = plugin.connect(instance, &handles, Rank(0), listening).unwrap();
    refused("used", plugin.connect(instance, &handles, Rank(0), listening));
    plugin.close(group).unwrap();
    plugin.close_listen(listening).unwrap();
    meeting.barrier();
}

fn refused<T>(what: &str, answer: Answer<T>) {
    static LOGGED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    // Of many that come at once some are left out.
    const TOLD: usize = 16;
    let Err(refused) = answer else { panic!("{what}: it was not refused") };
    let told = log::warnings().len();
    let before = LOGGED.swap(told, Ordering::Relaxed);
    assert!(told > before || before >= TOLD, "{what}: {refused}, and nothing was told");
}
