//! ofi_rxm: reliable datagram endpoints over connections, for verbs and older tcp.

use super::fact::Fact;
use super::variable::{Variable, Wanted};

/// The thread waits without a time limit, and resets the wake-up signal before it checks for work:
/// a stop signal in between is lost, and closing the endpoint, which joins the thread, never
/// returns. The thread also costs a lock for each call: 72 thousand 8-byte writes a second with it,
/// 117 thousand without.
pub(super) const AVOIDS_AUTO: Fact<bool> = Fact::seen(
    true,
    "the progress thread of ofi_rxm may hang when its endpoint closes, and slows small writes",
    "about once in some thousand closes of libfabric 2.5.1; 2.6: prov/rxm/src/rxm_conn.c is the same",
);

pub(super) const UNIVERSE: Variable = Variable::code(
    "FI_UNIVERSE_SIZE",
    Wanted::Connections,
    "ofi_rxm makes its completion queue for so many connections, 1024 unless told, and a queue that is too small \
     overruns; soft RoCE has room for 127",
    "libfabric 1.17 to 2.6: prov/rxm/src/rxm_ep.c (rxm_ep_msg_cq_open)",
);

/// Our messages over verbs have at most 256 bytes; those longer than a buffer use rendezvous.
pub(super) const BUFFERS: Variable = Variable::code(
    "FI_OFI_RXM_BUFFER_SIZE",
    Wanted::Text("1024"),
    "each connection has 128 buffers of this size to receive into, 16 KiB unless told: 2 MiB a peer and rail",
    "libfabric 1.17 to 2.6: prov/rxm/src/rxm_cq.c (rxm_prepost_recv), prov/rxm/src/rxm_init.c",
);

/// libverbs returns EINVAL for a queue with more entries than the device has.
pub(super) const ENABLING_REFUSED: Fact<&str> = Fact::seen(
    "ofi_rxm wants a completion queue with 256 entries for each of FI_UNIVERSE_SIZE connections, and the device may have \
     fewer (ibv_devinfo -v: max_cqe): a lower FI_UNIVERSE_SIZE helps; or the limit of locked memory (ulimit -l) is too low",
    "soft RoCE, whose queues have 32767 entries, answers EINVAL",
    "make labs, libfabric 1.17 and 2.5.1",
);
