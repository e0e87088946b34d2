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

const MAX_DEPTH: usize = 4096;

const SENDS: usize = 256;

/// Receives posted on a rail that receives.
///
/// More messages than that wait in the provider or, with native tcp, in the connections, together
/// with the writes behind them. The lane takes what has come in after every poll, so that ends by
/// itself, and this need not follow the number of peers.
const RECEIVES: usize = 512;

const QUEUE_MARGIN: usize = 256;

/// Whether peers send messages to a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receives {
    /// They do: those of a proxy lane.
    Messages,
    /// They do not, and must not: native tcp stops reading the connection of a message for which no
    /// receive is posted.
    Nothing,
}

impl Receives {
    /// How many receives are posted, where so many are offered. Where immediate data takes some,
    /// there are as many again, for what comes with the data of the signals among the messages.
    fn count(self, offered: usize, data_takes: bool) -> usize {
        match (self, data_takes) {
            (Self::Nothing, _) => 0,
            (Self::Messages, false) => offered.clamp(1, RECEIVES),
            (Self::Messages, true) => offered.clamp(1, 2 * RECEIVES),
        }
    }
}

/// One rail. What it owns of libfabric is closed in the order in which it stands here.
#[derive(Debug)]
pub(crate) struct Rail {
    /// The values of inline writes, where local memory must be registered.
    values: Option<Region>,
    messages: Option<Region>,
    endpoint: Endpoint,
    /// The provider may write to these until the endpoint is closed, which the order of the fields
    /// sees to. The user's buffers are not ours to keep.
    _contexts: Arc<Contexts>,
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
        let receives = receives.count(info.rx_size(), data_takes);
        let message_buffers = MessageBuffers::new(SENDS, receives, limits.longest_message);
        let completions = completions(limits.depth, receives, data_takes.then(|| info.tx_size()));
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

    pub(crate) fn insert(&self, addresses: &[&[u8]]) -> Result<Vec<PeerAddr>, PortError> {
        let (vector, len) = (self.endpoint.vector(), self.endpoint.address().len());
        let inserted = vector.insert(addresses, len);
        inserted.map_err(|error| with_help(error, INSERT, self.addresses_refused))
    }

    pub(crate) fn pci(&self) -> Option<PciAddress> {
        self.pci
    }

    pub(crate) fn limits(&self) -> RailLimits {
        self.limits
    }

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

    pub(crate) fn values_desc(&self) -> Desc {
        self.values.as_ref().map_or(Desc(0), Region::desc)
    }

    #[inline]
    pub(crate) fn message_buffers(&self) -> &MessageBuffers {
        &self.message_buffers
    }

    #[inline]
    pub(crate) fn messages_desc(&self) -> Desc {
        self.messages.as_ref().map_or(Desc(0), Region::desc)
    }
}

/// Room in the queue for all that a rail posts. Where it is the NIC's and must not overrun, it has
/// room for all that the NIC may have at a time, also what completes without our hearing of it.
fn completions(depth: u32, receives: usize, of_nic: Option<usize>) -> usize {
    (depth as usize + SENDS).max(of_nic.unwrap_or(0)) + receives + QUEUE_MARGIN
}

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
pub(crate) mod tests {
    use libfabric_sys::{FI_HMEM, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR};

    use super::*;
    use crate::error::refused;
    use crate::objects::domain::tests::some_device;
    use crate::objects::info::tests::{edit, empty};
    use crate::objects::tables;
    use crate::provider::{Provider, candidates};

    pub(crate) fn open(
        device: &Device,
        wr_ids: u32,
        receives: Receives,
    ) -> Result<Rail, PortError> {
        let contexts = Arc::new(Contexts::new(wr_ids));
        Rail::open(&mut Fabrics::default(), device, &Options::default(), &contexts, 1, receives)
    }

    #[test]
    fn a_rail_is_what_its_device_and_its_use_make_it() {
        let mut device = some_device(Provider::Tcp, false, |_| {});
        device.name = String::from("a name");
        let path = "/sys/devices/pci0000:80/0000:81:00.0";
        device.pci_path = Some(path.into());
        let rail = open(&device, 4, Receives::Messages).expect("opened");
        assert_eq!(rail.name(), "a name");
        assert_eq!(rail.pci(), PciAddress::of_path(path.as_ref()));
        assert!(rail.pci().is_some());
        assert_eq!((rail.values_desc(), rail.messages_desc()), (Desc(0), Desc(0)), "not asked for");
        assert!(rail.limits().longest_message > MAX_MESSAGE);
        device.pci_path = None;
        assert_eq!(open(&device, 4, Receives::Messages).expect("opened").pci(), None);

        for nothing in [true, false] {
            // SAFETY: the attributes of an answer exist.
            let device = some_device(Provider::Tcp, false, |raw| unsafe {
                match nothing {
                    true => (*raw.tx_attr).size = 0,
                    false => (*raw.ep_attr).max_msg_size = 0,
                }
            });
            let error = open(&device, 4, Receives::Nothing).expect_err("no room");
            assert!(error.text.contains("no room for a single operation"), "{error}");
        }
    }

    #[test]
    fn memory_of_a_rail_is_registered_where_that_is_asked_for_and_there_is_some() {
        // SAFETY: the attributes of an answer exist.
        let device = some_device(Provider::TcpRxm, false, |raw| unsafe {
            (*raw.domain_attr).mr_mode = FI_MR_LOCAL;
        });
        let rail = open(&device, 4, Receives::Messages).expect("opened");
        let (values, messages) = (rail.values_desc(), rail.messages_desc());
        assert!(values != Desc(0) && messages != Desc(0) && values != messages);
        let rail = open(&device, 0, Receives::Messages).expect("opened");
        assert!(rail.values_desc() == Desc(0) && rail.messages_desc() != Desc(0));
    }

    #[test]
    fn what_the_provider_may_write_to_stays_where_a_rail_cannot_be_closed() {
        let device = some_device(Provider::TcpRxm, false, |_| {});
        let rail = open(&device, 4, Receives::Messages).expect("opened");
        let contexts = Arc::clone(&rail._contexts);
        // SAFETY: open, and of this thread.
        unsafe { tables::watch(rail.endpoint.as_fid()) };
        tables::cling(true);
        drop(rail);
        tables::cling(false);
        assert!(is_unclosed());
        assert_eq!(Arc::strong_count(&contexts), 2);
    }

    #[test]
    fn there_is_room_for_all_that_a_rail_may_have_under_way() {
        let counts = |data_takes| {
            [0, 7, 100_000].map(|offered| Receives::Messages.count(offered, data_takes))
        };
        assert_eq!((counts(false), counts(true)), ([1, 7, 512], [1, 7, 1024]));
        assert_eq!(Receives::Nothing.count(100_000, true), 0);
        assert_eq!(completions(100, 7, None), 100 + 256 + 7 + 256);
        assert_eq!(completions(100, 7, Some(300)), 100 + 256 + 7 + 256);
        assert_eq!(completions(100, 7, Some(4000)), 4000 + 7 + 256);
    }

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
}
