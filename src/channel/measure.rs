//! A channel from inside, for benches. No part of its interface.

use channel_sys as c;

use crate::channel::error::ChannelError;
use crate::channel::memory::shared::{Shared, Sizes};
use crate::channel::proxy::consumer::{Consumer, Failed};
use crate::channel::proxy::region_table::{PeerRegion, Region};
pub use crate::channel::proxy::thread::ProxyView;
use crate::channel::ring::region_entry::ShownRegion;
use cuda::WordsOptions;
use engine::lane::Lane;
use engine::port::Port;
use engine::wire::handle::HandleBytes;

/// The part of a proxy thread's loop that is about descriptors, over any lane.
#[derive(Debug)]
pub struct Pump {
    consumer: Consumer,
    shared: Shared,
}

impl Pump {
    /// One ring of so many slots, of PE 0 of two.
    ///
    /// # Errors
    /// No ring has that many.
    pub fn new(slots: u64) -> Result<Self, ChannelError> {
        let shared = Shared::new(Sizes::new(1, slots)?, 0, 2, 0, &WordsOptions::default())?;
        // SAFETY: once, here, and dropped before the memory.
        let consumer = Consumer::new(unsafe { shared.rings()? });
        Ok(Self { consumer, shared })
    }

    /// What producers are given.
    pub fn context(&self) -> *const c::nlf_context {
        self.shared.context()
    }

    /// Enters memory of this PE as region 0, which PE 1 has under that handle, at the same address.
    ///
    /// # Errors
    /// The device that this process uses, if it uses one, does not take it.
    pub fn set_region(
        &mut self,
        base: usize,
        len: usize,
        handle: HandleBytes,
    ) -> Result<(), ChannelError> {
        let peer = || PeerRegion { base: base as u64, handle };
        let peers = [peer(), peer()].into();
        let region = Region { base, len: len as u64, peers };
        self.consumer.regions.set(0, Some(Box::new(region)));
        let shown = ShownRegion { base: base as u64, len: len as u64, symmetric: true };
        self.shared.set_region(0, shown, 1)
    }

    /// One iteration. Whether it took something.
    ///
    /// # Errors
    /// What a descriptor asked for cannot be.
    #[inline(never)]
    pub fn iterate<P: Port>(&mut self, lane: &mut Lane<P>) -> Result<bool, String> {
        let any = self.consumer.take(lane).map_err(|Failed { why, .. }| why)?;
        lane.progress().map_err(|error| error.to_string())?;
        self.consumer.retire(lane, |_| Ok::<(), String>(()))?;
        Ok(any)
    }
}
