//! The spreading of operations over rails: from the settings, and what suits the provider.

use crate::settings::{RailBalance, Settings, StripeThreshold};
use engine::rails::balance::Spread;
use ofi::Striping;

/// What the settings ask for with a provider that this suits.
pub(crate) fn spread(settings: &Settings, suits: Striping) -> Spread {
    if settings.rail_balance == RailBalance::RoundRobin {
        return Spread::ROUND_ROBIN;
    }
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Spread {
        balanced_from: Spread::BALANCED_FROM,
        striped_from: match settings.stripe_threshold {
            StripeThreshold::Auto => suits.from,
            StripeThreshold::Never => usize::MAX,
            // Shorter ones go round the rails in turn, and are not cut.
            StripeThreshold::Bytes(value) => bytes(value),
        },
        segment: match settings.stripe_segment {
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
        let auto = spread(&settings, suits);
        assert_eq!((auto.striped_from, auto.segment), (suits.from, suits.segment));
        let stripe_threshold = StripeThreshold::Bytes(1 << 20);
        let set = Settings { stripe_threshold, stripe_segment: 1 << 16, ..settings.clone() };
        let set = spread(&set, suits);
        assert_eq!((set.striped_from, set.segment), (1 << 20, 1 << 16));
        let never = Settings { stripe_threshold: StripeThreshold::Never, ..settings.clone() };
        assert_eq!(spread(&never, suits).striped_from, usize::MAX);
        let whole = Settings { rail_balance: RailBalance::RoundRobin, ..settings };
        assert_eq!(spread(&whole, suits), Spread::ROUND_ROBIN);
    }
}
