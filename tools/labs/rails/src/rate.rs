//! The rate of a link.

use std::fmt;
use std::str::FromStr;

/// Bits per second on the wire, in one direction. As text `400mbit`, as `tc` has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(u64);

impl Rate {
    /// The units of `tc` that a rate may be written in.
    const UNITS: [(&str, u64); 3] = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];

    /// Bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.0 as f64 / 8.0
    }

    /// Bits per second, as `tc` takes them.
    pub(crate) fn for_tc(self) -> String {
        format!("{}bit", self.0)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let wrong = || format!("a rate is a number with kbit, mbit or gbit, not {text:?}");
        Rate::UNITS
            .iter()
            .find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)))
            .and_then(|(number, bits)| number.parse::<u64>().ok()?.checked_mul(*bits))
            .filter(|bits| *bits > 0)
            .map(Rate)
            .ok_or_else(wrong)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: &&(&str, u64)| self.0 % unit.1 == 0;
        match Rate::UNITS.iter().rev().find(fits) {
            Some((unit, bits)) => write!(f, "{}{unit}", self.0 / bits),
            None => f.write_str(&self.for_tc()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_shown_as_tc_has_them() {
        let rate: Rate = "400mbit".parse().unwrap();
        assert_eq!(rate.bytes_per_second(), 50e6);
        assert_eq!((rate.to_string(), rate.for_tc()), ("400mbit".into(), "400000000bit".into()));
        for wrong in ["", "400", "mbit", "0mbit", "-1mbit", "4 mbit", "99999999999999999gbit"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
