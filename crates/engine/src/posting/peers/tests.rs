//! Tests of what leaves for peers.

use std::sync::Arc;

use super::*;
use crate::atomic::AtomicOp;
use crate::port::Direction;
use crate::port::copies::Reach;
use crate::posting::tests::{Bed, PLAIN, Setup, atomic, request};
use crate::request::PutSignalRequest;
use crate::state::segment::{Stage, WriteClass};
use crate::wire::window::Seq;

/// What tests of other rooms do.
impl Peers {
    pub(crate) fn take_message(&mut self) -> bool {
        self.messages.take(0).is_some()
    }
}

/// What a request says that it comes behind, when it leaves: a signal behind the puts that have
/// left as messages, if any have; an atomic behind nothing.
#[test]
fn a_signal_comes_behind_messages_that_are_puts_and_an_atomic_does_not() {
    let mut bed = Bed::new(Setup { reach: Reach::Staged, ..PLAIN });
    let heaps = Arc::clone(&bed.heaps);
    let mut behind = |puts, op| {
        if puts {
            bed.put(1);
        }
        bed.lane.atomic(&atomic(&heaps, 1, op)).unwrap();
        let core = bed.lane.core_mut();
        let channel = core.peers.connections.channel_mut(Pe(1)).unwrap();
        assert_eq!((channel.has_sent_puts(), channel.pulls), (puts, 0));
        let packet = core.peers.messages.packet_mut(channel.unacked().last().unwrap());
        u16::from_le_bytes([packet.bytes()[22], packet.bytes()[23]])
    };
    assert_eq!(behind(false, AtomicOp::SignalSet), 0);
    assert_eq!(behind(true, AtomicOp::Inc), 0);
    assert_eq!(behind(true, AtomicOp::SignalSet), 1);
}

#[test]
fn a_signal_comes_behind_the_data_of_a_put_with_signal_of_the_fast_path() {
    let mut bed = Bed::new(Setup { fast: true, ..PLAIN });
    // The connection, which the fast path does not make.
    bed.atomic(1, AtomicOp::Inc);
    let heaps = Arc::clone(&bed.heaps);
    let parts = [request(&heaps, Direction::Write, 1)];
    let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
    assert!(bed.lane.put_signal_found(&PutSignalRequest { parts: &parts, signal }));
    bed.atomic(1, AtomicOp::SignalSet);
    let core = bed.lane.core_mut();
    let channel = core.peers.connections.channel_mut(Pe(1)).unwrap();
    assert!(channel.has_sent_puts());
    let packet = core.peers.messages.packet_mut(channel.unacked().last().unwrap());
    assert_eq!(packet.bytes()[22..24], 1_u16.to_le_bytes(), "behind the message before it");
}

/// As any other that finds no room: without a number, a put if it brings data, until it leaves. Its
/// batch, if it has one, waits for it all the time.
#[test]
fn what_the_fabric_has_not_taken_in_few_instructions_waits() {
    for brings_data in [false, true] {
        let mut bed = Bed::new(Setup { fast: true, ..PLAIN });
        bed.atomic(1, AtomicOp::Inc);
        let heaps = Arc::clone(&bed.heaps);
        let parts = [request(&heaps, Direction::Write, 1)];
        let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
        bed.fabric.refuse(Pe(1), true);
        let batch = bed.lane.begin_batch().unwrap();
        let is_taken = match brings_data {
            true => bed.lane.put_signal_found(&PutSignalRequest { parts: &parts, signal }),
            false => bed.lane.atomic_fast(&signal, batch),
        };
        assert!(is_taken);
        assert_eq!(bed.lane.is_batch_done(batch), brings_data);
        let wr_id = bed.wr_id(|segment| segment.stage == Stage::Ready);
        let state = |bed: &Bed| {
            let channel = bed.lane.core().peers.channel(Pe(1)).unwrap();
            let class = bed.lane.core().transmit.segment(wr_id).class;
            (channel.unsent, channel.counts().0, class == WriteClass::Word)
        };
        assert_eq!(state(&bed), (1, 1, !brings_data));
        bed.lane.audit().unwrap();
        bed.fabric.refuse(Pe(1), false);
        bed.lane.iterate();
        assert_eq!(state(&bed), (0, 2, true));
        assert_eq!(bed.lane.is_batch_done(batch), brings_data);
        bed.lane.audit().unwrap();
    }
}

#[test]
fn an_answer_is_taken_once() {
    let mut bed = Bed::new(PLAIN);
    bed.atomic(1, AtomicOp::Inc);
    let peers = &mut bed.lane.core_mut().peers;
    let first = peers.connections.channel_mut(Pe(1)).unwrap().received.prefix().next();
    for (seq, is_new) in [(first, true), (first, false), (first.next(), true), (first, false)] {
        assert_eq!(peers.arrives(Pe(1), seq), is_new, "{seq:?}");
        let channel = peers.connections.channel_mut(Pe(1)).unwrap();
        assert_eq!(std::mem::take(&mut channel.ack_due), !is_new, "{seq:?}");
    }
}

#[test]
fn last_put_stays_acknowledged_past_the_wrap() {
    let mut bed = Bed::new(PLAIN);
    bed.atomic(1, AtomicOp::Inc);
    let core = bed.lane.core_mut();
    let first = core.peers.connections.channel_mut(Pe(1)).unwrap().next;
    core.acknowledged(Pe(1), first);
    for step in 1..10_u32 {
        let channel = core.peers.connections.channel_mut(Pe(1)).unwrap();
        assert!(!channel.has_sent_puts(), "{step}");
        // As if so many other messages had left, each of them acknowledged.
        let next = Seq(first.0.wrapping_add(step << 29));
        (channel.next, channel.ack_received) = (next, next);
        core.acknowledged(Pe(1), next);
    }
}
