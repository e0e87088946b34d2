//! How operations are spread over rails: the settings, and what suits each provider.

use crate::engine::striping::balance::Spread;
use crate::settings::{RailBalance, Settings, StripeThreshold};

/// Least bytes of a put or get that is cut, and most of its segments, where software moves the bytes: a
/// segment costs a few microseconds there, and rates are such that this is little beside it.
const SOFTWARE: (usize, usize) = (128 << 10, 128 << 10);

/// The same for NICs. Those reach their rate with operations of some hundred KiB.
const NIC: (usize, usize) = (512 << 10, 512 << 10);

/// What the settings ask for with a provider.
pub(crate) fn spread(settings: &Settings, provider: &str) -> Spread {
    if settings.rail_balance == RailBalance::RoundRobin {
        return Spread::ROUND_ROBIN;
    }
    let software = provider.starts_with("tcp") || provider == "shm";
    let (threshold, segment) = if software { SOFTWARE } else { NIC };
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Spread {
        weighed_from: Spread::WEIGHED_FROM,
        striped_from: match settings.stripe_threshold {
            StripeThreshold::Auto => threshold,
            StripeThreshold::Never => usize::MAX,
            // Shorter ones are not weighed, let alone cut.
            StripeThreshold::Bytes(value) => bytes(value),
        },
        segment: match settings.stripe_segment {
            0 => segment,
            value => bytes(value),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_override_what_suits_the_provider() {
        let settings = Settings::default();
        let auto = spread(&settings, "tcp;ofi_rxm");
        assert_eq!((auto.striped_from, auto.segment), SOFTWARE);
        assert_eq!(spread(&settings, "efa").segment, NIC.1);
        let stripe_threshold = StripeThreshold::Bytes(1 << 20);
        let set = Settings { stripe_threshold, stripe_segment: 1 << 16, ..settings.clone() };
        let set = spread(&set, "efa");
        assert_eq!((set.striped_from, set.segment), (1 << 20, 1 << 16));
        let never = Settings { stripe_threshold: StripeThreshold::Never, ..settings.clone() };
        assert_eq!(spread(&never, "cxi").striped_from, usize::MAX);
        let whole = Settings { rail_balance: RailBalance::RoundRobin, ..settings };
        assert_eq!(spread(&whole, "cxi"), Spread::ROUND_ROBIN);
    }
}
