//! Settings that take one of a few names.

use ofi::topology::Distance;
use ofi::{GpuDirect, Provider, Threading};

/// A type whose every value has a name.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// Every value with its name.
    const NAMES: &'static [(&'static str, Self)];
}

pub(super) fn name_of<C: Choice>(value: C) -> &'static str {
    C::NAMES.iter().find(|(_, candidate)| *candidate == value).map_or("", |(name, _)| name)
}

/// Gives each value of a type of a lower layer its name.
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
        $choice:ident { $($(#[$meaning:meta])+ $value:ident = $name:literal,)+ }
    )+) => {$(
        $(#[$about])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $choice {
            $($(#[$meaning])+ $value,)+
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
    Distance { Loc = "loc", Pix = "pix", Pxb = "pxb", Phb = "phb", Node = "node", Sys = "sys" }
}

choices! {
    /// Which rail an operation goes by.
    RailBalance {
        /// The one that is expected to be done with it first.
        Rate = "rate",
        /// The next.
        RoundRobin = "round_robin",
    }

    /// How the signal of a put follows its data.
    SignalChoice {
        /// The fastest that each put and the provider allow.
        Auto = "auto",
        /// When its own data is delivered.
        Chained = "chained",
        /// In one message with small data.
        Eager = "eager",
        /// At once, for the target to count the data's segments.
        Counted = "counted",
    }

    /// Which CUDA context memory of devices is staged in.
    StagingChoice {
        /// One of the transport's own where that works.
        Auto = "auto",
        /// One of the transport's own.
        Own = "own",
        /// The program's.
        Program = "program",
    }

    /// How the CPU reaches words in memory of devices.
    WordsChoice {
        /// The first that works of the others.
        Auto = "auto",
        /// By GDRCopy.
        Gdrcopy = "gdrcopy",
        /// By the driver's streams.
        Stream = "stream",
    }

    /// How data that NICs have written to device memory is made visible to the device.
    ConsistencyChoice {
        /// As the device's attributes ask for.
        Auto = "auto",
        /// Nothing is done.
        None = "none",
        /// CUDA's flush call.
        Flush = "flush",
        /// A read through each rail.
        Read = "read",
        /// A write, then a read, through each rail.
        WriteRead = "write-read",
    }

    /// When an idle progress call gives up its core.
    YieldWhen {
        /// When the host is short of cores.
        Auto = "auto",
        /// Always.
        Always = "always",
        /// Never.
        Never = "never",
    }
}

/// Which operations are cut into segments for all rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeThreshold {
    /// Those for which it pays with the provider.
    Auto,
    /// None.
    Never,
    /// Those with at least so many bytes.
    Bytes(u64),
}
