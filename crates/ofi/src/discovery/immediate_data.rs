//! Immediate data, which a write reports in the target's completion queue once it is visible.
//!
//! A counted signal relies on this, so a wrong "yes" breaks the program silently, and a wrong "no"
//! costs one wait for the data. libfabric promises it: a completion at the target means that the
//! transferred data can be read there (fi_cq(3), on completions at the target). The promise alone
//! is not enough: the provider's profile says whether it was seen to keep it.

use libfabric_sys::{FI_REMOTE_WRITE, FI_RX_CQ_DATA};

use crate::objects::info::Info;
use crate::provider::Profile;

/// Minimum and maximum bytes of immediate data in use. Providers offer at least four, or none
/// (fi_domain(3)).
const BYTES: [usize; 2] = [4, 8];

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImmediateData {
    pub offered: bool,
    /// Its bytes: four or eight, or 0 if not offered.
    pub bytes: u8,
    pub reason: &'static str,
}

impl ImmediateData {
    pub(crate) fn of(profile: &Profile, info: &Info) -> Self {
        let no = |reason| Self { offered: false, bytes: 0, reason };
        let [least, most] = BYTES;
        let bytes = info.domain_attr().cq_data_size;
        if bytes < least {
            return no("it offers less than four bytes of immediate data");
        }
        if info.raw().caps & FI_REMOTE_WRITE == 0 {
            return no("it does not offer to be written to (FI_REMOTE_WRITE)");
        }
        match (info.raw().mode & FI_RX_CQ_DATA != 0, *profile.data_takes_receives) {
            // The buffers are for messages, whose number the window bounds.
            (true, false) => {
                return no(
                    "writes with immediate data would use up receive buffers (FI_RX_CQ_DATA)",
                );
            }
            // A write that consumes a receive waits at the sender's NIC for one. Otherwise nothing
            // limits peers, and the NIC's completion queue fails when it overruns.
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
    use crate::objects::info::tests::{edit, empty};
    use crate::provider::{Provider, candidates};

    #[test]
    fn immediate_data_needs_all_capabilities() {
        // Bytes offered, whether a write takes a receive, and the bytes that are used.
        for (provider, bytes, takes, used) in [
            (Provider::Tcp, 4, false, Some(4)),
            (Provider::Tcp, 7, false, Some(4)),
            (Provider::Shm, 8, false, Some(8)),
            (Provider::TcpRxm, 16, false, Some(8)),
            (Provider::Tcp, 0, false, None),
            (Provider::Tcp, 8, true, None),
            (Provider::Cxi, 8, false, None),
            (Provider::Verbs, 8, false, None),
            (Provider::Efa, 4, true, Some(4)),
            // Its NIC's queue could overrun.
            (Provider::Efa, 4, false, None),
        ] {
            for caps in [FI_REMOTE_WRITE, 0] {
                let mut info = empty();
                // SAFETY: the attributes of an empty info exist.
                edit(&mut info, |raw| unsafe {
                    (raw.caps, raw.mode) = (caps, if takes { FI_RX_CQ_DATA } else { 0 });
                    (*raw.domain_attr).cq_data_size = bytes;
                });
                let judged = ImmediateData::of(candidates(provider)[0], &info);
                let found = judged.offered.then_some(judged.bytes);
                assert_eq!(found, used.filter(|_| caps != 0), "{provider} {bytes} {takes}");
            }
        }
    }
}
