//! Spreading of operations over rails, by the settings and the provider's profile.

use crate::settings::{RailBalance, Settings, StripeThreshold};
use engine::rails::Spread;
use ofi::Striping;

/// Factor by which segments are longer on bulk connections, whose threads are woken for each.
const LONGER: usize = 4;

pub(crate) fn spread(settings: &Settings, suits: Striping, bulk: bool) -> Spread {
    if settings.rail_balance == RailBalance::RoundRobin {
        return Spread::ROUND_ROBIN;
    }
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Spread {
        balanced_from: Spread::BALANCED_FROM,
        striped_from: match settings.stripe_threshold {
            StripeThreshold::Auto => suits.from,
            StripeThreshold::Never => usize::MAX,
            // Shorter operations are not striped: each takes one rail.
            StripeThreshold::Bytes(value) => bytes(value),
        },
        segment: match settings.stripe_segment {
            0 if bulk => LONGER * suits.segment,
            0 => suits.segment,
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
        let suits = Striping { from: 3 << 18, segment: 1 << 18 };
        let auto = spread(&settings, suits, false);
        assert_eq!((auto.striped_from, auto.segment), (suits.from, suits.segment));
        let bulk = spread(&settings, suits, true);
        assert_eq!((bulk.striped_from, bulk.segment), (suits.from, 4 * suits.segment));
        let stripe_threshold = StripeThreshold::Bytes(1 << 20);
        let set = Settings { stripe_threshold, stripe_segment: 1 << 16, ..settings.clone() };
        let set = spread(&set, suits, true);
        assert_eq!((set.striped_from, set.segment), (1 << 20, 1 << 16));
        let never = Settings { stripe_threshold: StripeThreshold::Never, ..settings.clone() };
        assert_eq!(spread(&never, suits, false).striped_from, usize::MAX);
        let whole = Settings { rail_balance: RailBalance::RoundRobin, ..settings };
        assert_eq!(spread(&whole, suits, true), Spread::ROUND_ROBIN);
    }
}
