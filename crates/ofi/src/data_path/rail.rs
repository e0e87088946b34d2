//! A rail: one domain with its endpoint, and the limits of what goes through it.

use std::sync::Arc;

use libfabric_sys::{FI_EINVAL, FI_MR_HMEM, FI_MR_LOCAL, FI_RX_CQ_DATA};

use crate::data_path::message_buffers::MessageBuffers;
use crate::discovery::device::Device;
use crate::discovery::immediate_data::ImmediateData;
use crate::objects::address_vector::INSERT;
use crate::objects::completion_queue::Wakes;
use crate::objects::contexts::Contexts;
use crate::objects::domain::{Domain, Keys};
use crate::objects::endpoint::{ENABLE, Endpoint};
use crate::objects::fabric::Fabrics;
use crate::objects::memory_region::{Region, Rights, Way};
use crate::options::Options;
use crate::topology::PciAddress;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::port::registration::is_unclosed;
use engine::port::{Desc, PeerAddr, PortError, RailLimits};

/// Most operations in flight on one rail. More than any wire needs, and it bounds the memory for
/// work-request ids.
const MAX_DEPTH: usize = 4096;

/// Messages on their way from one rail that are too long for `fi_inject`.
const SENDS: usize = 256;

/// Receives posted on a rail that receives.
///
/// More messages than that wait in the provider or, with native tcp, in the connections, together
/// with the writes behind them. The lane takes what has come in after every poll, so that ends by
/// itself, and this need not follow the number of peers.
const RECEIVES: usize = 512;

/// Room in the completion queue beside what the rail posts itself.
const QUEUE_MARGIN: usize = 256;

/// Whether peers send messages to a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receives {
    /// They do: those of a proxy lane.
    Messages,
    /// Messages about rails, none of which is long: those of control endpoints, which so need less
    /// memory.
    Control,
    /// They do not, and must not: native tcp stops reading the connection of a message for which no
    /// receive is posted.
    Nothing,
}

/// One rail. What it owns of libfabric is closed in the order in which it stands here.
#[derive(Debug)]
pub(crate) struct Rail {
    /// The values of inline writes, where local memory must be registered.
    values: Option<Region>,
    /// The message buffers, likewise.
    messages: Option<Region>,
    endpoint: Endpoint,
    /// The provider may write to these until the endpoint is closed, which the order of the fields
    /// sees to. The user's buffers are not ours to keep.
    _contexts: Arc<Contexts>,
    /// Likewise.
    message_buffers: MessageBuffers,
    domain: Arc<Domain>,
    name: String,
    /// The NIC, where it is known.
    pci: Option<PciAddress>,
    limits: RailLimits,
    outlives_receives: bool,
    /// What probably helps where it refuses peers' addresses.
    addresses_refused: &'static str,
}

impl Rail {
    /// Opens a device: domain, queue, vector, endpoint. The vector is made for `peers` addresses.
    /// No receive is posted yet: that is the port's work.
    pub(crate) fn open(
        fabrics: &mut Fabrics,
        device: &Device,
        options: &Options,
        contexts: &Arc<Contexts>,
        peers: usize,
        receives: Receives,
    ) -> Result<Self, PortError> {
        let info = &device.info;
        let mut limits = Self::limits_of(device, options);
        if receives == Receives::Control {
            limits.longest_message = MAX_MESSAGE;
        }
        if limits.depth == 0 || limits.max_segment == 0 {
            return Err(PortError {
                call: "opening the rail",
                code: FI_EINVAL,
                text: String::from("it has no room for a single operation"),
            });
        }
        let fabric = fabrics.of(info)?;
        let domain = Arc::new(Domain::open(
            fabric,
            Arc::clone(info),
            Keys::new(*device.profile.random_keys),
            device.profile,
        )?);
        let data_takes = info.mode() & FI_RX_CQ_DATA != 0;
        let receives = match (receives, data_takes) {
            (Receives::Messages | Receives::Control, false) => info.rx_size().clamp(1, RECEIVES),
            // As many again, for what comes with the data of the signals among the messages.
            (Receives::Messages | Receives::Control, true) => info.rx_size().clamp(1, 2 * RECEIVES),
            (Receives::Nothing, _) => 0,
        };
        let message_buffers = MessageBuffers::new(SENDS, receives, limits.longest_message);
        let posted = limits.depth as usize + SENDS;
        // There the queue is the NIC's and must not overrun: it has room for all that the NIC may
        // have at a time, also what completes without our hearing of it.
        let posted = if data_takes { posted.max(info.tx_size()) } else { posted };
        let completions = posted + receives + QUEUE_MARGIN;
        let completions = completions.max(device.profile.completions.of(peers));
        let events = *device.profile.events;
        let endpoint = Endpoint::open(&domain, completions, peers, events, Wakes::Never)
            .map_err(|error| with_help(error, ENABLE, *device.profile.enabling_refused))?;
        let bound_to = domain.binds_regions().then_some(&endpoint);
        let register = |(addr, len): (usize, usize)| {
            let needed = domain.needs_desc() && len > 0;
            let region =
                || Region::register(&domain, bound_to, addr, len, Rights::None, Way::Host, None);
            needed.then(region).transpose()
        };
        let values = register(contexts.values())?;
        let messages = register(message_buffers.memory())?;
        Ok(Self {
            values,
            messages,
            endpoint,
            _contexts: Arc::clone(contexts),
            message_buffers,
            domain,
            name: device.name.clone(),
            pci: device.pci_path.as_deref().and_then(PciAddress::of_path),
            limits,
            outlives_receives: *device.profile.outlives_receives,
            addresses_refused: *device.profile.addresses_refused,
        })
    }

    /// The limits that a rail on the device has.
    pub(crate) fn limits_of(device: &Device, options: &Options) -> RailLimits {
        let info = &device.info;
        RailLimits {
            max_segment: at_most(info.max_message(), options.max_segment, isize::MAX as usize),
            depth: at_most(info.tx_size(), options.queue_depth.into(), MAX_DEPTH) as u32,
            needs_desc: needs_desc(info.mr_mode())
                || *device.profile.heeds_descriptors && info.reaches_devices(),
            immediate_data: ImmediateData::of(device.profile, info).offered,
            longest_message: (*device.profile.longest_message).clamp(MAX_MESSAGE, MAX_LONG_MESSAGE),
            bulk: 0,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Tells the rail's endpoint peers' addresses.
    pub(crate) fn insert(&self, addresses: &[&[u8]]) -> Result<Vec<PeerAddr>, PortError> {
        let (vector, len) = (self.endpoint.vector(), self.endpoint.address().len());
        let inserted = vector.insert(addresses, len);
        inserted.map_err(|error| with_help(error, INSERT, self.addresses_refused))
    }

    /// The NIC, where it is known.
    pub(crate) fn pci(&self) -> Option<PciAddress> {
        self.pci
    }

    pub(crate) fn limits(&self) -> RailLimits {
        self.limits
    }

    /// Whether what comes in and cannot be received leaves the rail as it is.
    pub(crate) fn outlives_receives(&self) -> bool {
        self.outlives_receives
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    #[inline]
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The descriptor of the values of inline writes.
    pub(crate) fn values_desc(&self) -> Desc {
        self.values.as_ref().map_or(Desc(0), Region::desc)
    }

    #[inline]
    pub(crate) fn message_buffers(&self) -> &MessageBuffers {
        &self.message_buffers
    }

    /// The descriptor of the message buffers.
    #[inline]
    pub(crate) fn messages_desc(&self) -> Desc {
        self.messages.as_ref().map_or(Desc(0), Region::desc)
    }
}

/// The error, with what probably helps if it is of this call.
fn with_help(mut error: PortError, call: &str, help: &str) -> PortError {
    if error.call == call && !help.is_empty() {
        error.text = format!("{} ({help})", error.text);
    }
    error
}

impl Drop for Rail {
    fn drop(&mut self) {
        (self.values, self.messages) = (None, None);
        self.endpoint.close();
        if is_unclosed() {
            // What could not be closed may be what writes to these.
            std::mem::forget(Arc::clone(&self._contexts));
            std::mem::forget(std::mem::replace(
                &mut self.message_buffers,
                MessageBuffers::new(0, 0, 0),
            ));
        }
    }
}

/// The least of what the provider offers, what the user allows (0: anything) and our own bound.
fn at_most(offered: usize, allowed: u64, bound: usize) -> usize {
    let allowed = match allowed {
        0 => usize::MAX,
        allowed => usize::try_from(allowed).unwrap_or(usize::MAX),
    };
    offered.min(allowed).min(bound)
}

/// Whether segments name their local memory by a descriptor: all of them must, or those in device
/// memory, of which nothing else tells.
fn needs_desc(mr_mode: i32) -> bool {
    mr_mode & (FI_MR_LOCAL | FI_MR_HMEM) != 0
}

#[cfg(test)]
mod tests {
    use libfabric_sys::{FI_HMEM, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR};

    use super::{Rail, at_most, needs_desc, with_help};
    use crate::discovery::device::Device;
    use crate::error::refused;
    use crate::objects::info::tests::{edit, empty};
    use crate::options::Options;
    use crate::provider::{Provider, candidates};

    #[test]
    fn descriptors_are_given_where_the_answer_or_the_profile_wants_them() {
        let wants = |provider, mr_mode, caps| {
            let mut info = empty();
            // SAFETY: the attributes of an empty info exist.
            edit(&mut info, |raw| unsafe {
                (*raw.domain_attr).mr_mode = mr_mode;
                raw.caps = caps;
            });
            let device = Device::new(String::from("one"), candidates(provider)[0], info);
            Rail::limits_of(&device, &Options::default()).needs_desc
        };
        for (provider, mr_mode, caps, wanted) in [
            (Provider::Tcp, 0, 0, false),
            (Provider::Tcp, 0, FI_HMEM, false),
            (Provider::Tcp, FI_MR_LOCAL, 0, true),
            (Provider::Cxi, 0, 0, false),
            (Provider::Cxi, 0, FI_HMEM, true),
        ] {
            assert_eq!(wants(provider, mr_mode, caps), wanted, "{provider} {mr_mode} {caps}");
        }
    }

    #[test]
    fn help_is_for_the_call_that_it_is_about() {
        let text = |call, help| with_help(refused("fi_enable", "no".into()), call, help).text;
        assert_eq!(text("fi_enable", "more handles"), "no (more handles)");
        assert_eq!((text("fi_enable", ""), text("fi_av_insert", "x")), ("no".into(), "no".into()));
    }

    #[test]
    fn memory_of_devices_is_named_by_its_descriptor_wherever_any_is() {
        let others = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
        for mr_mode in [FI_MR_LOCAL, FI_MR_HMEM, FI_MR_LOCAL | FI_MR_HMEM] {
            assert!(needs_desc(mr_mode) && needs_desc(mr_mode | others), "{mr_mode:#x}");
        }
        assert!(!needs_desc(0) && !needs_desc(others));
    }

    #[test]
    fn the_least_limit_holds() {
        assert_eq!(at_most(256, 0, 4096), 256);
        assert_eq!(at_most(65536, 0, 4096), 4096);
        assert_eq!(at_most(256, 1, 4096), 1);
        assert_eq!(at_most(usize::MAX, u64::MAX, isize::MAX as usize), isize::MAX as usize);
    }
}
