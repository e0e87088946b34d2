//! The order of a message and the writes before it.
//!
//! A signal sent as a message right behind its data relies on this (`FI_ORDER_SAW`), so a wrong
//! "yes" breaks the program silently, and a wrong "no" costs one wait for the data. The provider's
//! promise is necessary and not enough: its profile says whether somebody has examined it.

use crate::objects::info::Info;
use crate::provider::Profile;

/// Whether messages stay behind writes, on one rail, to one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageOrder {
    /// They do.
    pub kept: bool,
    /// Why we think so.
    pub reason: &'static str,
}

impl MessageOrder {
    pub(crate) fn of(profile: &Profile, info: &Info) -> Self {
        Self::judge(profile, info.sends_after_writes())
    }

    fn judge(profile: &Profile, promised: bool) -> Self {
        let known = &profile.messages_follow_writes;
        match (**known, promised) {
            (true, false) => Self { kept: false, reason: "it does not promise FI_ORDER_SAW" },
            (kept, _) => Self { kept, reason: known.why },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Provider, candidates};

    #[test]
    fn a_promise_is_needed_and_not_enough() {
        for tcp in candidates(Provider::Tcp) {
            assert!(MessageOrder::judge(tcp, true).kept, "{}", tcp.name);
            assert!(!MessageOrder::judge(tcp, false).kept, "{}", tcp.name);
        }
        for provider in [Provider::Efa, Provider::Cxi, Provider::Verbs, Provider::Shm] {
            assert!(!MessageOrder::judge(candidates(provider)[0], true).kept, "{provider:?}");
        }
    }
}
