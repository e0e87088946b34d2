//! Wrong arguments, and peers that die: nothing hangs, and the failure is reported.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvshmem_transport_libfabric::nccl::abi::{MR_FORCE_SO, PTR_HOST, SIGNAL_ADD, SIGNAL_INC};
use test_jobs::memory::Memory;
use test_jobs::{Meeting, Stopped, is_gone};

use crate::mock::group::{Communicator, DEVICE};
use crate::mock::library::{
    Answer, At, Context, On, Plugin, Rank, Region, Registration, Request, Signal,
};
use crate::mock::log;
use crate::mock::pair::{LEN, Pair};
use crate::mock::proxy::Style;
use crate::mock::wait::until;

pub(crate) fn killed(pair: &mut Pair, meeting: &Meeting) {
    dies(pair, meeting, true);
}

pub(crate) fn aborted(pair: &mut Pair, meeting: &Meeting) {
    dies(pair, meeting, false);
}

/// NCCL ends the threads first, whatever is under way. Neither waits for who is gone.
fn dies(pair: &mut Pair, meeting: &Meeting, waits: bool) {
    pair.connection.start();
    let pids = meeting.pids();
    pair.exchange(meeting);
    let last = meeting.n_pes - 1;
    for to in 0..meeting.n_pes {
        pair.put(to, LEN);
    }
    if meeting.me == last {
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
}

/// Rank 0 aborts while it gets from a rank that has stopped, and uses the memory for something else
/// when it was deregistered. What comes late does not come there.
pub(crate) fn released(pair: &mut Pair, meeting: &Meeting) {
    pair.connection.start();
    let pids = meeting.pids();
    pair.exchange(meeting);
    let queues = Arc::clone(pair.connection.queues());
    if meeting.me == 1 {
        meeting.barrier();
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
}

pub(crate) fn bad_arguments(pair: &mut Pair, meeting: &Meeting) {
    let plugin = Arc::clone(&pair.connection.plugin);
    assert_eq!(plugin.name(), "nvshmem-libfabric");
    outside_of_groups(&plugin, &pair.communicator, meeting);
    let (block, _) = pair.connection.blocks[0];
    let rank = Rank(((meeting.me + 1) % meeting.n_pes) as u32);
    let on = On { block, context: Context(0), rank, flags: 0 };
    let len = pair.memory.len() as u64;
    let at = |offset| At { region: pair.region, offset };
    let nobody = Rank(meeting.n_pes as u32);
    let closed = {
        let memory = Memory::host(64, 1);
        let region = pair.connection.register(&memory, MR_FORCE_SO);
        pair.connection.deregister(region);
        refused("deregMrSym", plugin.deregister(pair.connection.group, region));
        pair.connection.register(&memory, MR_FORCE_SO);
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
        Signal { at: at(8 * meeting.me as u64), value: 0, operation: SIGNAL_INC, strong: true };
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
    let from = 0..meeting.n_pes;
    assert!(from.map(|from| pair.signals(from)).all(|count| count == 0), "nothing was signalled");
    meeting.barrier();
    pair.connection.start();
    pair.exchange(meeting);
    assert!(!pair.connection.has_error());
}

fn outside_of_groups(plugin: &Plugin, communicator: &Communicator, meeting: &Meeting) {
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
