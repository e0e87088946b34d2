//! The providers that are tried, and what is particular about each.

use crate::settings::Provider;

/// A libfabric provider, by the name that `fi_getinfo` gives it, layers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ofi) struct Candidate {
    /// The name, matched exactly: asked for `tcp`, libfabric also answers with `tcp;ofi_rxm`.
    pub(in crate::ofi) name: &'static str,
    /// Every interface is a device, also those that lead nowhere useful.
    pub(in crate::ofi) plain_sockets: bool,
    /// Devices can be opened by an IP address that is not listed.
    pub(in crate::ofi) by_address: bool,
    /// Why `FI_PROGRESS_AUTO` is not asked for, where it does harm.
    pub(in crate::ofi) avoid_auto: Option<&'static str>,
    /// The NIC carries out atomics on host memory. Others that offer `FI_ATOMIC` run a loop on the
    /// target's processor, in whichever thread polls there, which is our proxy thread.
    pub(in crate::ofi) hardware_atomics: bool,
    /// It heeds `FI_MORE`, and a post that it refuses leaves none of those before without a doorbell.
    ///
    /// efa heeds it too, but its device library forgets what was posted since the last doorbell when it
    /// has no room for one more. tcp, ofi_rxm and shm do not look at it.
    pub(in crate::ofi) batches: bool,
    /// Why it is not asked for device memory unless the user insists.
    pub(in crate::ofi) avoid_device_memory: Option<&'static str>,
    /// Where it needs CUDA's copies, then for few bytes only; the rest is the NIC's.
    pub(in crate::ofi) copies_little: bool,
    /// It registers dma-bufs, from libfabric 1.20 on (`FI_MR_DMABUF`).
    pub(in crate::ofi) dma_bufs: bool,
    /// Whether rails are opened again when one fails.
    pub(in crate::ofi) reopening: Reopening,
}

/// Whether an endpoint can be closed that has operations under way, and another be opened in its domain: what
/// it takes to do without a rail that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ofi) enum Reopening {
    /// The rail laboratory has shown it.
    Shown,
    /// Nothing is known against it, and nobody has tried.
    Untried,
    /// It goes wrong, or makes no sense.
    Never(&'static str),
}

/// `rxm_ep_close` handles the errors of what was cut off, and then uses what belonged to it: seen in the rail
/// laboratory with libfabric 2.5.1, about one close in ten.
const RXM_CLOSES: Reopening =
    Reopening::Never("ofi_rxm crashes when an endpoint is closed that has operations under way");

/// The thread that ofi_rxm starts for automatic progress waits with no time limit, and resets the
/// wake-up signal before it looks: a signal to stop that comes in between is lost, and closing the
/// endpoint, which joins the thread, never returns. Seen about once in some thousand closes of
/// libfabric 2.5.1; the code is the same in 2.6.0. The thread also costs a lock for each call: 8-byte
/// writes went at 72 thousand a second with it and at 117 thousand without.
const RXM_THREAD: Option<&str> = Some(
    "the progress thread of ofi_rxm may hang when its endpoint closes, and slows small writes",
);

/// shm offers `FI_HMEM` whether or not CUDA is compiled in, gives up `fi_inject` for it, and moves the
/// bytes of a device with the runtime's copies on the default stream. Those wait for kernels that run on
/// blocking streams, which may be waiting for these very bytes.
const SHM_COPIES: Option<&str> =
    Some("it moves device memory by CUDA copies that may wait for running kernels");

const EFA: Candidate = Candidate {
    name: "efa",
    plain_sockets: false,
    by_address: false,
    avoid_auto: None,
    hardware_atomics: false,
    batches: false,
    avoid_device_memory: None,
    copies_little: false,
    dma_bufs: true,
    reopening: Reopening::Untried,
};
const CXI: Candidate = Candidate {
    name: "cxi",
    hardware_atomics: true,
    batches: true,
    copies_little: true,
    reopening: Reopening::Never("its memory is bound to endpoints"),
    ..EFA
};
const VERBS: Candidate = Candidate {
    name: "verbs;ofi_rxm",
    by_address: true,
    avoid_auto: RXM_THREAD,
    reopening: RXM_CLOSES,
    ..EFA
};
const TCP: Candidate = Candidate {
    name: "tcp",
    plain_sockets: true,
    by_address: true,
    dma_bufs: false,
    reopening: Reopening::Shown,
    ..EFA
};
const TCP_RXM: Candidate =
    Candidate { name: "tcp;ofi_rxm", avoid_auto: RXM_THREAD, reopening: RXM_CLOSES, ..TCP };
const SHM: Candidate = Candidate {
    name: "shm",
    avoid_device_memory: SHM_COPIES,
    dma_bufs: false,
    reopening: Reopening::Never("no wire of it can fail"),
    ..EFA
};

/// What to try for the user's choice, in order.
pub(in crate::ofi) fn candidates(provider: Provider) -> &'static [Candidate] {
    match provider {
        Provider::Auto => &[EFA, CXI, VERBS, TCP, TCP_RXM],
        Provider::Efa => &[EFA],
        Provider::Cxi => &[CXI],
        Provider::Verbs => &[VERBS],
        // Libfabric 1.17 has connected endpoints only in its tcp provider.
        Provider::Tcp => &[TCP, TCP_RXM],
        Provider::TcpRxm => &[TCP_RXM],
        Provider::Shm => &[SHM],
    }
}

/// The user's word for a choice.
pub(in crate::ofi) fn user_name(provider: Provider) -> &'static str {
    match provider {
        Provider::Auto => "auto",
        Provider::Efa => "efa",
        Provider::Cxi => "cxi",
        Provider::Verbs => "verbs",
        Provider::Tcp => "tcp",
        Provider::TcpRxm => "tcp;ofi_rxm",
        Provider::Shm => "shm",
    }
}
