//! The connections of a lane, by PE: those to peers that something was sent to.

use crate::ids::Pe;
use crate::rails::pairing::first_rail;
use crate::rails::paths::PathTable;
use crate::state::connection::Connection;
use crate::state::messages::reliable_channel::ReliableChannel;
use crate::state::segment::Plain;
use crate::wire::seal::Receiver;

/// The connections of a lane, by PE.
///
/// A peer never talked to costs the eight bytes of an empty place, and no time.
#[derive(Debug)]
pub(crate) struct Connections {
    places: Box<[Option<Box<Connection>>]>,
    /// The PEs whose connections are open, in the order in which they were opened.
    opened: Vec<Pe>,
    me: Pe,
    rails: u8,
    /// See [`Connection::fast_limit`].
    fast_limit: usize,
}

impl Connections {
    pub(crate) fn new(me: Pe, n_pes: u32, rails: u8, fast_limit: usize) -> Self {
        let places = (0..n_pes).map(|_| None).collect();
        Self { places, opened: Vec::new(), me, rails, fast_limit }
    }

    pub(crate) fn n_pes(&self) -> u32 {
        self.places.len() as u32
    }

    #[inline]
    pub(crate) fn find(&self, pe: Pe) -> Option<&Connection> {
        self.places.get(pe.index())?.as_deref()
    }

    #[inline(always)]
    pub(crate) fn find_mut(&mut self, pe: Pe) -> Option<&mut Connection> {
        self.places.get_mut(pe.index())?.as_deref_mut()
    }

    #[inline]
    pub(crate) fn channel(&self, pe: Pe) -> Option<&ReliableChannel> {
        self.find(pe)?.channel.as_deref()
    }

    #[inline]
    pub(crate) fn channel_mut(&mut self, pe: Pe) -> Option<&mut ReliableChannel> {
        self.find_mut(pe)?.channel.as_deref_mut()
    }

    #[inline]
    pub(crate) fn open(
        &mut self,
        pe: Pe,
        paths: &mut PathTable,
        receiver: impl FnOnce() -> Receiver,
    ) -> Option<&mut Connection> {
        let place = self.places.get_mut(pe.index())?;
        if place.is_none() {
            paths.lay_out(pe);
            let first = paths.get(pe, first_rail(self.me, pe, self.rails));
            *place = Some(Box::new(Connection::new(pe, receiver(), first, self.fast_limit)));
            self.opened.push(pe);
        }
        place.as_deref_mut()
    }

    #[inline(always)]
    pub(crate) fn has_no_waiter(&self, pe: Pe) -> bool {
        self.find(pe)
            .is_some_and(|connection| !connection.is_closed() && connection.held_back.is_empty())
    }

    #[inline(always)]
    pub(crate) fn ended(&mut self, plain: Plain, count: u32) {
        if let Some(connection) = self.find_mut(plain.pe()) {
            let ended = &mut connection.ended[plain.direction() as usize];
            *ended = ended.wrapping_add(count);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.opened.iter().filter_map(|pe| self.find(*pe))
    }

    pub(crate) fn for_each(&mut self, mut each: impl FnMut(&mut Connection)) {
        for pe in &self.opened {
            if let Some(connection) = self.places.get_mut(pe.index()).and_then(Option::as_deref_mut)
            {
                each(connection);
            }
        }
    }
}
