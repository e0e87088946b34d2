//! Bounce memory that PEs of one host share: creation, offer, and opening of the peers'.
//!
//! In one exchange every PE sends the name of its sockets, and a secret that is also in its memory.
//! Each sends the memory's descriptor to the PEs of its host, and opens theirs once all have. If
//! that cannot be (other users, or no place to meet), bytes go through the fabric, and the log says
//! why, once for each peer.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::info;

use super::meeting::{Meeting, Met};
use super::staging_options;
use crate::job::connect::nics::{Neighbours, machine};
use crate::logging;
use crate::settings::Settings;
use cuda::{Driver, PeerShare, SECRET_BYTES, SharedLayout, SharedMemory, Shares};
use engine::ids::Pe;

const RECORD_BYTES: usize = 24 + SECRET_BYTES;

/// Maximum bytes of all bounce buffers: twice the settings' maximum.
const MAX_BOUNCE_BYTES: u64 = 1 << 40;

/// Maximum bytes whose pages are touched at once.
const MAX_TOUCHED: usize = 256 << 20;

const PAGE: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    host: u64,
    name: u64,
    /// Bytes of all bounce buffers; 0 where nothing is shared.
    bounce_bytes: u64,
    secret: [u8; SECRET_BYTES],
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let words = [self.host, self.name, self.bounce_bytes].map(u64::to_le_bytes);
        [words.as_flattened(), &self.secret].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let secret = bytes.get(24..)?.try_into().ok()?;
        Some(Self { host: word(0)?, name: word(8)?, bounce_bytes: word(16)?, secret })
    }
}

/// Another PE of this host.
#[derive(Debug)]
struct Peer {
    pe: Pe,
    record: Record,
    met: Met,
}

/// Bounce memory offered to other PEs of the host, until all have it.
#[derive(Debug)]
pub(crate) struct Offer {
    me: Pe,
    n_pes: u32,
    record: Record,
    /// The memory, and the descriptor that others get.
    own: Option<(Arc<SharedMemory>, OwnedFd)>,
    meeting: Option<Meeting>,
    peers: Vec<Peer>,
}

impl Offer {
    pub(crate) fn new(settings: &Settings, me: Pe, n_pes: u32, near: Neighbours) -> Self {
        Self::of(settings, me, n_pes, (near, Driver::of_process().is_ok()))
    }

    fn of(settings: &Settings, me: Pe, n_pes: u32, (near, has_use): (Neighbours, bool)) -> Self {
        let mut name = [0; 8];
        let is_random = near.here > 1 && getrandom::fill(&mut name).is_ok();
        let (host, name) = (machine(settings), u64::from_le_bytes(name));
        let meeting = is_random.then(|| Meeting::new(name, near.here, near.apart));
        let record = Record { host, name, bounce_bytes: 0, secret: [0; SECRET_BYTES] };
        let nothing = Self { me, n_pes, record, own: None, meeting, peers: Vec::new() };
        if nothing.meeting.is_none() || !has_use {
            return nothing;
        }
        match Self::make(settings, n_pes) {
            Ok((memory, fd, secret, bounce_bytes)) => Self {
                record: Record { bounce_bytes, secret, ..record },
                own: Some((memory, fd)),
                ..nothing
            },
            Err(why) => {
                info!(target: logging::MEM, "bounce memory is not shared with PEs of this host: {why}");
                nothing
            }
        }
    }

    fn make(
        settings: &Settings,
        n_pes: u32,
    ) -> Result<(Arc<SharedMemory>, OwnedFd, [u8; SECRET_BYTES], u64), String> {
        if !settings.share_bounce {
            return Err(String::from("NVSHMEM_LIBFABRIC_DEBUG=share_bounce=0 says so"));
        }
        let bounce_bytes = staging_options(settings).bounce_bytes();
        let layout = SharedLayout::new(bounce_bytes, n_pes);
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
        let (memory, fd) =
            SharedMemory::create(layout.bytes()).map_err(|error| error.to_string())?;
        layout.write_secret(&memory, &secret);
        // Pages are allocated near the CPU that touches them first, which must not be another PE's.
        for page in (0..layout.bounce_bytes().min(MAX_TOUCHED)).step_by(PAGE) {
            memory.byte(page).store(0, Ordering::Relaxed);
        }
        Ok((Arc::new(memory), fd, secret, layout.bounce_bytes() as u64))
    }

    pub(crate) fn record(&self) -> Vec<u8> {
        self.record.encode()
    }

    pub(crate) fn is_first_of_host(&self, records: &[u8]) -> bool {
        let is_here = |of: Option<Record>| of.is_some_and(|of| of.host == self.record.host);
        let mut records = records.chunks(RECORD_BYTES).map(Record::decode);
        records.position(is_here) == Some(self.me.index())
    }

    /// Connects to the other PEs of this host, by the records of all, and sends them the memory.
    pub(crate) fn meet(&mut self, records: &[u8]) {
        let Some(meeting) = &mut self.meeting else { return };
        let own = self.own.as_ref().map(|(_, fd)| fd.as_raw_fd());
        let all: Vec<Option<Record>> = records.chunks(RECORD_BYTES).map(Record::decode).collect();
        // Each begins with another one, as the kernel limits how many descriptors of a user are on
        // their way.
        for at in (self.me.index() + 1..all.len()).chain(0..self.me.index()) {
            let pe = Pe(at as u32);
            let Some(record) = all[at].filter(|of| of.host == self.record.host) else { continue };
            self.peers.push(Peer { pe, record, met: meeting.meet(self.me, record.name, own) });
            meeting.receive();
        }
        self.peers.sort_by_key(|peer| peer.pe);
    }

    /// Returns pidfds of the other PEs of this host, and their memory, once all have sent it.
    pub(crate) fn open(mut self) -> (Vec<(Pe, OwnedFd)>, Option<Shares>) {
        self.meeting.iter_mut().for_each(Meeting::receive);
        let share = |peer: &Peer| {
            let not_shared = |why: &String| {
                info!(
                    target: logging::MEM,
                    "bounce memory of {} is not shared with this PE, so what goes between them goes through the fabric: {why}",
                    peer.pe
                );
            };
            self.open_one(peer).inspect_err(not_shared).ok()
        };
        let shares = self.own.as_ref().map(|(own, _)| Shares {
            me: self.me,
            own: Arc::clone(own),
            layout: SharedLayout::new(self.record.bounce_bytes as usize, self.n_pes),
            peers: self.peers.iter().filter_map(share).collect(),
        });
        let process = |peer: Peer| Some((peer.pe, peer.met.0?));
        (self.peers.into_iter().filter_map(process).collect(), shares)
    }

    fn open_one(&self, peer: &Peer) -> Result<PeerShare, String> {
        let Peer { pe, record: Record { bounce_bytes, secret, .. }, .. } = *peer;
        let layout = SharedLayout::new(bounce_bytes.min(MAX_BOUNCE_BYTES) as usize, self.n_pes);
        peer.met.1.clone()?;
        let process = peer.met.0.as_ref().and_then(|process| process.try_clone().ok());
        let mut why = String::from("it offers none");
        for fd in self.meeting.iter().flat_map(|meeting| meeting.received(pe)) {
            // The copy is closed first, which never blocks.
            let fd = fd.try_clone().map_err(|error| error.to_string())?;
            match SharedMemory::of(fd, layout.bytes()) {
                Ok(memory) if layout.has_secret(&memory, &secret) => {
                    return Ok(PeerShare { pe, memory: Arc::new(memory), layout, process });
                }
                Ok(_) => why = String::from("what was sent is another's"),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(here: u32) -> Neighbours {
        Neighbours { here, on_loopback: true, apart: false }
    }

    fn offer(me: u32) -> Offer {
        Offer::of(&Settings::default(), Pe(me), 3, (near(3), true))
    }

    fn encoded(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(Record::encode).collect()
    }

    #[test]
    fn memory_is_offered_if_useful() {
        let settings = Settings::default();
        let minds = Settings { share_bounce: false, ..settings.clone() };
        for (settings, meets, has_use, is_there) in [
            (&settings, true, true, true),
            (&settings, true, false, false),
            (&settings, false, true, false),
            (&minds, true, true, false),
        ] {
            let offer = Offer::of(settings, Pe(1), 3, (near(1 + 2 * u32::from(meets)), has_use));
            assert_eq!((offer.own.is_some(), offer.meeting.is_some()), (is_there, meets));
            let bytes = 2 * settings.staging_chunk * usize::from(settings.staging_depth);
            assert_eq!(offer.record.bounce_bytes >= bytes as u64, is_there);
            assert_eq!(offer.open().1.is_some(), is_there);
        }
        // This process has not loaded CUDA.
        assert!(Offer::new(&settings, Pe(1), 3, near(3)).own.is_none());
    }

    #[test]
    fn each_host_has_one_first() {
        let [zero, one, two] = [0, 1, 2].map(offer);
        let other = Record { host: 7, ..zero.record };
        for (records, first) in [
            ([zero.record, one.record, two.record], [true, false, false]),
            ([other, one.record, two.record], [false, true, false]),
            ([other, other, two.record], [false, false, true]),
        ] {
            let found = [&zero, &one, &two].map(|of| of.is_first_of_host(&encoded(&records)));
            for pe in 0..3 {
                // Of those that are on this host.
                let here = records[pe].host == zero.record.host;
                assert_eq!(found[pe] && here, first[pe], "PE {pe}");
            }
        }
    }

    #[test]
    fn only_offering_peers_are_opened() {
        let (every, first): (&[u32], &[u32]) = (&[1, 2], &[1]);
        let edits: [(fn(&mut Record), _, _); 6] = [
            (|_| (), every, every),
            (|two| two.host = 7, first, first),
            (|two| two.name = 7, first, first),
            (|two| two.bounce_bytes -= 4096, first, every),
            (|two| two.bounce_bytes = u64::MAX, first, every),
            (|two| two.secret[15] ^= 1, first, every),
        ];
        for (edit, shared, seen) in edits {
            let [mut me, mut one, mut two] = [0, 1, 2].map(offer);
            let right = encoded(&[me.record, one.record, two.record]);
            let mut told = two.record;
            edit(&mut told);
            // A stranger says that it is PE 2.
            let own = one.own.as_ref().map(|(_, fd)| fd.as_raw_fd());
            one.meeting.as_ref().unwrap().meet(Pe(2), me.record.name, own).1.unwrap();
            one.meet(&right);
            two.meet(&right);
            me.meet(&encoded(&[me.record, one.record, told]));
            let (processes, shares) = me.open();
            let shares = shares.unwrap().peers.into_iter().map(|share| share.pe.0);
            assert_eq!(shares.collect::<Vec<_>>(), shared, "{told:?}");
            assert_eq!(processes.iter().map(|(pe, _)| pe.0).collect::<Vec<_>>(), seen, "{told:?}");
        }
        let [mut me, one] = [0, 1].map(offer);
        me.meet(&encoded(&[me.record, one.record]));
        assert!(me.open().1.unwrap().peers.is_empty(), "nothing was sent");
    }
}
