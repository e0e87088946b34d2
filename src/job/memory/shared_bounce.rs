//! Bounce memory that PEs of one host share: creation, offer, and opening of the peers'.
//!
//! In one exchange every PE sends the name of its sockets, and a secret that is also in its memory.
//! Each sends the memory's descriptor to the PEs of its host, and opens theirs once all have. If
//! that cannot be (other users, or no place to meet), bytes go through the fabric, and the log says
//! why, once for each peer.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::info;

use super::meeting::{Connection, Meeting};
use super::staging_options;
use crate::job::connect::nics::machine;
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
    /// That of its sockets.
    name: u64,
    /// Bytes of all bounce buffers; 0 where nothing is shared.
    bounce_bytes: u64,
    secret: [u8; SECRET_BYTES],
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        for (at, word) in [self.host, self.name, self.bounce_bytes].into_iter().enumerate() {
            bytes[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&self.secret);
        bytes
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
    /// Its process (`pidfd_open`), unless this PID namespace hides it; or why they do not meet.
    process: Result<Option<OwnedFd>, String>,
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
    /// Descriptors, each with the PE that it claims to be from.
    received: Vec<(Pe, OwnedFd)>,
}

impl Offer {
    pub(crate) fn new(settings: &Settings, me: Pe, n_pes: u32, here: u32) -> Self {
        Self::of(settings, me, n_pes, (here > 1, Driver::of_process().is_ok()))
    }

    fn of(settings: &Settings, me: Pe, n_pes: u32, (meets, has_use): (bool, bool)) -> Self {
        let mut name = [0; 8];
        let is_random = meets && getrandom::fill(&mut name).is_ok();
        let (host, name) = (machine(settings), u64::from_le_bytes(name));
        let meeting = is_random.then(|| Meeting::new(name));
        let record = Record { host, name, bounce_bytes: 0, secret: [0; SECRET_BYTES] };
        let (peers, received) = (Vec::new(), Vec::new());
        let nothing = Self { me, n_pes, record, own: None, meeting, peers, received };
        if nothing.meeting.is_none() || !has_use {
            return nothing;
        }
        match Self::make(settings, n_pes) {
            Ok((memory, fd, secret, bounce_bytes)) => Self {
                record: Record { bounce_bytes, secret, ..record },
                own: Some((memory, fd)),
                ..nothing
            },
            Err(error) => {
                info!(
                    target: logging::MEM,
                    "bounce memory is not shared with other PEs of this host: {error}"
                );
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

    pub(crate) fn record(&self) -> [u8; RECORD_BYTES] {
        self.record.encode()
    }

    pub(crate) fn is_first_of_host(&self, records: &[u8]) -> bool {
        let is_here = |of: Option<Record>| of.is_some_and(|of| of.host == self.record.host);
        let mut records = records.chunks(RECORD_BYTES).map(Record::decode);
        records.position(is_here) == Some(self.me.index())
    }

    /// Connects to the other PEs of this host, by the records of all, and sends them the memory.
    pub(crate) fn meet(&mut self, records: &[u8]) {
        for (pe, record) in (0..).map(Pe).zip(records.chunks(RECORD_BYTES).map(Record::decode)) {
            let record = record.filter(|of| of.host == self.record.host && pe != self.me);
            let Some((record, meeting)) = record.zip(self.meeting.as_mut()) else { continue };
            let process = meet(self.me, self.own.as_ref().map(|(_, fd)| fd), record.name);
            self.peers.push(Peer { pe, record, process });
            // The kernel limits how many descriptors of a user are on their way.
            self.received.extend(meeting.receive());
        }
    }

    /// Returns pidfds of the other PEs of this host, and their memory, once all have sent it.
    pub(crate) fn open(mut self) -> (Vec<(Pe, OwnedFd)>, Option<Shares>) {
        self.received.extend(self.meeting.iter_mut().flat_map(Meeting::receive));
        let share = |peer: &Peer| match self.open_one(peer) {
            Ok(share) => Some(share),
            Err(why) => {
                info!(
                    target: logging::MEM,
                    "bounce memory of {} is not shared with this PE, so what goes between them goes through the fabric: {why}",
                    peer.pe
                );
                None
            }
        };
        let shares = self.own.as_ref().map(|(own, _)| Shares {
            me: self.me,
            own: Arc::clone(own),
            layout: SharedLayout::new(self.record.bounce_bytes as usize, self.n_pes),
            peers: self.peers.iter().filter_map(share).collect(),
        });
        let process = |peer: Peer| Some((peer.pe, peer.process.ok()??));
        (self.peers.into_iter().filter_map(process).collect(), shares)
    }

    fn open_one(&self, peer: &Peer) -> Result<PeerShare, String> {
        let Peer { pe, record: Record { bounce_bytes, secret, .. }, .. } = *peer;
        let layout = SharedLayout::new(bounce_bytes.min(MAX_BOUNCE_BYTES) as usize, self.n_pes);
        let process = peer.process.as_ref().map_err(String::clone)?;
        let process = process.as_ref().and_then(|process| process.try_clone().ok());
        let mut why = String::from("it offers none");
        // Anybody may send under the name of a PE.
        for (_, fd) in self.received.iter().filter(|(from, _)| *from == pe) {
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

fn meet(me: Pe, own: Option<&OwnedFd>, name: u64) -> Result<Option<OwnedFd>, String> {
    let connection = Connection::to(name)
        .map_err(|error| format!("they share neither network namespace nor /dev/shm: {error}"))?;
    let (process, user) = connection.peer().map_err(|error| error.to_string())?;
    // SAFETY: a call without arguments.
    let own_user = unsafe { libc::geteuid() };
    if user != own_user {
        return Err(format!("it is of user {user}, this PE of user {own_user}"));
    }
    own.map_or(Ok(()), |fd| connection.send(me, fd.as_raw_fd()))
        .map_err(|error| format!("sending the descriptor: {error}"))?;
    // SAFETY: takes numbers. The descriptor is close-on-exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::c_long, 0) };
    // SAFETY: just opened, and owned by nobody else.
    Ok(u32::try_from(fd).ok().map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(me: u32) -> Offer {
        Offer::of(&Settings::default(), Pe(me), 3, (true, true))
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
            let offer = Offer::of(settings, Pe(1), 3, (meets, has_use));
            assert_eq!((offer.own.is_some(), offer.meeting.is_some()), (is_there, meets));
            let bytes = 2 * settings.staging_chunk * usize::from(settings.staging_depth);
            assert_eq!(offer.record.bounce_bytes >= bytes as u64, is_there);
            assert_eq!(offer.open().1.is_some(), is_there);
        }
        // This process has not loaded CUDA.
        assert!(Offer::new(&settings, Pe(1), 3, 3).own.is_none());
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
            let stranger = Connection::to(me.record.name).unwrap();
            stranger.send(Pe(2), one.own.as_ref().unwrap().1.as_raw_fd()).unwrap();
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
