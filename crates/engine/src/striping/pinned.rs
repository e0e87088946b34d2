//! Pinned puts: those that go by one rail with what follows them, chosen by load all the same.

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::Port;
use crate::posting::Core;
use crate::posting::load::Stripe;
use crate::rails::paths::Hop;
use crate::request::Request;
use crate::state::operation::OpId;
use crate::state::segment::Kind;
use crate::state::stream::Stream;

/// The path of a put of `len` bytes that is to go by one rail, with what follows it.
pub(crate) fn pinned_path<P: Port>(
    core: &mut Core<P>,
    pe: Pe,
    len: usize,
) -> Result<Hop, EngineError> {
    let next = core.stream_to(pe)?.next;
    if len < core.balance.balanced_from {
        return Ok(next);
    }
    let now = core.port.now();
    // Where all have much ahead, waiting for one would keep those behind it waiting too.
    let hop = core.pick(pe, len, len as u64, now);
    Ok(hop.unwrap_or_else(|| core.path_in_turn(pe, now)))
}

/// As the submission of a put of one segment, by the path given. `number` is that of the ordered put,
/// if it has one.
pub(crate) fn submit_pinned<P: Port>(
    core: &mut Core<P>,
    request: &Request<'_>,
    hop: &Hop,
    number: Option<u32>,
    sent: &mut usize,
) -> Result<(), EngineError> {
    let pe = request.pe;
    core.check_stream(pe)?;
    let closed = core.streams.find(pe).is_some_and(Stream::is_closed);
    let balanced = !closed && request.len >= core.balance.balanced_from;
    let has_room = if balanced { core.stripes.is_left() } else { core.has_share(pe) };
    if request.len == 0 || !has_room {
        return Ok(());
    }
    let transfer = core.transfer(request, 0, request.len, hop)?;
    if balanced {
        let now = core.port.now();
        let cut = number.map_or(Stripe::Plain, Stripe::Ordered);
        if core.send_stripe(cut, pe, hop, transfer, OpId::NONE, None, now) {
            *sent = request.len;
        }
    } else if let Some(token) = core.segments.take() {
        core.fill(token, pe, hop, transfer, OpId::NONE, Kind::Transfer);
        if let Some(number) = number {
            core.segments[token.0].set_ordered(number);
        }
        core.set_out(token);
        *sent = request.len;
    }
    core.check_stream(pe)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ids::RailId;
    use crate::port::Direction;
    use crate::posting::tests::{Bed, PLAIN, Setup, request};

    #[test]
    fn the_rail_is_chosen_by_load_from_a_length_on() {
        let mut bed = Bed::new(Setup { rails: 2, ..PLAIN });
        let core = &mut bed.lane.core;
        core.balance.balanced_from = 64;
        let next = core.stream_to(Pe(1)).unwrap().next.rail;
        let other = RailId(1 - next.0);
        core.balance.give(next, 1 << 20, 0);
        for (len, rail) in [(63, next), (64, other), (65, other)] {
            assert_eq!(pinned_path(core, Pe(1), len).unwrap().rail, rail, "{len}");
        }
    }

    #[test]
    fn a_part_of_no_bytes_takes_no_segment() {
        let mut bed = Bed::new(PLAIN);
        let heaps = Arc::clone(&bed.heaps);
        let core = &mut bed.lane.core;
        let hop = core.stream_to(Pe(1)).unwrap().next;
        for len in [0, 8] {
            let part = Request { len, ..request(&heaps, Direction::Write, 1) };
            let mut sent = 0;
            submit_pinned(core, &part, &hop, None, &mut sent).unwrap();
            assert_eq!((sent, core.segments.used()), (len, u32::from(len != 0)));
        }
    }
}
