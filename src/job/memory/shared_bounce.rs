//! Bounce memory that PEs of one host share: creation, offer, and opening of the peers'.
//!
//! In one exchange every PE sends the process and descriptor of its memory, and a secret that is
//! also in the memory. Each opens the memory of all PEs of its host, and closes the descriptors
//! once all have. If the kernel refuses that (another user, another PID namespace, `/proc` hidden),
//! bytes go through the fabric, and the log says why, once for each peer.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::info;

use super::staging_options;
use crate::job::connect::nics::machine;
use crate::logging;
use crate::settings::Settings;
use cuda::{Driver, PeerShare, SECRET_BYTES, SharedLayout, SharedMemory, Shares};
use engine::ids::Pe;
use ofi::pid_namespace;

/// Size of a PE's record.
///
/// | bytes | |
/// |---|---|
/// | 0..8 | a number for the host |
/// | 8..16 | a number for the PID namespace |
/// | 16..20 | process |
/// | 20..24 | user |
/// | 24..28 | descriptor, plus one; 0 where nothing is shared |
/// | 28..32 | zero |
/// | 32..40 | bytes of all bounce buffers |
/// | 40..56 | the secret |
const RECORD_BYTES: usize = 56;

/// Maximum bytes of all bounce buffers: twice the settings' maximum.
const MAX_BOUNCE_BYTES: usize = 1 << 40;

/// Maximum bytes whose pages are touched at once.
const MAX_TOUCHED: usize = 256 << 20;

const PAGE: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    host: u64,
    namespace: u64,
    pid: u32,
    user: u32,
    /// None if nothing is shared.
    fd: Option<i32>,
    bounce_bytes: u64,
    secret: [u8; SECRET_BYTES],
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..8].copy_from_slice(&self.host.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.namespace.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.user.to_le_bytes());
        let fd = self.fd.map_or(0, |fd| fd as u32 + 1);
        bytes[24..28].copy_from_slice(&fd.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.bounce_bytes.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.secret);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let word = bytes[at..at + 8].try_into();
            word.map_or(0, u64::from_le_bytes)
        };
        let half = |at: usize| word(at) as u32;
        let fd = half(24);
        Some(Self {
            host: word(0),
            namespace: word(8),
            pid: half(16),
            user: half(20),
            fd: fd.checked_sub(1).map(|fd| fd as i32),
            bounce_bytes: word(32),
            secret: bytes[40..56].try_into().unwrap_or_default(),
        })
    }
}

/// Bounce memory offered to other PEs of the host, until all have opened it.
#[derive(Debug)]
pub(crate) struct Offer {
    me: Pe,
    n_pes: u32,
    record: Record,
    /// The memory, and the descriptor by which others open it.
    own: Option<(Arc<SharedMemory>, OwnedFd)>,
}

impl Offer {
    pub(crate) fn new(settings: &Settings, me: Pe, n_pes: u32, here: u32) -> Self {
        Self::of(settings, me, n_pes, here > 1 && Driver::of_process().is_ok())
    }

    fn of(settings: &Settings, me: Pe, n_pes: u32, has_use: bool) -> Self {
        // SAFETY: calls without arguments.
        let (pid, user) = unsafe { (libc::getpid() as u32, libc::geteuid()) };
        let (host, namespace) = (machine(), pid_namespace());
        let (fd, bounce_bytes, secret) = (None, 0, [0; SECRET_BYTES]);
        let record = Record { host, namespace, pid, user, fd, bounce_bytes, secret };
        let nothing = Self { me, n_pes, record, own: None };
        if !has_use {
            return nothing;
        }
        if !settings.share_bounce {
            info!(
                target: logging::MEM,
                "bounce memory is not shared with other PEs of this host: \
                 NVSHMEM_LIBFABRIC_DEBUG=share_bounce=0 says so"
            );
            return nothing;
        }
        match Self::make(settings, n_pes) {
            Ok((memory, fd, secret, bounce_bytes)) => Self {
                record: Record { fd: Some(fd.as_raw_fd()), bounce_bytes, secret, ..record },
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
        let mut records = records.chunks(RECORD_BYTES).map(Record::decode);
        let first =
            records.position(|record| record.is_some_and(|record| record.host == self.record.host));
        first == Some(self.me.index())
    }

    /// Returns pidfds of the other PEs of this host, by the records of all, without those that the
    /// kernel refuses, for example in another PID namespace.
    pub(crate) fn processes(&self, records: &[u8]) -> Vec<(Pe, OwnedFd)> {
        let Record { host, namespace, .. } = self.record;
        let records = (0..).map(Pe).zip(records.chunks(RECORD_BYTES).map(Record::decode));
        let others = records.filter(|(pe, _)| *pe != self.me);
        let near = others.filter_map(|(pe, record)| Some((pe, record?))).filter(|(_, record)| {
            (record.host, record.namespace) == (host, namespace) && namespace != 0
        });
        near.filter_map(|(pe, record)| Some((pe, process(record.pid)?))).collect()
    }

    pub(crate) fn open(&self, records: &[u8]) -> Option<Shares> {
        let (own, _) = self.own.as_ref()?;
        let layout = SharedLayout::new(self.record.bounce_bytes as usize, self.n_pes);
        let mut peers = Vec::new();
        for (pe, record) in records.chunks(RECORD_BYTES).enumerate() {
            let pe = Pe(pe as u32);
            let record = Record::decode(record).filter(|record| record.host == self.record.host);
            let Some(record) = record.filter(|_| pe != self.me) else { continue };
            match self.open_one(pe, &record) {
                Ok(share) => peers.push(share),
                Err(why) => info!(
                    target: logging::MEM,
                    "bounce memory of {pe} is not shared with this PE, so what goes between them goes through the fabric: {why}",
                ),
            }
        }
        Some(Shares { me: self.me, own: Arc::clone(own), layout, peers })
    }

    fn open_one(&self, pe: Pe, record: &Record) -> Result<PeerShare, String> {
        let Record { namespace, pid, user, fd, bounce_bytes, secret, .. } = *record;
        let fd = fd.ok_or("it offers none")?;
        if user != self.record.user {
            return Err(format!("it is of user {user}, this PE of user {}", self.record.user));
        }
        if namespace != self.record.namespace {
            return Err(String::from("it is in another PID namespace"));
        }
        let bounce_bytes = usize::try_from(bounce_bytes)
            .ok()
            .filter(|bounce_bytes| *bounce_bytes <= MAX_BOUNCE_BYTES);
        let layout = SharedLayout::new(bounce_bytes.ok_or("it offers too much")?, self.n_pes);
        // Before the memory is opened: if the process has ended by then, opening fails.
        let process = process(pid);
        let memory =
            SharedMemory::open(pid, fd, layout.bytes()).map_err(|error| error.to_string())?;
        if !layout.has_secret(&memory, &secret) {
            return Err(format!("what process {pid} has there is another's"));
        }
        Ok(PeerShare { pe, memory: Arc::new(memory), layout, process })
    }
}

fn process(pid: u32) -> Option<OwnedFd> {
    // SAFETY: takes numbers. The descriptor is close-on-exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::c_long, 0) };
    let fd = u32::try_from(fd).ok()?;
    // SAFETY: just opened, and owned by nobody else.
    Some(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(me: u32) -> Offer {
        Offer::of(&Settings::default(), Pe(me), 3, true)
    }

    fn opened(offer: &Offer, others: &[Record]) -> Vec<u32> {
        let records: Vec<u8> = others.iter().flat_map(Record::encode).collect();
        let shares = offer.open(&records).unwrap();
        assert!(shares.peers.iter().all(|share| share.process.is_some()), "their ends are seen");
        shares.peers.iter().map(|share| share.pe.0).collect()
    }

    #[test]
    fn memory_is_offered_if_useful() {
        let settings = Settings::default();
        let minds = Settings { share_bounce: false, ..settings.clone() };
        for (settings, has_use, is_there) in
            [(&settings, true, true), (&settings, false, false), (&minds, true, false)]
        {
            let offer = Offer::of(settings, Pe(1), 3, has_use);
            assert_eq!((offer.own.is_some(), offer.record.fd.is_some()), (is_there, is_there));
            assert_eq!(offer.open(&[]).is_some(), is_there);
            let bytes = 2 * settings.staging_chunk * usize::from(settings.staging_depth);
            assert_eq!(offer.record.bounce_bytes >= bytes as u64, is_there);
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
            let records: Vec<u8> = records.iter().flat_map(Record::encode).collect();
            let found = [&zero, &one, &two].map(|offer| offer.is_first_of_host(&records));
            // Of those that are on this host.
            let here =
                [0, 1, 2].map(|pe| records[pe * RECORD_BYTES..][..8] == zero.record.encode()[..8]);
            for pe in 0..3 {
                assert_eq!(found[pe] && here[pe], first[pe], "PE {pe}");
            }
        }
    }

    #[test]
    fn pid_namespaces_are_told_apart() {
        let [me, one, two] = [0, 1, 2].map(offer);
        let of =
            |others: [Record; 3]| -> Vec<u8> { others.iter().flat_map(Record::encode).collect() };
        let other = Record { namespace: 7, ..two.record };
        let away = Record { host: 7, ..other };
        for last in [two.record, other, away] {
            let records = of([me.record, one.record, last]);
            // They are the same process here.
            let processes: Vec<Pe> = me.processes(&records).into_iter().map(|(pe, _)| pe).collect();
            let expected: &[Pe] = if last == two.record { &[Pe(1), Pe(2)] } else { &[Pe(1)] };
            assert_eq!(processes, expected);
        }
    }

    #[test]
    fn only_offering_peers_are_opened() {
        let [me, one, two] = [0, 1, 2].map(offer);
        assert_eq!(opened(&me, &[me.record, one.record, two.record]), [1, 2]);
        let wrong = [
            Record { host: 7, ..two.record },
            Record { namespace: 7, ..two.record },
            Record { user: two.record.user + 1, ..two.record },
            Record { fd: None, ..two.record },
            Record { bounce_bytes: two.record.bounce_bytes - 4096, ..two.record },
            Record { bounce_bytes: u64::MAX, ..two.record },
            Record { secret: one.record.secret, ..two.record },
            Record { fd: one.record.fd, ..two.record },
            Record { pid: u32::MAX, ..two.record },
        ];
        for wrong in wrong {
            assert_eq!(opened(&me, &[me.record, one.record, wrong]), [1], "{wrong:?}");
        }
        let most = Record { bounce_bytes: MAX_BOUNCE_BYTES as u64, ..two.record };
        let more = Record { bounce_bytes: most.bounce_bytes + 1, ..two.record };
        let [most, more] = [most, more].map(|record| me.open_one(Pe(2), &record).map(drop));
        assert!(most.is_err() && most != more, "it is not too much, there is less: {most:?}");
    }
}
