//! A rail: one domain with its endpoint, and its limits.

use std::sync::Arc;

use libfabric_sys::{FI_MR_HMEM, FI_MR_LOCAL, FI_RX_CQ_DATA, Version};

use crate::data_path::message_buffers::MessageBuffers;
use crate::discovery::device::Device;
use crate::discovery::immediate_data::ImmediateData;
use crate::error::refused;
use crate::objects::contexts::Contexts;
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::fabric::Fabrics;
use crate::objects::memory_region::{Method, Region, Rights};
use crate::options::Options;
use crate::topology::PciAddress;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::port::registration::is_unclosed;
use engine::port::{Desc, PortError, RailLimits};

const MAX_DEPTH: usize = 4096;

const SENDS: usize = 256;

/// Receives posted on a rail of a proxy lane.
///
/// Further messages wait in the provider or, with native tcp, in the connections, together with the
/// writes after them. The lane takes all arrivals after every poll, so they never wait for long,
/// and this need not grow with the number of peers.
const RECEIVES: usize = 512;

const QUEUE_MARGIN: usize = 256;

/// Receives of a rail, by whether peers send messages to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receives {
    /// Peers send messages: a rail of the proxy lane.
    Messages,
    /// Peers send none: native tcp stops reading a connection that has a message without a receive.
    Nothing,
}

impl Receives {
    /// Returns the number of receives to post, of those offered. If immediate data consumes some,
    /// there are as many again, for the data of the signals among the messages.
    fn count(self, offered: usize, data_takes: bool) -> usize {
        match (self, data_takes) {
            (Self::Nothing, _) => 0,
            (Self::Messages, false) => offered.clamp(1, RECEIVES),
            (Self::Messages, true) => offered.clamp(1, 2 * RECEIVES),
        }
    }
}

/// One rail. Its libfabric objects are closed in the order of the fields.
#[derive(Debug)]
pub(crate) struct Rail {
    /// Registration of the values of inline writes, if local memory must be registered.
    values: Option<Region>,
    messages: Option<Region>,
    pub(crate) endpoint: Endpoint,
    /// The provider may write to these until the endpoint is closed, so they are declared after it.
    /// The user's buffers are not held.
    contexts: Arc<Contexts>,
    pub(crate) message_buffers: MessageBuffers,
    pub(crate) domain: Arc<Domain>,
    pub(crate) name: String,
    /// The NIC, if known.
    pub(crate) pci: Option<PciAddress>,
    pub(crate) limits: RailLimits,
}

impl Rail {
    pub(crate) fn open(
        fabrics: &mut Fabrics,
        device: &Device,
        options: &Options,
        contexts: &Arc<Contexts>,
        peers: usize,
        receives: Receives,
    ) -> Result<Self, PortError> {
        let info = &device.info;
        let limits = Self::limits_of(device, options);
        if limits.depth == 0 || limits.max_segment == 0 {
            let text = String::from("it has no room for a single operation");
            return Err(refused("opening the rail", text));
        }
        let fabric = fabrics.of(info)?;
        let domain = Arc::new(Domain::open(fabric, info, device.profile)?);
        let data_takes = info.raw().mode & FI_RX_CQ_DATA != 0;
        let receives = receives.count(info.rx_attr().size, data_takes);
        let message_buffers = MessageBuffers::new(SENDS, receives, limits.longest_message);
        let completions =
            completions(limits.depth, receives, data_takes.then(|| info.tx_attr().size));
        let completions = completions.max(device.profile.completions.of(peers));
        let endpoint = Endpoint::open(&domain, completions, peers, false)?;
        let bound_to = domain.binds_regions().then_some(&endpoint);
        let register = |(addr, len): (usize, usize)| {
            let needed = domain.needs_desc() && len > 0;
            let region =
                || Region::register(&domain, bound_to, addr, len, Rights::None, Method::Host, None);
            needed.then(region).transpose()
        };
        let values = register(contexts.values())?;
        let messages = register(message_buffers.memory())?;
        Ok(Self {
            values,
            messages,
            endpoint,
            contexts: Arc::clone(contexts),
            message_buffers,
            domain,
            name: device.name.clone(),
            pci: device.pci_path.as_deref().and_then(PciAddress::of_path),
            limits,
        })
    }

    pub(crate) fn limits_of(device: &Device, options: &Options) -> RailLimits {
        let info = &device.info;
        let is_new = info.library.version() >= Version::new(2, 5);
        let longest = device.profile.longest_message[usize::from(is_new)];
        RailLimits {
            max_segment: at_most(info.ep_attr().max_msg_size, options.max_segment, LONGEST_SEGMENT),
            depth: at_most(info.tx_attr().size, options.queue_depth.into(), MAX_DEPTH) as u32,
            needs_desc: needs_desc(info.mr_mode())
                || *device.profile.heeds_descriptors && info.reaches_devices(),
            immediate_data: ImmediateData::of(device.profile, info).offered,
            longest_message: longest.clamp(MAX_MESSAGE, MAX_LONG_MESSAGE),
            bulk: 0,
        }
    }

    pub(crate) fn values_desc(&self) -> Desc {
        self.values.as_ref().map_or(Desc(0), |region| region.desc)
    }

    #[inline]
    pub(crate) fn messages_desc(&self) -> Desc {
        self.messages.as_ref().map_or(Desc(0), |region| region.desc)
    }
}

/// Returns the entries of the completion queue for all that a rail posts. A NIC's queue, which must
/// not overrun, has entries for all of the NIC's operations, also those that complete silently.
fn completions(depth: u32, receives: usize, of_nic: Option<usize>) -> usize {
    (depth as usize + SENDS).max(of_nic.unwrap_or(0)) + receives + QUEUE_MARGIN
}

impl Drop for Rail {
    fn drop(&mut self) {
        (self.values, self.messages) = (None, None);
        self.endpoint.close();
        if is_unclosed() {
            // The object that could not be closed may still write to these.
            std::mem::forget(Arc::clone(&self.contexts));
            std::mem::forget(std::mem::replace(
                &mut self.message_buffers,
                MessageBuffers::new(0, 0, 0),
            ));
        }
    }
}

/// Longest segment in bytes, two seconds at 1 Gbit/s: the watchdog sees that a long put moves by
/// the segments that end.
const LONGEST_SEGMENT: usize = 256 << 20;

/// Returns the least of the provider's offer, the user's limit (0 for none) and our own bound.
fn at_most(offered: usize, allowed: u64, bound: usize) -> usize {
    let allowed = match allowed {
        0 => usize::MAX,
        allowed => usize::try_from(allowed).unwrap_or(usize::MAX),
    };
    offered.min(allowed).min(bound)
}

/// Returns true if segments need a descriptor of local memory: always, or of device memory, which
/// the provider cannot recognise otherwise.
fn needs_desc(mr_mode: i32) -> bool {
    mr_mode & (FI_MR_LOCAL | FI_MR_HMEM) != 0
}

#[cfg(test)]
pub(crate) mod tests {
    use libfabric_sys::{FI_HMEM, FI_MR_PROV_KEY};

    use super::*;
    use crate::objects::domain::tests::some_device;
    use crate::objects::tables;
    use crate::provider::Provider;

    pub(crate) fn open(device: &Device, wr_ids: u32) -> Result<Rail, PortError> {
        let (contexts, options) = (Arc::new(Contexts::new(wr_ids)), Options::default());
        let (mut fabrics, receives) = (Fabrics::default(), Receives::Messages);
        Rail::open(&mut fabrics, device, &options, &contexts, 1, receives)
    }

    #[test]
    fn own_memory_is_registered_if_required() {
        for (mr_mode, wr_ids, registered) in [
            (FI_MR_LOCAL, 4, (true, true)),
            (FI_MR_LOCAL, 0, (false, true)),
            (0, 4, (false, false)),
        ] {
            // SAFETY: the attributes of an answer exist.
            let device = some_device(Provider::TcpRxm, |raw| unsafe {
                (*raw.domain_attr).mr_mode = mr_mode;
            });
            let rail = open(&device, wr_ids).expect("opened");
            let (values, messages) = (rail.values_desc(), rail.messages_desc());
            assert_eq!((values != Desc(0), messages != Desc(0)), registered);
        }
        // SAFETY: as above.
        let device = some_device(Provider::Tcp, |raw| unsafe { (*raw.tx_attr).size = 0 });
        let error = open(&device, 4).expect_err("no room");
        assert!(error.text.contains("no room for a single operation"), "{error}");
    }

    #[test]
    fn memory_of_an_unclosed_rail_stays() {
        let rail = open(&some_device(Provider::TcpRxm, |_| {}), 4).expect("opened");
        let contexts = Arc::clone(&rail.contexts);
        // SAFETY: open, and of this thread.
        unsafe { tables::watch(rail.endpoint.as_fid()) };
        tables::cling(true);
        drop(rail);
        tables::cling(false);
        assert!(is_unclosed());
        assert_eq!(Arc::strong_count(&contexts), 2);
    }

    #[test]
    fn queues_hold_everything_in_flight() {
        let counts = |data_takes| {
            [0, 7, 100_000].map(|offered| Receives::Messages.count(offered, data_takes))
        };
        assert_eq!((counts(false), counts(true)), ([1, 7, 512], [1, 7, 1024]));
        assert_eq!(Receives::Nothing.count(100_000, true), 0);
        for (of_nic, entries) in [(None, 356), (Some(300), 356), (Some(4000), 4000)] {
            assert_eq!(completions(100, 7, of_nic), entries + 7 + 256);
        }
    }

    #[test]
    fn immediate_data_doubles_the_receives() {
        for (mode, receives) in [(0, RECEIVES), (FI_RX_CQ_DATA, 2 * RECEIVES)] {
            // SAFETY: the attributes of an answer exist.
            let device = some_device(Provider::TcpRxm, |raw| unsafe {
                (raw.mode, (*raw.rx_attr).size) = (mode, 4 * RECEIVES);
            });
            let rail = open(&device, 4).expect("opened");
            assert_eq!(rail.message_buffers.receives, receives);
        }
    }

    #[test]
    fn descriptors_are_given_where_wanted() {
        for (provider, mr_mode, caps, wanted) in [
            (Provider::Tcp, FI_MR_PROV_KEY, FI_HMEM, false),
            (Provider::Tcp, FI_MR_LOCAL, 0, true),
            (Provider::Tcp, FI_MR_HMEM | FI_MR_PROV_KEY, 0, true),
            (Provider::Cxi, 0, 0, false),
            (Provider::Cxi, 0, FI_HMEM, true),
        ] {
            // SAFETY: the attributes of an answer exist.
            let device = some_device(provider, |raw| unsafe {
                (*raw.domain_attr).mr_mode = mr_mode;
                raw.caps |= caps;
            });
            let limits = Rail::limits_of(&device, &Options::default());
            assert_eq!(limits.needs_desc, wanted, "{provider} {mr_mode} {caps}");
        }
    }
}
