//! The applier of a job's atomics: the fabric at the target, or the target's proxy thread.
//!
//! Two that change one word are not atomic together, so all PEs agree on one when they connect.

use std::fmt;

use crate::ids::Pe;
use crate::wire::handshake::ExchangeError;
use crate::wire::offer::{Offer, Wish};

/// What executes the atomics of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applier {
    /// The proxy thread of the PE that has the word, asked by messages.
    Target,
    /// The fabric, at the PE that has the word.
    Fabric,
}

/// What was agreed, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// Who executes atomics.
    pub applier: Applier,
    /// The reason, in words.
    pub reason: String,
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applier = match self.applier {
            Applier::Target => "the target's proxy thread",
            Applier::Fabric => "the fabric",
        };
        write!(f, "atomics are executed by {applier}: {}", self.reason)
    }
}

impl Agreement {
    /// Agrees, from the offers of all PEs in PE order. Every PE comes to the same result.
    ///
    /// # Errors
    /// PEs whose users want different things, or atomics of the fabric wanted and not offered
    /// everywhere.
    pub fn reach<'a>(
        offers: impl Iterator<Item = &'a Offer> + Clone,
    ) -> Result<Self, ExchangeError> {
        let first = offers.clone().next().map_or(Wish::Target, |offer| offer.wish);
        let mut all = (0..).map(Pe).zip(offers.clone());
        if let Some((pe, offer)) = all.find(|(_, offer)| offer.wish != first) {
            let (theirs, first) = (offer.wish.name(), first.name());
            return Err(ExchangeError::Atomics { pe, theirs, first });
        }
        let lacking = |(pe, offer): (Pe, &Offer)| Some((pe, offer.lacks.clone()?));
        let lacking: Vec<(Pe, String)> =
            (0..).map(Pe).zip(offers.clone()).filter_map(lacking).collect();
        let target = |reason| Ok(Self { applier: Applier::Target, reason });
        match (first, lacking.first()) {
            (Wish::Target, _) => target(String::from("NVSHMEM_LIBFABRIC_ATOMICS is target")),
            (Wish::Native, None) => Ok(Self {
                applier: Applier::Fabric,
                reason: String::from("NVSHMEM_LIBFABRIC_ATOMICS is native"),
            }),
            (Wish::Native, Some(_)) => Err(ExchangeError::NoNativeAtomics(lacking)),
            (Wish::Auto, None) if offers.clone().all(|offer| offer.hardware) => Ok(Self {
                applier: Applier::Fabric,
                reason: String::from("every PE's rails do them in hardware"),
            }),
            (Wish::Auto, Some((pe, lack))) => target(format!("{pe}: {lack}")),
            (Wish::Auto, None) => {
                target(String::from("the provider's own are software on the target's processor"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(wish: Wish, hardware: bool, lacks: Option<&str>) -> Offer {
        Offer { wish, hardware, lacks: lacks.map(str::to_owned) }
    }

    fn applier(offers: &[Offer]) -> Applier {
        Agreement::reach(offers.iter()).unwrap().applier
    }

    #[test]
    fn auto_takes_hardware_that_all_have() {
        let (hardware, software) = (offer(Wish::Auto, true, None), offer(Wish::Auto, false, None));
        let none = offer(Wish::Auto, false, Some("no FI_ATOMIC"));
        assert_eq!(applier(&[hardware.clone(), hardware.clone()]), Applier::Fabric);
        assert_eq!(applier(&[hardware.clone(), software.clone()]), Applier::Target);
        assert_eq!(applier(&[software.clone(), software]), Applier::Target);
        let mixed = Agreement::reach([hardware, none].iter()).unwrap();
        assert_eq!(mixed.applier, Applier::Target);
        assert!(mixed.to_string().contains("PE 1: no FI_ATOMIC"), "{mixed}");
    }

    #[test]
    fn native_is_everywhere_or_an_error_that_says_what_is_missing_where() {
        let has = offer(Wish::Native, false, None);
        assert_eq!(applier(&[has.clone(), has.clone()]), Applier::Fabric);
        let lacks = offer(Wish::Native, false, Some("rail mlx5_0 lacks: add float"));
        let error = Agreement::reach([has, lacks].iter()).unwrap_err().to_string();
        assert!(error.contains("PE 1: rail mlx5_0 lacks: add float"), "{error}");
    }

    #[test]
    fn pes_that_want_different_things_do_not_connect() {
        let target = offer(Wish::Target, true, None);
        assert_eq!(applier(&[target.clone(), target.clone()]), Applier::Target);
        let error = Agreement::reach([offer(Wish::Auto, true, None), target].iter()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("PE 1") && error.contains("target"), "{error}");
    }
}
