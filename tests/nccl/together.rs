//! What kernels ask for at once goes together: few calls of the driver at either end, though NCCL
//! hands it over one by one and asks about each.

use std::sync::atomic::Ordering;

use nvshmem_transport_libfabric::nccl::abi::{MR_FORCE_SO, MR_SIGNAL_NEVER_RESET, SIGNAL_ADD};
use test_jobs::Meeting;
use test_jobs::Place;
use test_jobs::memory::{Kind, Memory, bound, device};
use test_support::random::bytes;

use crate::mock::library::{At, Rank, Signal};
use crate::mock::pair::communicator;
use crate::mock::proxy::{Call, ContextId, Style};

const TOKENS: usize = 64;
const LEN: usize = 7168;
/// Tokens go to so many experts in turn, each of which has room for as many again.
const EXPERTS: usize = 8;
const SIGNALS: usize = 64;

/// Most calls of the driver at either end: for the tokens and their signal, and for the signals.
/// One by one each of both kinds would take at least one. An idle machine takes far fewer; what is
/// handed over while a PE is kept from its core goes by itself.
const MAX_FOR_TOKENS: u64 = 48;
const MAX_FOR_SIGNALS: u64 = 48;

fn place_of(token: usize) -> usize {
    let (expert, slot) = (token % EXPERTS, token / EXPERTS);
    (expert * 2 * (TOKENS / EXPERTS) + slot) * LEN
}

/// Rank 0 sends tokens and a strong signal behind them, then many signals.
pub(crate) fn together(place: &Place) {
    let mut meeting = Meeting::of(place);
    let _bound = bound();
    let me = place.me as usize;
    let communicator = communicator();
    let mut connection = communicator.connect(Style::Device, &mut meeting);
    // NCCL has a block of its own as well, for which nobody asks anything here.
    connection.create_block(1);
    connection.create_block(1);
    let kind = Kind::of_pe(me);
    let source = Memory::new(kind, TOKENS * LEN);
    let target = Memory::new(kind, 2 * TOKENS * LEN);
    let words = Memory::new(kind, 4096);
    source.write(0, &bytes(7, TOKENS * LEN));
    let from = connection.register(&source, 0);
    let to = connection.register(&target, 0);
    let signals = connection.register(&words, MR_FORCE_SO | MR_SIGNAL_NEVER_RESET);
    let at = |region, offset: usize| At { region, offset: offset as u64 };
    let signal = |word: usize| Call::PutSignal {
        from: at(from, 0),
        len: 0,
        to: at(to, 0),
        signal: Signal { at: at(signals, 8 * word), value: 3, operation: SIGNAL_ADD, strong: true },
    };
    let has = |word: usize, value| words.word(8 * word).load(Ordering::Acquire) == value;
    connection.start();
    let post = |call| drop(connection.queues().start(ContextId(0), Rank(1), call));
    // Who has had a message copies from others' memory, and the word is known from here on.
    if me == 0 {
        post(signal(0));
        connection.queues().drain();
    } else {
        connection.queues().wait("the first signal", || has(0, 3));
    }
    let before_tokens = device().calls();
    meeting.barrier();
    if me == 0 {
        for token in 0..TOKENS {
            let (from, to) = (at(from, token * LEN), at(to, place_of(token)));
            post(Call::Put { from, len: LEN, to });
        }
        post(signal(0));
        connection.queues().drain();
    } else {
        connection.queues().wait("the signal behind the tokens", || has(0, 6));
        for token in 0..TOKENS {
            let expected = &source.bytes(token * LEN, LEN);
            assert!(target.bytes(place_of(token), LEN) == *expected, "token {token}");
        }
    }
    let before_signals = device().calls();
    let tokens = before_signals - before_tokens;
    meeting.barrier();
    if me == 0 {
        for word in 0..SIGNALS {
            post(signal(word % 8));
        }
        connection.queues().drain();
    } else {
        let each = (SIGNALS as u64 / 8) * 3;
        connection.queues().wait("all signals", || {
            (0..8).all(|word| has(word, each + if word == 0 { 6 } else { 0 }))
        });
    }
    let signals = device().calls() - before_signals;
    assert!(tokens <= MAX_FOR_TOKENS, "{tokens} calls of the driver for {TOKENS} tokens");
    assert!(signals <= MAX_FOR_SIGNALS, "{signals} calls of the driver for {SIGNALS} signals");
    meeting.barrier();
    connection.end();
    communicator.end();
}
