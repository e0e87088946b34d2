//! Kinds of settings: from text to a value and back.
//!
//! A parser's error is the text's fault; the caller adds setting, text and accepted values.

use std::fmt;
use std::time::Duration;

use super::choices::{Choice, StripeThreshold, name_of};
use super::notice::near;
use ofi::{BulkChoice, Devices};

/// The syntax of settings of type `T`.
pub(super) trait Kind<T> {
    /// Describes the accepted values to the user.
    fn accepts(&self) -> String;

    /// Parses a value, which is not empty.
    fn parse(&self, text: &str) -> Result<T, String>;

    /// Formats a value as the user would write it.
    fn show(&self, value: &T) -> String;
}

/// One of a few names, in any case.
pub(super) struct Names;

impl<C: Choice> Kind<C> for Names {
    fn accepts(&self) -> String {
        C::NAMES.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ")
    }

    fn parse(&self, text: &str) -> Result<C, String> {
        let found = C::NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|&(_, value)| value).ok_or_else(|| {
            match near(text, C::NAMES.iter().map(|&(name, _)| name)).first() {
                Some(near) => format!("unknown value (did you mean {near}?)"),
                None => String::from("unknown value"),
            }
        })
    }

    fn show(&self, value: &C) -> String {
        String::from(name_of(*value))
    }
}

/// A truth value as NVSHMEM reads it.
pub(super) struct Truth;

impl Kind<bool> for Truth {
    fn accepts(&self) -> String {
        String::from("0, no or false; anything else is true")
    }

    fn parse(&self, text: &str) -> Result<bool, String> {
        Ok(!text.starts_with(['0', 'N', 'n', 'F', 'f']))
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }
}

#[derive(Clone, Copy)]
pub(super) struct Number {
    min: u64,
    max: u64,
    /// Meaning of 0, which is accepted whatever the least number is.
    zero: Option<&'static str>,
    /// The suffixes K, M and G (powers of 1024) are accepted.
    suffixes: bool,
    multiple_of: u64,
    power_of_two: bool,
}

pub(super) const fn number(min: u64, max: u64) -> Number {
    Number { min, max, zero: None, suffixes: false, multiple_of: 1, power_of_two: false }
}

pub(super) const fn bytes(min: u64, max: u64) -> Number {
    Number { suffixes: true, ..number(min, max) }
}

impl Number {
    pub(super) const fn or_zero(self, meaning: &'static str) -> Self {
        Self { zero: Some(meaning), ..self }
    }

    pub(super) const fn multiple_of(self, unit: u64) -> Self {
        Self { multiple_of: unit, ..self }
    }

    pub(super) const fn power_of_two(self) -> Self {
        Self { power_of_two: true, ..self }
    }

    fn read(&self, text: &str) -> Result<u64, String> {
        let (digits, shift) = if self.suffixes { split_suffix(text) } else { (text, 0) };
        // `u64::from_str` would take a leading '+'.
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(String::from("not a number"));
        }
        // All digits, so the only way to fail is to be too large.
        let value = digits.parse::<u64>().ok().and_then(|value| value.checked_mul(1 << shift));
        match value {
            Some(0) if self.zero.is_some() => Ok(0),
            Some(value) if value < self.min => Err(String::from("too small")),
            Some(value) if value > self.max => Err(String::from("too large")),
            Some(value) if value % self.multiple_of != 0 => {
                Err(format!("not a multiple of {}", self.multiple_of))
            }
            Some(value) if self.power_of_two && !value.is_power_of_two() => {
                Err(String::from("not a power of two"))
            }
            Some(value) => Ok(value),
            None => Err(String::from("too large")),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max {
            u64::MAX => write!(f, "{} and more", self.min)?,
            max => write!(f, "{} to {max}", self.min)?,
        }
        if self.suffixes {
            f.write_str(", also with K, M or G (powers of 1024)")?;
        }
        if self.multiple_of > 1 {
            write!(f, "; a multiple of {}", self.multiple_of)?;
        }
        if self.power_of_two {
            f.write_str("; a power of two")?;
        }
        self.zero.map_or(Ok(()), |meaning| write!(f, "; 0: {meaning}"))
    }
}

impl<T: TryFrom<u64, Error: fmt::Display> + fmt::Display> Kind<T> for Number {
    fn accepts(&self) -> String {
        self.to_string()
    }

    fn parse(&self, text: &str) -> Result<T, String> {
        T::try_from(self.read(text)?).map_err(|error| error.to_string())
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

fn split_suffix(text: &str) -> (&str, u32) {
    for (letter, shift) in [('k', 10), ('m', 20), ('g', 30)] {
        if let Some(digits) = text.strip_suffix([letter, letter.to_ascii_uppercase()]) {
            return (digits, shift);
        }
    }
    (text, 0)
}

/// A number of units of time. If it is optional, 0 is none.
pub(super) struct Time {
    pub(super) number: Number,
    pub(super) unit: Duration,
}

impl Time {
    pub(super) const fn seconds(number: Number) -> Self {
        Self { number, unit: Duration::from_secs(1) }
    }
}

impl Kind<Duration> for Time {
    fn accepts(&self) -> String {
        self.number.to_string()
    }

    fn parse(&self, text: &str) -> Result<Duration, String> {
        let units: u32 = self.number.parse(text)?;
        Ok(self.unit * units)
    }

    fn show(&self, value: &Duration) -> String {
        (value.as_micros() / self.unit.as_micros()).to_string()
    }
}

impl Kind<Option<Duration>> for Time {
    fn accepts(&self) -> String {
        self.number.to_string()
    }

    fn parse(&self, text: &str) -> Result<Option<Duration>, String> {
        Kind::<Duration>::parse(self, text).map(|value| (!value.is_zero()).then_some(value))
    }

    fn show(&self, value: &Option<Duration>) -> String {
        Kind::<Duration>::show(self, &value.unwrap_or_default())
    }
}

pub(super) struct Text {
    /// The word for none, if none is accepted.
    pub(super) none: &'static str,
    pub(super) accepts: &'static str,
}

impl Kind<String> for Text {
    fn accepts(&self) -> String {
        String::from(self.accepts)
    }

    fn parse(&self, text: &str) -> Result<String, String> {
        Ok(String::from(text))
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

impl Kind<Option<String>> for Text {
    fn accepts(&self) -> String {
        format!("{}, or {}", self.none, self.accepts)
    }

    fn parse(&self, text: &str) -> Result<Option<String>, String> {
        Ok((text != self.none).then(|| String::from(text)))
    }

    fn show(&self, value: &Option<String>) -> String {
        String::from(value.as_deref().unwrap_or(self.none))
    }
}

pub(super) struct DeviceList;

const ALL_DEVICES: &str = "all";

impl Kind<Devices> for DeviceList {
    fn accepts(&self) -> String {
        String::from(
            "all; or names of domains, interfaces or NICs, or IP addresses, separated by commas; or the same with '^' in \
             front of each",
        )
    }

    fn parse(&self, text: &str) -> Result<Devices, String> {
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

    fn show(&self, devices: &Devices) -> String {
        match devices {
            Devices::Any => String::from(ALL_DEVICES),
            Devices::Include(names) => names.join(","),
            Devices::Exclude(names) => format!("^{}", names.join(",^")),
        }
    }
}

pub(super) struct OrAuto(pub(super) Number);

impl Kind<BulkChoice> for OrAuto {
    fn accepts(&self) -> String {
        format!("auto, or {}", self.0)
    }

    fn parse(&self, text: &str) -> Result<BulkChoice, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(BulkChoice::Auto);
        }
        // Its bounds are those of the type.
        self.0.read(text).map(|count| BulkChoice::Each(count as u8))
    }

    fn show(&self, value: &BulkChoice) -> String {
        match value {
            BulkChoice::Auto => String::from("auto"),
            BulkChoice::Each(count) => count.to_string(),
        }
    }
}

impl Kind<StripeThreshold> for Number {
    fn accepts(&self) -> String {
        format!("auto, never, or {self}")
    }

    fn parse(&self, text: &str) -> Result<StripeThreshold, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "auto" => StripeThreshold::Auto,
            "never" => StripeThreshold::Never,
            bytes => StripeThreshold::Bytes(self.read(bytes)?),
        })
    }

    fn show(&self, value: &StripeThreshold) -> String {
        match value {
            StripeThreshold::Auto => String::from("auto"),
            StripeThreshold::Never => String::from("never"),
            StripeThreshold::Bytes(bytes) => bytes.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi::Provider;

    fn include(names: &[&str]) -> Devices {
        Devices::Include(names.iter().map(|&name| String::from(name)).collect())
    }

    #[test]
    fn numbers_are_read_or_refused() {
        let (any, small) = (bytes(0, u64::MAX), number(1, 32));
        for (kind, text, value) in [
            (any, "0", Ok(0)),
            (any, "64k", Ok(65536)),
            (any, "3M", Ok(3 << 20)),
            (any, "1G", Ok(1 << 30)),
            (any, "18446744073709551615", Ok(u64::MAX)),
            (any, "18446744073709551616", Err("too large")),
            (any, "17179869183G", Ok(17_179_869_183 << 30)),
            (any, "17179869184G", Err("too large")),
            (small, "4K", Err("not a number")),
            (small, "0", Err("too small")),
            (small, "32", Ok(32)),
            (small, "33", Err("too large")),
            (small.or_zero("none"), "0", Ok(0)),
            (small.power_of_two(), "12", Err("not a power of two")),
            (small.multiple_of(8), "12", Err("not a multiple of 8")),
        ] {
            assert_eq!(kind.read(text), value.map_err(String::from), "{text}");
        }
        for text in ["K", "-1", "+1", "1.5", "0x10", "1 K", "1KB", "1e3", "ten"] {
            assert_eq!(any.read(text), Err("not a number".into()), "{text}");
        }
        let narrow: Result<u8, String> = number(1, 1000).parse("256");
        assert!(narrow.is_err(), "it would not fit");
    }

    #[test]
    fn device_order_and_repeats_stay() {
        assert_eq!(DeviceList.parse("lo, eth0 ,lo"), Ok(include(&["lo", "eth0", "lo"])));
        assert_eq!(DeviceList.parse("^eth0"), Ok(Devices::Exclude(vec!["eth0".into()])));
        assert_eq!(DeviceList.parse("fe80::1%eth0"), Ok(include(&["fe80::1%eth0"])));
        for text in ["all", "a,b", "^a,^b"] {
            assert_eq!(DeviceList.show(&DeviceList.parse(text).unwrap()), text);
        }
    }

    #[test]
    fn devices_refuse_empty_entries_and_mixtures() {
        assert_eq!(DeviceList.parse("a,,b"), Err("entry 2 is empty".into()));
        assert_eq!(DeviceList.parse("a,"), Err("entry 2 is empty".into()));
        assert_eq!(DeviceList.parse("^"), Err("entry 1 is empty".into()));
        for mixed in ["^a,b", "a,^b"] {
            let refused = DeviceList.parse(mixed);
            assert!(refused.is_err_and(|reason| reason.contains("all or none")), "{mixed}");
        }
    }

    #[test]
    fn names_are_read_in_any_case() {
        for &(name, value) in Provider::NAMES {
            assert_eq!(Names.parse(&name.to_uppercase()), Ok(value));
            assert_eq!((Names.show(&value), value.to_string()), (name.into(), name.into()));
        }
    }
}
