//! A fault of the fabric, as random schedules have them: drawn, named, begun and ended.

use crate::prelude::*;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Call(PortCall, u32, u32),
    LoseCompletions(u32),
    LoseImmediateData(u32),
    Stall(Pe),
    Refuse(Pe),
    HoldUp(Pe),
    RailDown(Pe, RailId),
    LinkDown((Pe, RailId), (Pe, RailId)),
    FailDelivered,
    Copies(u32),
    /// Words that are to be stored soon are not.
    Words,
}

impl Fault {
    pub(crate) fn draw(random: &mut Random, shape: &Shape) -> Self {
        let pe = Pe(random.below(shape.n_pes));
        let rail = RailId(random.below(shape.rails));
        let other = Pe(random.below(shape.n_pes));
        let count = 1 + random.below(3) as u32;
        match random.below(22) {
            0 => Self::LoseCompletions(count),
            1 => Self::LoseImmediateData(1),
            2 => Self::Stall(pe),
            3 => Self::Refuse(pe),
            4 => Self::HoldUp(pe),
            5 => Self::RailDown(pe, rail),
            6 => Self::LinkDown((pe, rail), (other, RailId((rail.0 + 1) % shape.rails))),
            7 => Self::FailDelivered,
            8 => Self::Copies(count),
            9 | 10 => Self::Words,
            _ => {
                let call = PortCall::ALL[random.below(PortCall::ALL.len())];
                Self::Call(call, random.below(20) as u32, count)
            }
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Call(call, ..) => format!("{call:?} fails"),
            other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
        }
    }

    /// Has the fault begin, or end, if it is one that lasts.
    pub(crate) fn set(self, fabric: &FakeFabric, begins: bool) {
        match self {
            Self::Stall(pe) if begins => fabric.stall(pe),
            Self::Stall(pe) => fabric.resume(pe),
            Self::Refuse(pe) => fabric.refuse(pe, begins),
            Self::HoldUp(pe) => fabric.hold_up_messages(pe, if begins { 50_000_000 } else { 0 }),
            Self::RailDown(pe, rail) => fabric.set_rail(pe, rail, !begins),
            Self::LinkDown(from, to) => fabric.set_link(from, to, !begins),
            Self::FailDelivered if begins => fabric.world().fail_delivered = 1,
            Self::FailDelivered => fabric.world().report_failing(),
            Self::Call(call, after, count) if begins => fabric.fail_calls(call, after, count),
            Self::Words => fabric.world().fail_settling = begins,
            Self::Copies(count) if begins => fabric.world().fail_copies = (2, count),
            Self::LoseCompletions(count) if begins => fabric.world().lose_next = count,
            Self::LoseImmediateData(count) if begins => fabric.world().lose_next_data = count,
            _ => {}
        }
    }
}
