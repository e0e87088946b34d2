//! ofi_rxm: the layer that makes reliable datagram endpoints of connections, under verbs and older tcp.

use libfabric_sys::Version;

use super::fact::Fact;
use super::profile::Reopening;

pub(super) const PROGRESS_THREAD: Fact<Option<Version>> = Fact::code(
    Some(Version::new(2, 2)),
    "its data progress thread came with libfabric 2.2, before that it only makes connections",
    "libfabric 1.17 to 2.6: prov/rxm/src/rxm_conn.c",
);

/// The thread waits with no time limit, and resets the wake-up signal before it looks: a signal to stop that comes
/// in between is lost, and closing the endpoint, which joins the thread, never returns. The thread also costs a
/// lock for each call: 8-byte writes went at 72 thousand a second with it and at 117 thousand without.
pub(super) const AVOIDS_AUTO: Fact<bool> = Fact::seen(
    true,
    "the progress thread of ofi_rxm may hang when its endpoint closes, and slows small writes",
    "about once in some thousand closes of libfabric 2.5.1; 2.6: prov/rxm/src/rxm_conn.c is the same",
);

/// `rxm_ep_close` handles the errors of what was cut off, and then uses what belonged to it.
pub(super) const REOPENING: Fact<Reopening> = Fact::seen(
    Reopening::Never,
    "ofi_rxm crashes when an endpoint is closed that has operations under way",
    "the rail laboratory with libfabric 2.5.1, about one close in ten",
);
