//! Immediate data: what a write may tell its target, through the completion queue there, when its
//! data is visible.
//!
//! A counted signal relies on this, so a wrong "yes" breaks the program silently, and a wrong "no"
//! costs one wait for the data. libfabric promises it: a completion at the target means that the
//! transferred data can be read there (fi_cq(3), on completions at the target). The promise is
//! necessary and not enough: the provider's profile says whether it was seen to keep it.

use libfabric_sys::{FI_REMOTE_WRITE, FI_RX_CQ_DATA};

use crate::objects::info::Info;
use crate::provider::Profile;

/// Bytes of immediate data that are used, at least and at most. Every provider that has any offers
/// four (fi_domain(3)).
const BYTES: [usize; 2] = [4, 8];

/// Whether writes carry immediate data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImmediateData {
    /// They may.
    pub offered: bool,
    /// With how many bytes: four or eight.
    pub bytes: u8,
    /// Why we think so.
    pub reason: &'static str,
}

impl ImmediateData {
    pub(crate) fn of(profile: &Profile, info: &Info) -> Self {
        Self::judge(profile, info.caps(), info.mode(), info.cq_data_size())
    }

    fn judge(profile: &Profile, caps: u64, mode: u64, bytes: usize) -> Self {
        let no = |reason| Self { offered: false, bytes: 0, reason };
        let [least, most] = BYTES;
        if bytes < least {
            return no("it offers less than four bytes of immediate data");
        }
        if caps & FI_REMOTE_WRITE == 0 {
            return no("it does not offer to be written to (FI_REMOTE_WRITE)");
        }
        match (mode & FI_RX_CQ_DATA != 0, *profile.data_takes_receives) {
            // The buffers are there for messages, whose senders are held by the window.
            (true, false) => {
                return no(
                    "writes with immediate data would use up receive buffers (FI_RX_CQ_DATA)",
                );
            }
            // What takes a receive waits at the sender's NIC when there is none. Else nothing holds
            // back what peers write, and the queue of completions is the NIC's, which ends when it
            // overruns.
            (false, true) => {
                return no(
                    "nothing keeps writes with immediate data from overrunning its queue (no FI_RX_CQ_DATA)",
                );
            }
            _ => {}
        }
        let bytes = if bytes < most { least } else { most } as u8;
        Self { offered: *profile.immediate_data, bytes, reason: profile.immediate_data.why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Provider, candidates};

    #[test]
    fn all_ingredients_are_needed_and_the_provider_must_be_known() {
        let judge = |provider, caps, mode, bytes| {
            ImmediateData::judge(candidates(provider)[0], caps, mode, bytes).offered
        };
        for provider in [Provider::Tcp, Provider::TcpRxm, Provider::Shm] {
            for (bytes, used) in [(4, 4), (7, 4), (8, 8), (16, 8)] {
                assert!(judge(provider, FI_REMOTE_WRITE, 0, bytes), "{provider:?}");
                let profile = candidates(provider)[0];
                let judged = ImmediateData::judge(profile, FI_REMOTE_WRITE, 0, bytes);
                assert_eq!(judged.bytes, used, "{provider:?}");
            }
            assert!(!judge(provider, FI_REMOTE_WRITE, 0, 0), "{provider:?}");
            assert!(!judge(provider, 0, 0, 8), "{provider:?}");
            assert!(!judge(provider, FI_REMOTE_WRITE, FI_RX_CQ_DATA, 8), "{provider:?}");
        }
        for provider in [Provider::Cxi, Provider::Verbs] {
            assert!(!judge(provider, FI_REMOTE_WRITE, 0, 8), "{provider:?}");
        }
    }

    #[test]
    fn over_efa_writes_that_tell_take_receives() {
        let judge =
            |mode| ImmediateData::judge(candidates(Provider::Efa)[0], FI_REMOTE_WRITE, mode, 4);
        assert!(judge(FI_RX_CQ_DATA).offered);
        assert!(!judge(0).offered, "its NIC's queue could overrun");
    }
}
