//! Settings that take one of a few names.

use cuda::StagingContext;
use engine::lane::SignalChoice;
use ofi::topology::Distance;
use ofi::{GpuDirect, Provider, Threading};

/// A type with a name for every value.
pub(super) trait Choice: Copy + PartialEq + 'static {
    const NAMES: &'static [(&'static str, Self)];
}

pub(super) fn name_of<C: Choice>(value: C) -> &'static str {
    C::NAMES.iter().find(|(_, candidate)| *candidate == value).map_or("", |(name, _)| name)
}

/// Names the values of a type of a lower layer.
macro_rules! names {
    ($($choice:ident { $($value:ident = $name:literal),+ $(,)? })+) => {$(
        impl Choice for $choice {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, Self::$value)),+];
        }
    )+};
}

/// Defines types, and gives each value its name.
macro_rules! choices {
    ($(
        $(#[$about:meta])+
        $choice:ident { $($value:ident = $name:literal),+ $(,)? }
    )+) => {$(
        $(#[$about])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $choice {
            $($value,)+
        }

        names! { $choice { $($value = $name),+ } }
    )+};
}

impl Choice for Provider {
    const NAMES: &'static [(&'static str, Self)] = Self::NAMES;
}

names! {
    Threading { Completion = "completion", Domain = "domain", Safe = "safe" }
    GpuDirect { Auto = "auto", Always = "always", Never = "never" }
    SignalChoice { Auto = "auto", Chained = "chained", Eager = "eager", Counted = "counted" }
    StagingContext { Auto = "auto", Own = "own", Program = "program" }
    Distance { Loc = "loc", Pix = "pix", Pxb = "pxb", Phb = "phb", Node = "node", Sys = "sys" }
}

choices! {
    /// The choice of an operation's rail.
    RailBalance { Rate = "rate", RoundRobin = "round_robin" }

    /// How the CPU reaches words in memory of devices.
    WordsChoice { Auto = "auto", Gdrcopy = "gdrcopy", DmaBuf = "dma_buf", Stream = "stream" }

    /// How data that NICs have written to device memory is made visible to the device.
    ConsistencyChoice { Auto = "auto", None = "none", Flush = "flush" }

    /// When an idle progress call yields its core.
    YieldWhen { Auto = "auto", Always = "always", Never = "never" }
}

/// The choice of operations that are striped over all rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeThreshold {
    /// Operations that are faster striped with the provider.
    Auto,
    /// None.
    Never,
    /// Operations of at least this many bytes.
    Bytes(u64),
}
