//! Whether a message is received after the data of the writes before it.
//!
//! A signal sent as a message right behind its data relies on this (`FI_ORDER_SAW`), so a wrong
//! "yes" breaks the program silently, and a wrong "no" costs one wait for the data. The provider's
//! promise is necessary and not enough: a table names those whose promise was examined.

use crate::ofi::objects::info::Info;

/// Whether messages stay behind writes, on one rail, to one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageOrder {
    /// They do.
    pub kept: bool,
    /// Why we think so.
    pub reason: &'static str,
}

impl MessageOrder {
    pub(in crate::ofi) fn of(info: &Info) -> Self {
        Self::judge(&info.provider(), info.sends_after_writes())
    }

    /// The table. Sources: the providers' code up to libfabric 2.6 and their man pages; for tcp and
    /// tcp;ofi_rxm also runs of libfabric 1.17 and 2.5.1 in which the target looks at 64 KiB of data
    /// as soon as it has the message behind it.
    fn judge(provider: &str, promised: bool) -> Self {
        let no = |reason| Self { kept: false, reason };
        match provider {
            "efa" => no("efa delivers writes in any order"),
            "shm" => no("shm may copy data beside its queue of messages"),
            "tcp" | "tcp;ofi_rxm" if !promised => no("it does not promise FI_ORDER_SAW"),
            "tcp" | "tcp;ofi_rxm" => Self {
                kept: true,
                reason: "one connection carries both, and FI_ORDER_SAW is promised",
            },
            _ => no("the order of this provider has not been examined"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_needed_and_not_enough() {
        for provider in ["tcp", "tcp;ofi_rxm"] {
            assert!(MessageOrder::judge(provider, true).kept, "{provider}");
            assert!(!MessageOrder::judge(provider, false).kept, "{provider}");
        }
        for provider in ["efa", "shm", "cxi", "verbs;ofi_rxm", "net", "sockets", "psm3"] {
            assert!(!MessageOrder::judge(provider, true).kept, "{provider}");
        }
    }
}
