//! The kinds of what a stranger sends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use engine::wire::cookie::Cookie;
use engine::wire::marks::Marks;
use engine::wire::message::{Body, Frame, Numbers, Sealing, Seq, Spot, Tag};
use engine::wire::seal::Seal;
use test_support::random::Random;

use crate::fabric::Fabric;
use crate::strangers::packets::{
    ANSWER, ANSWERED, CLEAR_TO_SEND, Connection, DATA, Head, MESSAGE, Protocol, READ, READ_ANSWER,
    TAGGED, WITH_DATA, WRITE, hello_of, open,
};

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// Connections on which nothing is said.
    Silent,
    /// A part of a hello, and no more; and one that breaks off there.
    HalfHello,
    NoiseForHello,
    WrongVersion,
    /// A hello that says more than it brings.
    HelloWithoutEnd,
    HelloAndGone,
    /// The head of a message, and no more; the connection stays for a while, then ends.
    HeadAlone,
    HalfHead,
    BrokenOff,
    TooLong,
    FarTooLong,
    Noise,
    NothingInIt,
    /// A message of the job, but for the seal.
    NotSealed,
    SealedByOthers,
    /// A write of no bytes, which needs no key, with immediate data: of a PE that there is not, of
    /// one that there is, with the first tag, and of any kind.
    MarkOfNobody,
    MarkOfFirstPut,
    MarkOfOthers,
    MarkOfNoise,
    MessageWithData,
    /// A write with immediate data that has bytes and no place for them.
    WriteBrokenOff,
    GuessedKeyToWrite,
    GuessedKeyToRead,
    Tagged,
    AnswerWanted,
    AnswerToNothing,
    AnswerToNoRead,
    NoOperation,
    LongHead,
    /// What only tcp of libfabric 2 knows.
    ClearToSendNothing,
    DataOfNothing,
    /// What ofi_rxm does not know.
    NoKindOfRxm,
    NoSuchConnection,
    /// A hello of a peer of the job, but for its process.
    Takeover,
    Burst,
}

impl Kind {
    const ALL: [Self; 35] = [
        Self::Silent,
        Self::HalfHello,
        Self::NoiseForHello,
        Self::WrongVersion,
        Self::HelloWithoutEnd,
        Self::HelloAndGone,
        Self::HeadAlone,
        Self::HalfHead,
        Self::BrokenOff,
        Self::TooLong,
        Self::FarTooLong,
        Self::Noise,
        Self::NothingInIt,
        Self::NotSealed,
        Self::SealedByOthers,
        Self::MarkOfNobody,
        Self::MarkOfFirstPut,
        Self::MarkOfOthers,
        Self::MarkOfNoise,
        Self::MessageWithData,
        Self::WriteBrokenOff,
        Self::GuessedKeyToWrite,
        Self::GuessedKeyToRead,
        Self::Tagged,
        Self::AnswerWanted,
        Self::AnswerToNothing,
        Self::AnswerToNoRead,
        Self::NoOperation,
        Self::LongHead,
        Self::ClearToSendNothing,
        Self::DataOfNothing,
        Self::NoKindOfRxm,
        Self::NoSuchConnection,
        Self::Takeover,
        Self::Burst,
    ];

    pub(super) fn shuffled(fabric: Fabric, seed: u64) -> Vec<Self> {
        if let Ok(names) = std::env::var("NVSHMEM_TEST_STRANGERS") {
            let named = |kind: &Self| names.split(',').any(|name| name == format!("{kind:?}"));
            return Self::ALL.into_iter().filter(named).collect();
        }
        let mut kinds: Vec<Self> = Self::ALL.into_iter().filter(|k| !k.is_known(fabric)).collect();
        let mut random = Random::new(seed);
        for at in (1..kinds.len()).rev() {
            kinds.swap(at, random.below(at as u64 + 1) as usize);
        }
        kinds
    }

    fn is_known(self, fabric: Fabric) -> bool {
        matches!(
            (self, fabric),
            (Self::Takeover | Self::AnswerToNothing, _)
                | (Self::ClearToSendNothing | Self::DataOfNothing, Fabric::Tcp2 | Fabric::Rxm2)
                | (Self::NoSuchConnection | Self::WriteBrokenOff, Fabric::Rxm | Fabric::Rxm2)
                | (Self::Tagged, Fabric::Rxm2)
                // Noise may be any of these.
                | (Self::Burst, Fabric::Tcp2 | Fabric::Rxm2)
        )
    }
}

/// Somebody who knows the ports of a job.
pub(super) struct Stranger {
    protocol: Protocol,
    ports: Vec<SocketAddr>,
    random: Random,
    /// What stays open until the job is over.
    kept: Vec<TcpStream>,
}

impl Stranger {
    pub(super) fn new(protocol: Protocol, ports: Vec<SocketAddr>, seed: u64) -> Self {
        Self { protocol, ports, random: Random::new(seed.wrapping_mul(31)), kept: Vec::new() }
    }

    /// Leaves out ports that nobody looks at: those of user threads that call nothing. What comes
    /// to them over ofi_rxm ends the process as soon as they do, which is the provider's.
    pub(super) fn leave_out_silent(&mut self) {
        let ports = std::mem::take(&mut self.ports);
        for port in ports {
            if self.connect(port).is_ok() {
                self.ports.push(port);
            }
        }
    }

    pub(super) fn send(&mut self, kind: Kind) -> io::Result<()> {
        for port in self.ports.clone() {
            self.send_to(port, kind)?;
        }
        Ok(())
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.random.below(256) as u8).collect()
    }

    fn send_to(&mut self, port: SocketAddr, kind: Kind) -> io::Result<()> {
        match kind {
            Kind::Silent => {
                for _ in 0..16 {
                    self.kept.push(open(port)?);
                }
                return Ok(());
            }
            Kind::HalfHello => {
                let hello = self.protocol.hello(9, 1, 0);
                for keeps in [true, false] {
                    let mut stream = open(port)?;
                    stream.write_all(&hello[..10])?;
                    if keeps {
                        self.kept.push(stream);
                    }
                }
                return Ok(());
            }
            Kind::NoiseForHello => {
                let noise = self.bytes(300);
                return open(port)?.write_all(&noise);
            }
            Kind::WrongVersion => return open(port)?.write_all(&hello_of(9, &[0; 8])),
            Kind::HelloWithoutEnd => {
                let mut stream = open(port)?;
                stream.write_all(&hello_of(3, &[0; 200])[..40])?;
                self.kept.push(stream);
                return Ok(());
            }
            Kind::HelloAndGone => {
                return open(port)?.write_all(&self.protocol.hello(9, 1, 16 << 10));
            }
            Kind::Burst => {
                for _ in 0..20 {
                    let noise = self.bytes(4000);
                    let mut stream = self.connect(port)?.stream;
                    // It may have been shut before all of it has gone.
                    let _ = stream.write_all(&noise);
                }
                return Ok(());
            }
            Kind::Takeover => {
                let others: Vec<SocketAddr> =
                    self.ports.iter().copied().filter(|p| *p != port).collect();
                for other in others.iter().filter(|other| other.ip() == port.ip()) {
                    let mut connection = self.protocol.connect(port, other.port(), 77)?;
                    connection.stream.set_read_timeout(Some(Duration::from_secs(2)))?;
                    let mut bytes = vec![0; 4096];
                    let read = connection.stream.read(&mut bytes);
                    println!("{other} is taken over at {port}: {read:?} bytes, {:?}", &bytes[..64]);
                }
                return Ok(());
            }
            _ => {}
        }
        for number in 0.. {
            let connection = self.connect(port)?;
            let messages = self.messages(kind, &connection);
            let Some((bytes, stays)) = messages.get(number) else { break };
            let mut stream = connection.stream;
            let _ = stream.write_all(bytes);
            if *stays {
                self.kept.push(stream);
                continue;
            }
            let _ = stream.shutdown(Shutdown::Write);
            // Until the other end closes. One that does not has the rounds that follow to read it.
            stream.set_read_timeout(Some(Duration::from_millis(100)))?;
            let _ = stream.read_to_end(&mut Vec::new());
        }
        Ok(())
    }

    fn connect(&mut self, port: SocketAddr) -> io::Result<Connection> {
        // Of nobody: providers tell processes apart by it.
        let (own, process) = (1 + self.random.below(1000) as u16, 1 + self.random.below(1 << 20));
        self.protocol.connect(port, own, process as u32)
    }

    fn messages(&mut self, kind: Kind, connection: &Connection) -> Vec<(Vec<u8>, bool)> {
        let message = |bytes: &[u8]| connection.message(bytes);
        let marked = |data: u64| {
            Head { flags: WITH_DATA, ..Head::of(WRITE) }.bytes(&data.to_le_bytes(), &[])
        };
        let mark = |share, tag| Marks::new(Cookie::of([share]), Pe(1), 2, 8).of_mine(Pe(0), tag);
        let place = [0_u64, 64, 1].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let once = |bytes: Vec<u8>| vec![(bytes, false)];
        match kind {
            Kind::HeadAlone => {
                let head = message(&[7; 100])[..16].to_vec();
                vec![(head.clone(), false), (head, true)]
            }
            Kind::HalfHead => once(message(&[7; 100])[..9].to_vec()),
            Kind::BrokenOff => {
                let whole = message(&[7; 100]);
                let cuts = [17, 40, whole.len() - 1];
                cuts.into_iter().map(|cut| (whole[..cut].to_vec(), false)).collect()
            }
            Kind::TooLong => once(message(&[7; 8000])),
            Kind::FarTooLong => once(message(&vec![7; 1 << 20])),
            Kind::Noise => {
                once([16, 31, 32, 100, 4000].map(|len| message(&self.bytes(len))).concat())
            }
            Kind::NothingInIt => once(message(&[])),
            Kind::NotSealed => {
                let forged = forged([9; 16]);
                once(message(&[&[0x22; 16], &forged.bytes()[16..]].concat()))
            }
            Kind::SealedByOthers => once(message(forged([9; 16]).bytes())),
            Kind::MarkOfNobody => once(marked(0xffff << 4)),
            Kind::MarkOfFirstPut => {
                let old = [0, 1].map(|pe: u64| marked(pe << 16 | u64::from(Tag::FIRST.0)));
                once([old.concat(), marked(0), marked(1 << 4)].concat())
            }
            Kind::MarkOfOthers => once(marked(mark([9; 16], Tag::FIRST))),
            Kind::MarkOfNoise => {
                let noise: Vec<u64> = (0..50).map(|_| self.random.next()).collect();
                once(noise.into_iter().flat_map(marked).collect())
            }
            Kind::MessageWithData => {
                let head = Head { flags: WITH_DATA, ..Head::of(MESSAGE) };
                once(head.bytes(&[7; 8], &connection.wrapped(&[7; 40])))
            }
            Kind::WriteBrokenOff => {
                let head = Head { flags: WITH_DATA, size: Some(100), ..Head::of(WRITE) };
                once(head.bytes(&[7; 8], &[7; 20]))
            }
            Kind::GuessedKeyToWrite => {
                let head = Head { places: 1, ..Head::of(WRITE) };
                once(head.bytes(&place, &[0xee; 64]))
            }
            Kind::GuessedKeyToRead => once(Head { places: 1, ..Head::of(READ) }.bytes(&place, &[])),
            Kind::Tagged => once(Head::of(TAGGED).bytes(&[7; 8], &[7; 40])),
            Kind::AnswerWanted => {
                let head = Head { flags: ANSWERED, ..Head::of(MESSAGE) };
                once(head.bytes(&[], &connection.wrapped(&[7; 40])))
            }
            Kind::AnswerToNothing => {
                once(Head { answer: ANSWER, ..Head::of(MESSAGE) }.bytes(&[], &[]))
            }
            Kind::AnswerToNoRead => once(Head::of(READ_ANSWER).bytes(&[], &[7; 40])),
            Kind::NoOperation => once(Head::of(77).bytes(&[], &[7; 40])),
            Kind::LongHead => {
                once(Head { head: Some(200), ..Head::of(MESSAGE) }.bytes(&[], &[7; 400]))
            }
            Kind::ClearToSendNothing => once(Head::of(CLEAR_TO_SEND).bytes(&[], &[])),
            Kind::DataOfNothing => once(Head::of(DATA).bytes(&[], &[7; 40])),
            Kind::NoKindOfRxm => {
                let data = connection.wrapped_as(90, connection.number, &[7; 40]);
                once(Head::of(MESSAGE).bytes(&[], &data))
            }
            Kind::NoSuchConnection => {
                let data = connection.wrapped_as(3, 0x7fff, &[7; 40]);
                once(Head::of(MESSAGE).bytes(&[], &data))
            }
            Kind::Silent
            | Kind::HalfHello
            | Kind::NoiseForHello
            | Kind::WrongVersion
            | Kind::HelloWithoutEnd
            | Kind::HelloAndGone
            | Kind::Takeover
            | Kind::Burst => Vec::new(),
        }
    }
}

/// A message that PE 1 may send to PE 0 first, sealed by the job with this cookie.
fn forged(share: [u8; 16]) -> Frame {
    let (op, width) = (AtomicOp::Set, Width::Eight);
    let atomic = Atomic { op, width, float: false, operand: u64::MAX, compare: 0 };
    let body = Body::Word { at: Spot { slot: 1 << 20, offset: 0 }, atomic };
    let seal = Seal::new(Cookie::of([share]), Pe(1));
    let (from, receiver) = (Pe(1), seal.receiver(Pe(0)));
    let sealing = Sealing { seal: &seal, from, receiver: &receiver };
    let mask = seal.mask(from, Pe(0), Seq::FIRST.high());
    let numbers = Numbers { seq: Seq::FIRST, ack: Seq::FIRST, mark: 0, mask };
    let mut frame = Frame::EMPTY;
    frame.encode(&sealing, &numbers, &body);
    frame
}
