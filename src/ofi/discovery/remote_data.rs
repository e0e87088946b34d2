//! Whether a write may tell its target, through the completion queue there, that its data is visible.
//!
//! A counted signal relies on this, so a wrong "yes" breaks the program silently, and a wrong "no"
//! costs one wait for the data. libfabric promises it: a completion at the target means that the
//! transferred data can be read there (fi_cq(3), on completions at the target). The promise is
//! necessary and not enough: a table names the providers that were seen to keep it.

use libfabric_sys::{FI_REMOTE_WRITE, FI_RX_CQ_DATA};

use crate::ofi::objects::info::Info;

/// Bytes of remote data that are used. Every provider that has any offers as many (fi_domain(3)).
const BYTES: usize = 4;

/// Whether writes carry remote data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteData {
    /// They may.
    pub offered: bool,
    /// Why we think so.
    pub reason: &'static str,
}

impl RemoteData {
    pub(in crate::ofi) fn of(info: &Info) -> Self {
        Self::judge(&info.provider(), info.caps(), info.mode(), info.cq_data_size())
    }

    /// The table. Sources: runs of two processes with libfabric 1.17 and 2.5.1, in which the target looks
    /// at up to 64 KiB of data as soon as it has what came with them (`tests/ofi/remote_data.rs`).
    fn judge(provider: &str, caps: u64, mode: u64, bytes: usize) -> Self {
        let no = |reason| Self { offered: false, reason };
        if bytes < BYTES {
            return no("it offers less than four bytes of remote data");
        }
        if caps & FI_REMOTE_WRITE == 0 {
            return no("it does not offer to be written to (FI_REMOTE_WRITE)");
        }
        if mode & FI_RX_CQ_DATA != 0 {
            // The buffers are there for messages, whose senders are held by the window.
            return no("writes with remote data would use up receive buffers (FI_RX_CQ_DATA)");
        }
        match provider {
            "tcp" | "tcp;ofi_rxm" | "shm" => Self {
                offered: true,
                reason: "the data was seen to be there before what is told of it",
            },
            // Completion queues of NICs can overrun, and any number of peers may write at once.
            "efa" | "cxi" | "verbs;ofi_rxm" => {
                no("whether its completion queue has room for all peers has not been examined")
            }
            _ => no("the remote data of this provider has not been examined"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ingredients_are_needed_and_the_provider_must_be_known() {
        let judge =
            |provider, caps, mode, bytes| RemoteData::judge(provider, caps, mode, bytes).offered;
        for provider in ["tcp", "tcp;ofi_rxm", "shm"] {
            for bytes in [4, 8] {
                assert!(judge(provider, FI_REMOTE_WRITE, 0, bytes), "{provider}");
            }
            assert!(!judge(provider, FI_REMOTE_WRITE, 0, 0), "{provider}");
            assert!(!judge(provider, 0, 0, 8), "{provider}");
            assert!(!judge(provider, FI_REMOTE_WRITE, FI_RX_CQ_DATA, 8), "{provider}");
        }
        for provider in ["efa", "cxi", "verbs;ofi_rxm", "net", "sockets", "psm3", "lnx"] {
            assert!(!judge(provider, FI_REMOTE_WRITE, 0, 8), "{provider}");
        }
    }
}
