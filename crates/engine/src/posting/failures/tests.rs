//! Tests of what fails, and of who is declared failed.

use super::*;
use crate::atomic::AtomicOp;
use crate::port::Direction;
use crate::posting::tests::{Bed, PLAIN, RAIL, Setup, failed, lost};
use crate::state::segment::work::Work;

/// Where rails are monitored, what the fabric fails waits for recovery: bytes among those that were
/// in doubt, messages not. But not if their peer was declared failed.
#[test]
fn what_fails_is_set_aside_unless_its_peer_has_failed() {
    enum What {
        Bytes,
        Fragment,
        Message,
    }
    for (what, given_up) in [
        (What::Bytes, false),
        (What::Fragment, false),
        (What::Message, false),
        (What::Bytes, true),
        (What::Message, true),
    ] {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        match what {
            What::Message => bed.atomic(1, AtomicOp::Inc),
            What::Bytes | What::Fragment => bed.put(1),
        }
        bed.lane.core_mut().give_segments(Pe(1));
        let (wr_id, core) = (bed.to(1), bed.lane.core_mut());
        if let What::Fragment = what {
            let work = Work::fragment(None, Direction::Write, 8);
            core.transmit.segment_mut(wr_id).set_work(work);
        }
        if given_up {
            core.peers.find_mut(Pe(1)).unwrap().error = Some(Box::new(failed(1)));
        }
        core.fail_segment(wr_id, lost());
        let waits = core.failures.events.iter().any(|event| matches!(event, Event::Refused(..)));
        assert_eq!(waits, !given_up);
        let is_message = matches!(what, What::Message);
        assert_eq!(core.failures.lost.len(), usize::from(!given_up && !is_message));
    }
}

#[test]
fn orphans_are_what_the_fabric_has_for_a_peer_that_has_failed() {
    let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
    [1, 1, 1, 2, 1].into_iter().for_each(|pe| bed.put(pe));
    let core = bed.lane.core_mut();
    // Of those that were in doubt the fabric has one, and not the other.
    let all = core.transmit.wr_ids(|segment| segment.pe == Pe(1));
    core.lose(all[0], true);
    core.lose(all[1], true);
    assert!(core.came_back(all[1]) && core.transmit.segment(all[1]).stage == Stage::Posted);
    core.transmit.segment_mut(all[1]).stage = Stage::Lost;
    core.wr_id_is_back(all[1]);
    assert!(!core.came_back(all[1]) && core.transmit.segment(all[1]).stage == Stage::Lost);
    core.fail_connection(Pe(1), failed(1));
    assert_eq!(core.failures.orphans, 3);
    core.is_no_orphan(all[0]);
    core.is_no_orphan(all[1]);
    assert_eq!(core.failures.orphans, 2);
}

#[test]
fn messages_that_have_left_keep_a_lane_at_work_and_fail_with_their_rail() {
    let mut bed = Bed::new(Setup { n_pes: 4, rails: 2, fast: true, ..PLAIN });
    assert!(!bed.lane.has_work());
    (1..4).for_each(|pe| bed.atomic(pe, AtomicOp::Inc));
    let core = bed.lane.core();
    let rails: Vec<(Pe, RailId)> =
        core.without_segment().map(|message| (message.pe, message.rail)).collect();
    assert_eq!((rails.len(), core.transmit.has_segments()), (3, false));
    assert!(bed.lane.has_work());
    assert!([true, false].iter().all(|is| rails.iter().any(|(_, rail)| (*rail == RAIL) == *is)));
    bed.lane.core_mut().fail_rail(RAIL, lost());
    bed.lane.audit().unwrap();
    for (pe, rail) in rails {
        let failed = bed.lane.core().peers.check(pe).is_err();
        assert_eq!(failed, rail == RAIL, "{pe} over {rail}");
    }
}
