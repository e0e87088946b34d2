//! Signals, atomics and fences: when they leave, by which protocol, and what of others is not
//! executed.

mod counted;
mod forged;
mod protocols;

use crate::prelude::*;

/// The data takes rail 0, which is slow, and the signal rail 1, on the fast path or not.
#[test]
fn signals_follow_what_they_must() {
    let cases =
        [(false, false, false), (false, true, true), (true, false, true), (true, true, true)];
    for (fast, (is_strong, has_data, follows)) in
        [false, true].into_iter().flat_map(|fast| cases.map(|case| (fast, case)))
    {
        let slow_rails = vec![(RailId(0), 100)];
        let script = Script { delay: (1_000, 1_000), slow_rails, ..CALM };
        let mut job = Job::new(1, &Shape { fast, ..PLAIN }, script);
        job.fabric.trace_calls();
        if is_strong {
            job = job.with_ordered_signals();
        }
        job.put_signal(0, 1, &[(64, 8)], 0).unwrap();
        job.until_quiet(0, 1);
        // With the request for their acknowledgement, what leaves are two or three messages.
        let mut calls = job.fabric.calls().into_iter().rev();
        let last = calls.find(|call| matches!(call, Call::Post(Pe(0), _)));
        if last != Some(Call::Post(Pe(0), RailId(1))) {
            (0..2).for_each(|_| job.put_signal(0, 1, &[(64, 8)], 0).unwrap());
            job.until_quiet(0, 1);
        }
        let before = job.fabric.events().len();
        let targets = job.targets.clone();
        match has_data {
            true => job.put_signal(0, 1, &[(64, 8)], 8).unwrap(),
            false => job.inc(0, 1, 8),
        }
        job.amo(0, 1, 16, AtomicOp::SignalAdd, 1).unwrap();
        job.until_quiet(0, 1);
        let events = job.fabric.events();
        let place = |at| {
            let addr = targets.word(1, at);
            events[before..].iter().position(|event| *event == Event::Applied { pe: Pe(1), addr })
        };
        assert_eq!(place(16) > place(8), follows, "{fast}, strong: {is_strong}, data: {has_data}");
    }
}

/// The first of two rails would take all data, and the other all counted signals.
#[test]
fn slow_rail_delays_only_its_signals() {
    for (signals, rails, len) in [(SignalChoice::Chained, 2, 512), (SignalChoice::Counted, 3, 60)] {
        let slow_rails = vec![(RailId(0), 1000)];
        let script = Script { delay: (1_000, 1_000), slow_rails, ..CALM };
        let mut job = Job::new(1, &Shape { signals, rails, ..PLAIN }, script);
        for at in (0..8).map(|number| number * 1024) {
            job.put_signal(0, 1, &[(at + 64, len)], at).unwrap();
        }
        job.until_quiet(0, 1);
        let applied = |event: &Event| match event {
            Event::Applied { pe: Pe(1), addr } => Some(*addr),
            _ => None,
        };
        let order: Vec<_> = job.fabric.events().iter().filter_map(applied).collect();
        assert!(!order.is_sorted(), "{signals:?}: none overtakes a slow one: {order:x?}");
    }
}

/// A peer that lags keeps few long messages, each of which follows those before.
#[test]
fn long_ordered_messages_are_bounded() {
    for (is_strong, most) in [(false, 40), (true, 32)] {
        let mut job = Job::with(Shape { longest_message: MAX_LONG_MESSAGE, rails: 1, ..PLAIN });
        if is_strong {
            job = job.with_ordered_signals();
        } else {
            // A put in flight is no long message.
            job.put_value(0, 1, 0, 7).unwrap();
        }
        job.fabric.stall(Pe(1));
        (0..40).for_each(|_| job.put_signal(0, 1, &[(64, 1000)], 0).unwrap());
        job.iterate_some(&[0], 100);
        let sent = job.fabric.messages_to(Pe(1));
        let long = sent.iter().filter(|bytes| bytes.len() > 1000).count();
        assert_eq!(long, most, "strong: {is_strong}");
    }
}

/// A fence towards another PE or all, or the order of strong signals, holds for all own words
/// behind it, in memory of the host and of devices.
#[test]
fn own_words_obey_fences() {
    for (words, order) in (0..9).map(|case| (1 + case % 3, case / 3)) {
        let mut job = Job::with(Shape { words, ..PLAIN });
        if order == 0 {
            job = job.with_ordered_signals();
        }
        job.amo(0, 0, 8, AtomicOp::SignalAdd, 1).unwrap();
        match order {
            0 => {}
            1 => job.fence(0, 1),
            _ => job.lane(0).fence_all(),
        }
        job.amo(0, 0, 16, AtomicOp::SignalAdd, 1).unwrap();
        let (remote_handle, remote_addr) = (&job.members[0].handle.clone(), job.members[0].base);
        let word = job.targets.atomic(0, 8, AtomicOp::SignalAdd, 1);
        let host = AtomicRequest { remote_handle, remote_addr: remote_addr as u64, ..word };
        job.members[0].lane.atomic(&host).unwrap();
        let first = job.members[0].words + 8;
        job.progress_until(&[0], |job| job.heap(0, 0, 8) != [0; 8]);
        let applied = |event: &Event| match event {
            Event::Applied { addr, .. } => Some(*addr),
            _ => None,
        };
        let found: Vec<_> = job.fabric.events().iter().filter_map(applied).collect();
        assert_eq!(found, [first, first + 8, remote_addr], "{words} {order}");
    }
}

/// The processor changes own words at once, a device those of one iteration together. An own word
/// behind a put takes a message, which follows it.
#[test]
fn own_words_take_no_message() {
    for words in 1..4 {
        let mut job = Job::with(Shape { words, ..PLAIN });
        job.fabric.trace_calls();
        (0..40).for_each(|_| job.inc(0, 0, 8));
        let at_once = words == 1;
        assert_eq!((job.word(0, 8), job.is_quiet(0, 0)), (40 * u64::from(at_once), Ok(at_once)));
        job.lane(0).progress().unwrap();
        assert_eq!((job.word(0, 8), job.is_quiet(0, 0)), (40, Ok(true)), "{words}");
        assert_eq!(job.posts(0), 0, "{words}");
        job.put(0, 0, 0, 1000).unwrap();
        job.inc(0, 0, 8);
        assert_eq!((job.word(0, 8), job.is_quiet(0, 0)), (40, Ok(false)), "{words}");
        job.quiet(0, 0).unwrap();
        assert_eq!((job.word(0, 8), job.posts(0) > 1), (41, true), "{words}");
        let before = job.posts(0);
        job.inc(0, 0, 8);
        job.put(0, 0, 0, 1000).unwrap();
        assert_eq!(job.posts(0) > before, at_once, "{words}: no put passes a deferred word");
        let words = job.members[0].words;
        job.lane(0).check_unused(words, 64).unwrap();
        assert_eq!(job.word(0, 8), 42, "the memory may be released");
    }
}

/// An own word that failed may have changed, so no message tries it again.
#[test]
fn failed_own_words_are_told() {
    let mut job = Job::with(PLAIN);
    job.fabric.trace_calls();
    job.fabric.fail_calls(PortCall::Apply, 0, 1);
    let failed = job.amo(0, 0, 8, AtomicOp::Inc, 0).unwrap_err().to_string();
    assert!(failed.contains("atomic of 8 bytes, PE 0"), "{failed}");
    job.quiet(0, 0).unwrap();
    assert_eq!((job.word(0, 8), job.posts(0)), (0, 0));
}

/// Quiets and fences with nothing before them wait for nothing and hold nothing; no fence a get.
#[test]
fn idle_fences_hold_nothing() {
    let mut job = Job::with(PLAIN);
    let before = job.fabric.now();
    (0..2).for_each(|pe| job.quiet(0, pe).unwrap());
    assert_eq!(job.fabric.now(), before, "the fabric's clock moves with every poll");
    for value in [7, 8] {
        job.fence(0, 1);
        job.put_value(0, 1, 0, value).unwrap();
        assert_eq!(job.fabric.in_flight(), 1);
        job.quiet(0, 1).unwrap();
    }
    job.fabric.stall(Pe(1));
    job.put_value(0, 1, 0, 9).unwrap();
    job.fence(0, 1);
    job.get(0, 1, 64, 64).unwrap();
    assert_eq!(job.fabric.in_flight(), 2);
}
