//! The protocol of a signal, at the bounds between the protocols: told by what reaches
//! the peer while the sender does nothing more, or the fabric keeps something back.

use crate::prelude::*;

/// Offset of the data, after the signal's word.
const AT: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    /// Data and signal share a message.
    Eager,
    /// The target reads the data.
    Staged,
    /// The target counts the segments.
    Counted,
    /// The signal leaves when its data is delivered.
    Chained,
}

/// The protocol of a signal with parts of these lengths, whose bytes arrive, and no byte more.
fn protocol(shape: &Shape, lens: &[usize]) -> Protocol {
    let mut end = AT;
    let part = |len: &usize| {
        end += len;
        (end - len, *len)
    };
    let parts: Vec<_> = lens.iter().map(part).collect();
    let bytes: Vec<u8> = (0..end).map(|at| (at * 7) as u8 | 1).collect();
    let applied = |holds: bool| {
        let mut job = Job::new(5, shape, CALM);
        job.fabric.hold_immediate_data(holds);
        job.fabric.trace_calls();
        job.fill_scratch(0, &bytes);
        job.put_signal(0, 1, &parts, 0).unwrap();
        let posted = job.posts(0);
        job.progress(1, 1000);
        let is_applied = job.word(1, 0) == 1;
        job.fabric.hold_immediate_data(false);
        job.until_quiet(0, 1);
        let found = job.heap(1, AT, end);
        assert!(found[..end - AT] == bytes[AT..] && found[end - AT..] == [0; AT], "{lens:?}");
        (posted, is_applied)
    };
    match (applied(false), applied(true)) {
        ((1, true), _) => Protocol::Eager,
        ((_, false), _) => Protocol::Chained,
        (_, (_, false)) => Protocol::Counted,
        _ => Protocol::Staged,
    }
}

#[test]
fn signal_paths_depend_on_length() {
    use SignalChoice::{Auto, Chained, Counted, Eager};
    const LONG: usize = 64 << 10;
    const MOST: usize = eager_in(MAX_LONG_MESSAGE);
    let shape =
        |signals, longest_message| Shape { signals, longest_message, heap: 1 << 18, ..PLAIN };
    for (signals, longest, lens, expected) in [
        (Auto, MAX_MESSAGE, &[MAX_EAGER][..], Protocol::Eager),
        (Auto, MAX_MESSAGE, &[MAX_EAGER + 1], Protocol::Counted),
        // The signal of several parts is behind everything before it.
        (Auto, MAX_MESSAGE, &[8, 8], Protocol::Chained),
        (Auto, MAX_MESSAGE, &[LONG], Protocol::Counted),
        (Auto, MAX_LONG_MESSAGE, &[MAX_EAGER + 1], Protocol::Eager),
        (Auto, MAX_LONG_MESSAGE, &[MOST], Protocol::Eager),
        (Auto, MAX_LONG_MESSAGE, &[MOST + 1], Protocol::Counted),
        (Auto, MAX_LONG_MESSAGE, &[MAX_EAGER, 8], Protocol::Chained),
        (Eager, MAX_MESSAGE, &[1], Protocol::Eager),
        (Eager, MAX_MESSAGE, &[MAX_EAGER], Protocol::Eager),
        (Eager, MAX_MESSAGE, &[MAX_EAGER + 1], Protocol::Chained),
        (Eager, 300, &[eager_in(300)], Protocol::Eager),
        (Eager, 300, &[eager_in(300) + 1], Protocol::Chained),
        (Counted, MAX_MESSAGE, &[8], Protocol::Counted),
        (Counted, MAX_LONG_MESSAGE, &[MAX_EAGER + 1], Protocol::Counted),
        (Chained, MAX_MESSAGE, &[8], Protocol::Chained),
        (Chained, MAX_LONG_MESSAGE, &[MAX_EAGER + 1], Protocol::Chained),
    ] {
        assert_eq!(
            protocol(&shape(signals, longest), lens),
            expected,
            "{signals:?} {longest} {lens:?}"
        );
    }
    for (immediate_data, counted) in [(true, 8), (true, 0), (false, 8)] {
        let expected =
            if immediate_data && counted > 0 { Protocol::Counted } else { Protocol::Chained };
        for (signals, rails) in [(Auto, 1), (Auto, 2), (Counted, 2)] {
            let shape = Shape { immediate_data, counted, rails, ..shape(signals, MAX_MESSAGE) };
            assert_eq!(protocol(&shape, &[LONG]), expected, "{shape:?}");
        }
    }
    // Device memory at either end, staged or taken by the fabric.
    for (staged, reached) in [0b0010, 0b0100, 0b0110].into_iter().flat_map(|s| [(s, 0), (s, s)]) {
        let shape = Shape { staged, by_fabric: reached, ..shape(Auto, MAX_LONG_MESSAGE) };
        assert_ne!(protocol(&shape, &[MOST]), Protocol::Eager, "{staged:b} {reached:b}");
    }
}
