//! Signals: how the signal of a put is made to follow its data.
//!
//! A signal becomes visible after its own data, and is ordered with nothing else. There are three
//! ways, all right on any rails that offer what they need: *eager* (data and signal are one
//! message), *counted* (the target applies the signal when it has counted the data's segments)
//! and *chained* (the signal is sent when its own data is delivered). The lane drives them.

pub mod counted;
pub(crate) mod progress;

#[cfg(any(test, feature = "audit"))]
use crate::port::Port;
#[cfg(any(test, feature = "audit"))]
use crate::posting::Core;
use crate::request::Parts;
#[cfg(any(test, feature = "audit"))]
use crate::state::counts::Counts;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::wire::message::{MAX_EAGER, MAX_LONG_MESSAGE, MAX_MESSAGE, eager_in};
use crate::wire::staged::MAX_PAYLOAD;

/// How the signal of a put is made to follow its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalEngine {
    /// The fastest of the others that the put and the fabric allow.
    Auto,
    /// The signal is sent when its own data is delivered.
    Chained,
    /// Data and signal are one message; chained where the data is too long for that.
    Eager,
    /// Data and signal go out at once on all rails, and the peer applies the signal when it has
    /// counted the data's segments; chained where rails carry no immediate data.
    Counted,
}

/// The way that one signal goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Chained,
    Eager,
    /// The same, of bytes that are not copied before the message leaves.
    LongEager,
    /// The same, of a few bytes more: these go in a message of their own before it.
    Split,
    Counted,
}

/// What a lane knows of its signals, and of those of its peers that wait for their data.
#[derive(Debug)]
pub(crate) struct Signals {
    pub(crate) engine: SignalEngine,
    /// Whether a signal may go in one message with its data.
    eager: bool,
    /// The same on the fast path, of a lane that does not order signals and of one that does.
    is_fast: [bool; 2],
    /// Most bytes that go in one message with their signal, where the processor reaches them at
    /// both ends.
    pub(crate) most_eager: usize,
    /// Most counted puts to one peer; 0 when nothing is counted.
    pub(crate) most_counted: u16,
    /// Signals of all peers that have arrived and wait for their data.
    unapplied: u32,
}

impl Signals {
    pub(crate) fn new(engine: SignalEngine, most_counted: u16, longest: usize) -> Self {
        let eager = matches!(engine, SignalEngine::Auto | SignalEngine::Eager);
        let most_eager = eager_in(longest.clamp(MAX_MESSAGE, MAX_LONG_MESSAGE));
        let is_fast = [eager, false];
        Self { engine, eager, is_fast, most_eager, most_counted, unapplied: 0 }
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit<P: Port>(&self, core: &Core<P>) -> Result<(), Discrepancy> {
        let counts = core
            .peers
            .iter()
            .filter_map(|connection| connection.channel.as_deref()?.counts.as_deref());
        same(
            "signals of peers that wait for their data",
            self.unapplied,
            counts.map(Counts::waiting).sum(),
        )
    }

    #[inline(always)]
    pub(crate) fn is_eager(&self) -> bool {
        self.eager
    }

    /// Whether a signal may go in one message with its data, on the fast path of a lane that does
    /// not order signals, or of one that does.
    #[inline(always)]
    pub(crate) fn is_fast<const ORDERED: bool>(&self) -> bool {
        self.is_fast[usize::from(ORDERED)]
    }

    pub(crate) fn order(&mut self) {
        self.is_fast = [false, self.eager];
    }

    /// The way for the signal of these parts, none of which needs staging unless `staged`.
    pub(crate) fn way(&self, parts: &(impl Parts + ?Sized), staged: bool) -> Way {
        let bytes = parts.bytes();
        if self.is_eager() && bytes <= MAX_EAGER && parts.count() == 1 {
            return Way::Eager;
        }
        if staged {
            return Way::Chained;
        }
        if self.is_eager() && bytes <= self.most_eager && parts.count() == 1 {
            return Way::LongEager;
        }
        let has_long = self.is_eager() && self.most_eager > MAX_EAGER;
        if has_long && bytes <= self.most_eager + MAX_PAYLOAD && parts.count() == 1 {
            return Way::Split;
        }
        self.way_of_writes()
    }

    pub(crate) fn way_of_writes(&self) -> Way {
        let counted = matches!(self.engine, SignalEngine::Auto | SignalEngine::Counted);
        if counted && self.most_counted > 0 { Way::Counted } else { Way::Chained }
    }
}

#[cfg(test)]
mod tests {
    use crate::posting::tests::{Bed, PLAIN};

    #[test]
    fn an_audit_finds_a_signal_that_is_counted_and_does_not_wait() {
        let mut bed = Bed::new(PLAIN);
        bed.lane.audit().unwrap();
        bed.lane.signals_mut().unapplied += 1;
        bed.lane.audit().unwrap_err();
    }
}
