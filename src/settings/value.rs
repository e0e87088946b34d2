//! Kinds of values of settings: from text to a value and back.
//!
//! A parser returns what is wrong with the text; the caller adds the variable's name, the text
//! and what is accepted.

use std::fmt;
use std::time::Duration;

use super::{
    ConsistencyChoice, CountersSignal, RailBalance, SignalChoice, StagingChoice, WordsChoice,
    YieldWhen,
};
use ofi::topology::Distance;
use ofi::{AtomicsChoice, BatchChoice, Devices, GpuDirect, Progress, Provider, Threading};

/// A setting that takes one of a few names.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// Every value with its name. Each value has a name.
    const NAMES: &'static [(&'static str, Self)];
}

/// Gives each value of some types its name.
macro_rules! choices {
    ($($choice:ident { $($name:literal = $value:ident),+ $(,)? })+) => {$(
        impl Choice for $choice {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, Self::$value)),+];
        }
    )+};
}

choices! {
    Progress { "auto" = Auto, "manual" = Manual }
    Threading { "completion" = Completion, "domain" = Domain, "safe" = Safe }
    RailBalance { "rate" = Rate, "round_robin" = RoundRobin }
    SignalChoice {
        "auto" = Auto, "native" = Native, "chained" = Chained, "eager" = Eager,
        "counted" = Counted,
    }
    AtomicsChoice { "auto" = Auto, "native" = Native, "target" = Target }
    BatchChoice { "auto" = Auto, "always" = Always, "never" = Never }
    WordsChoice { "auto" = Auto, "gdrcopy" = Gdrcopy, "dmabuf" = DmaBuf, "stream" = Stream }
    StagingChoice { "auto" = Auto, "own" = Own, "program" = Program }
    GpuDirect { "auto" = Auto, "always" = Always, "never" = Never }
    Distance { "loc" = Loc, "pix" = Pix, "pxb" = Pxb, "phb" = Phb, "node" = Node, "sys" = Sys }
    ConsistencyChoice {
        "auto" = Auto, "none" = None, "flush" = Flush, "read" = Read, "write-read" = WriteRead,
    }
    CountersSignal { "none" = None, "usr1" = Usr1, "usr2" = Usr2 }
    YieldWhen { "auto" = Auto, "always" = Always, "never" = Never }
}

impl Choice for Provider {
    const NAMES: &'static [(&'static str, Self)] = Self::NAMES;
}

impl fmt::Display for CountersSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(*self))
    }
}

/// Parses a truth value as NVSHMEM does: false if it begins like 0, no or false, else true.
pub(super) fn truth(text: &str) -> bool {
    !text.starts_with(['0', 'N', 'n', 'F', 'f'])
}

/// Parses a name, in any case.
pub(super) fn choice<C: Choice>(text: &str) -> Result<C, String> {
    C::NAMES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
        .map(|&(_, value)| value)
        .ok_or_else(|| String::from("unknown value"))
}

/// The name of a value.
pub(super) fn name_of<C: Choice>(value: C) -> String {
    C::NAMES
        .iter()
        .find(|&&(_, candidate)| candidate == value)
        .map_or_else(String::new, |&(name, _)| String::from(name))
}

/// What a choice accepts.
pub(super) fn names<C: Choice>() -> String {
    C::NAMES.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// The numbers that a setting takes.
pub(super) struct Range {
    /// Smallest.
    pub(super) min: u64,
    /// Largest.
    pub(super) max: u64,
    /// What 0 stands for, when it is not just a number.
    pub(super) zero: Option<&'static str>,
    /// Whether K, M and G may follow (powers of 1024).
    pub(super) suffixes: bool,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.max == u64::MAX {
            write!(f, "a number from {}", self.min)?;
        } else {
            write!(f, "a number from {} to {}", self.min, self.max)?;
        }
        if self.suffixes {
            write!(f, ", also with K, M or G (powers of 1024)")?;
        }
        match self.zero {
            Some(meaning) => write!(f, "; 0: {meaning}"),
            None => Ok(()),
        }
    }
}

impl Range {
    /// Parses a number of this range.
    pub(super) fn parse(&self, text: &str) -> Result<u64, String> {
        let (digits, shift) = if self.suffixes { split_suffix(text) } else { (text, 0) };
        // `u64::from_str` would take a leading '+'.
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(String::from("not a number"));
        }
        // All digits, so the only way to fail is to be too large.
        let value = digits.parse::<u64>().ok().and_then(|value| value.checked_mul(1 << shift));
        match value {
            Some(value) if value < self.min => Err(String::from("too small")),
            Some(value) if value <= self.max => Ok(value),
            Some(_) | None => Err(String::from("too large")),
        }
    }
}

/// Splits a number from its suffix; the suffix as a power of two.
fn split_suffix(text: &str) -> (&str, u32) {
    let suffixes = [('k', 10), ('m', 20), ('g', 30)];
    for (letter, shift) in suffixes {
        if let Some(digits) = text.strip_suffix([letter, letter.to_ascii_uppercase()]) {
            return (digits, shift);
        }
    }
    (text, 0)
}

/// Seconds as a duration, 0 meaning never.
pub(super) fn seconds(value: u64) -> Option<Duration> {
    (value > 0).then(|| Duration::from_secs(value))
}

/// A duration as the user would write it.
pub(super) fn show_seconds(value: Option<Duration>) -> String {
    value.map_or(0, |value| value.as_secs()).to_string()
}

/// Names no device in particular.
const ALL_DEVICES: &str = "all";

/// Parses a list of devices.
pub(super) fn devices(text: &str) -> Result<Devices, String> {
    if text.eq_ignore_ascii_case(ALL_DEVICES) {
        return Ok(Devices::Any);
    }
    let mut include = Vec::new();
    let mut exclude = Vec::new();
    for (i, entry) in text.split(',').map(str::trim).enumerate() {
        let (list, name) = match entry.strip_prefix('^') {
            Some(name) => (&mut exclude, name.trim()),
            None => (&mut include, entry),
        };
        if name.is_empty() {
            return Err(format!("entry {} is empty", i + 1));
        }
        list.push(String::from(name));
    }
    match (include.is_empty(), exclude.is_empty()) {
        (false, false) => Err(String::from(
            "some entries have '^' in front and some have not: it must be all or none",
        )),
        (false, true) => Ok(Devices::Include(include)),
        (true, _) => Ok(Devices::Exclude(exclude)),
    }
}

/// A list of devices as the user would write it.
pub(super) fn show_devices(devices: &Devices) -> String {
    match devices {
        Devices::Any => String::from(ALL_DEVICES),
        Devices::Include(names) => names.join(","),
        Devices::Exclude(names) => {
            names.iter().map(|name| format!("^{name}")).collect::<Vec<_>>().join(",")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Range = Range { min: 0, max: u64::MAX, zero: None, suffixes: true };
    const SMALL: Range = Range { min: 1, max: 32, zero: None, suffixes: false };

    fn include(names: &[&str]) -> Devices {
        Devices::Include(names.iter().map(|&name| String::from(name)).collect())
    }

    #[test]
    fn suffixes_are_powers_of_1024_and_overflow_is_refused() {
        assert_eq!(BYTES.parse("0"), Ok(0));
        assert_eq!(BYTES.parse("64k"), Ok(65536));
        assert_eq!(BYTES.parse("3M"), Ok(3 << 20));
        assert_eq!(BYTES.parse("1G"), Ok(1 << 30));
        assert_eq!(BYTES.parse("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(BYTES.parse("18446744073709551616"), Err("too large".into()));
        assert_eq!(BYTES.parse("17179869184G"), Err("too large".into()));
        assert_eq!(BYTES.parse("17179869183G"), Ok(17_179_869_183 << 30));
    }

    #[test]
    fn what_is_not_a_plain_number_is_refused() {
        for text in ["K", "-1", "+1", "1.5", "0x10", "1 K", "1KB", "1e3", "ten"] {
            assert_eq!(BYTES.parse(text), Err("not a number".into()), "{text}");
        }
        assert_eq!(SMALL.parse("4K"), Err("not a number".into()));
        assert_eq!(SMALL.parse("0"), Err("too small".into()));
        assert_eq!(SMALL.parse("33"), Err("too large".into()));
        assert_eq!(SMALL.parse("32"), Ok(32));
    }

    #[test]
    fn devices_keep_their_order_and_may_repeat() {
        assert_eq!(devices("lo, eth0 ,lo"), Ok(include(&["lo", "eth0", "lo"])));
        assert_eq!(devices("^eth0"), Ok(Devices::Exclude(vec!["eth0".into()])));
        assert_eq!(devices("fe80::1%eth0"), Ok(include(&["fe80::1%eth0"])));
    }

    #[test]
    fn devices_refuse_empty_entries_and_mixtures() {
        assert_eq!(devices("a,,b"), Err("entry 2 is empty".into()));
        assert_eq!(devices("a,"), Err("entry 2 is empty".into()));
        assert_eq!(devices("^"), Err("entry 1 is empty".into()));
        for mixed in ["^a,b", "a,^b"] {
            assert!(devices(mixed).is_err_and(|reason| reason.contains("all or none")), "{mixed}");
        }
    }

    #[test]
    fn what_is_shown_parses_to_the_same_value() {
        for text in ["all", "a,b", "^a,^b"] {
            assert_eq!(show_devices(&devices(text).unwrap()), text);
        }
        for &(name, value) in Provider::NAMES {
            assert_eq!(name_of(value), name);
            assert!(choice::<Provider>(&name.to_uppercase()) == Ok(value));
        }
    }
}
