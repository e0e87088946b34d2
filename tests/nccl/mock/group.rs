//! A communicator and its groups, made and ended in NCCL's order.
//!
//! A communicator initialises the plugin twice: for the host's calls (RMA) and for the device
//! interface (GIN). Each connection listens, exchanges handles, connects and stops listening. At
//! the end contexts are destroyed before memory is deregistered, and both before the group closes.
//!
//! `connect` gets GIN's instance for a connection of GIN, else that of the network's plugin: null,
//! or a pointer that means nothing to us.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use nvshmem_transport_libfabric::nccl::abi::{
    DEVICE_GIN_PROXY, MAX_REQUESTS, PTR_CUDA, PTR_DMABUF, PTR_HOST, Properties,
};
use test_jobs::Meeting;
use test_jobs::memory::{Memory, device};

use crate::mock::library::{
    Answer, Block, Group, Instance, Listening, Plugin, Rank, Region, Registration,
};
use crate::mock::proxy::{Proxy, Queues, Style, Work};

pub(crate) struct Communicator {
    pub(crate) plugin: Arc<Plugin>,
    rma: Instance,
    gin: Instance,
}

impl Communicator {
    pub(crate) fn new(plugin: &Arc<Plugin>, number: u64) -> Self {
        let rma = plugin.init(number).unwrap();
        assert!(plugin.devices().unwrap() > 0);
        let gin = plugin.init(number).unwrap();
        assert!(plugin.devices().unwrap() > 0);
        Self { plugin: Arc::clone(plugin), rma, gin }
    }

    pub(crate) fn instance(&self, style: Style) -> Instance {
        if style == Style::Device { self.gin } else { self.rma }
    }

    pub(crate) fn instance_to_connect(&self, style: Style, rank: Rank) -> Instance {
        match style {
            Style::Device => self.gin,
            Style::Host if rank.0 % 2 == 0 => Instance(std::ptr::null_mut()),
            Style::Host => Instance(0x5a5a_5a58 as *mut _),
        }
    }

    pub(crate) fn connect(&self, style: Style, meeting: &Meeting) -> Connection {
        let (listening, handle) = self.plugin.listen(self.instance(style), DEVICE).unwrap();
        let handles = meeting.allgather(&handle);
        Connection::of_ranks(self, style, &handles, Rank(meeting.me as u32), listening)
    }

    pub(crate) fn end(self) {
        self.plugin.finalize(self.gin).unwrap();
        self.plugin.finalize(self.rma).unwrap();
    }
}

pub(crate) struct Connection {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) group: Group,
    pub(crate) ranks: usize,
    pub(crate) properties: Properties,
    style: Style,
    pub(crate) blocks: Vec<(Block, usize)>,
    regions: Mutex<Vec<Region>>,
    proxy: Option<Proxy>,
}

// SAFETY: the pointers of the properties are strings of the plugin's.
unsafe impl Send for Connection {}
// SAFETY: the same.
unsafe impl Sync for Connection {}

pub(crate) const DEVICE: c_int = 0;

impl Connection {
    pub(crate) fn of_ranks(
        communicator: &Communicator,
        style: Style,
        handles: &[Vec<u8>],
        rank: Rank,
        listening: Listening,
    ) -> Self {
        let (plugin, ranks) = (&communicator.plugin, handles.len());
        let instance = communicator.instance_to_connect(style, rank);
        let group = plugin.connect(instance, handles, rank, listening).unwrap();
        let properties = plugin.properties(DEVICE).unwrap();
        plugin.close_listen(listening).unwrap();
        assert_ne!(properties.ptr_support & PTR_HOST, 0);
        assert_eq!(properties.net_device_type, DEVICE_GIN_PROXY);
        assert!(properties.max_recvs >= 1 && properties.max_comms >= 1 && properties.speed > 0);
        let regions = Mutex::default();
        let plugin = Arc::clone(plugin);
        let (blocks, proxy) = (Vec::new(), None);
        Self { plugin, group, ranks, properties, style, blocks, regions, proxy }
    }

    pub(crate) fn create_block(&mut self, contexts: usize) -> Block {
        assert!(self.proxy.is_none());
        let block = self.plugin.create_context(self.group, contexts as c_int).unwrap();
        self.blocks.push((block, contexts));
        block
    }

    /// Registers an area, by a dma-buf where the plugin takes these, as NCCL does. Collective.
    pub(crate) fn register(&self, area: &Memory, flags: u64) -> Region {
        let takes_dma_buf = self.properties.ptr_support & PTR_DMABUF != 0;
        let dma_buf = (area.is_on_device() && takes_dma_buf)
            .then(|| device().dma_buf(area.at(0), area.len()))
            .flatten();
        let dma_buf = dma_buf.as_ref().map(AsRawFd::as_raw_fd);
        self.register_part(area, (0, area.len()), flags, dma_buf).unwrap()
    }

    pub(crate) fn register_part(
        &self,
        area: &Memory,
        (offset, len): (usize, usize),
        flags: u64,
        dma_buf: Option<RawFd>,
    ) -> Answer<Region> {
        assert!(offset + len <= area.len());
        let addr = area.at(offset);
        let kind = if area.is_on_device() { PTR_CUDA } else { PTR_HOST };
        let what = Registration { addr, len, kind, flags, dma_buf };
        let region = self.plugin.register(self.group, what)?;
        self.regions().push(region);
        Ok(region)
    }

    pub(crate) fn deregister(&self, region: Region) {
        self.regions().retain(|other| *other != region);
        self.plugin.deregister(self.group, region).unwrap();
    }

    fn regions(&self) -> std::sync::MutexGuard<'_, Vec<Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start(&mut self) {
        self.proxy = Some(Proxy::start(Work {
            plugin: Arc::clone(&self.plugin),
            group: self.group,
            ranks: self.ranks,
            blocks: self.blocks.clone(),
            limit: MAX_REQUESTS * self.properties.max_recvs as usize,
            style: self.style,
        }));
    }

    pub(crate) fn stop(&mut self) {
        self.proxy = None;
    }

    pub(crate) fn queues(&self) -> &Arc<Queues> {
        &self.proxy.as_ref().expect("it was started").queues
    }

    pub(crate) fn has_error(&self) -> bool {
        self.blocks.iter().any(|(block, _)| self.plugin.has_error(*block).unwrap())
    }

    pub(crate) fn destroy_blocks(&mut self) {
        self.stop();
        for (block, _) in self.blocks.drain(..) {
            self.plugin.destroy_context(block).unwrap();
        }
    }

    pub(crate) fn end(mut self) {
        self.destroy_blocks();
        for region in std::mem::take(&mut *self.regions()) {
            self.plugin.deregister(self.group, region).unwrap();
        }
        self.plugin.close(self.group).unwrap();
    }
}
