//! The kinds of what a stranger sends: what libfabric hands on to the transport, and connections
//! that break off. What providers alone see is theirs; what messages and marks of other jobs do,
//! `tests/engine` has.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use engine::wire::message::Tag;
use test_support::random::Random;

use crate::strangers::packets::{
    Connection, MESSAGE, Protocol, READ, WITH_DATA, WRITE, head, open,
};

/// What is sent, each over a connection of its own, which ends behind it.
type Packets = fn(&mut Random, &Connection) -> Vec<Vec<u8>>;

pub(super) type Kind = (&'static str, Packets);

const KINDS: [Kind; 13] = [
    ("nothing", |_, _| Vec::new()),
    ("half a head", |_, to| vec![to.message(&[7; 100])[..9].to_vec()]),
    ("broken off", |_, to| {
        let whole = to.message(&[7; 100]);
        [16, 17, 40, whole.len() - 1].map(|cut| whole[..cut].to_vec()).into()
    }),
    ("too long", |_, to| vec![to.message(&[7; 8000])]),
    ("far too long", |_, to| vec![to.message(&vec![7; 1 << 20])]),
    ("noise", |random, to| {
        vec![[16, 31, 32, 100, 4000].map(|len| to.message(&noise(random, len))).concat()]
    }),
    ("empty", |_, to| vec![to.message(&[])]),
    // Writes of no bytes, which need no key: of a PE that there is not, of one that there is, with
    // the first tag, and with any.
    ("mark of nobody", |_, _| vec![marked(0xffff << 4)]),
    ("mark of the first put", |_, _| {
        let old = [0, 1].map(|pe: u64| marked(pe << 16 | u64::from(Tag::FIRST.0)));
        vec![[old.concat(), marked(0), marked(1 << 4)].concat()]
    }),
    ("mark of noise", |random, _| vec![(0..50).flat_map(|_| marked(random.next())).collect()]),
    ("message with data", |_, to| {
        vec![head(MESSAGE, WITH_DATA, 0, &[7; 8], &to.wrapped(&[7; 40]))]
    }),
    ("guessed key to write", |_, _| vec![head(WRITE, 0, 1, &place(), &[0xee; 64])]),
    ("guessed key to read", |_, _| vec![head(READ, 0, 1, &place(), &[])]),
];

pub(super) fn shuffled(seed: u64) -> Vec<Kind> {
    let (mut kinds, mut random) = (KINDS.to_vec(), Random::new(seed));
    for at in (1..kinds.len()).rev() {
        kinds.swap(at, random.below(at as u64 + 1) as usize);
    }
    kinds
}

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
        self.ports = ports.into_iter().filter(|port| self.connect(*port).is_ok()).collect();
    }

    pub(super) fn send(&mut self, (_, packets): Kind) -> io::Result<()> {
        for port in self.ports.clone() {
            for number in 0.. {
                let mut connection = self.connect(port)?;
                let all = packets(&mut self.random, &connection);
                let Some(bytes) = all.get(number) else {
                    if all.is_empty() {
                        self.say_little(port, connection.stream)?;
                    }
                    break;
                };
                let stream = &mut connection.stream;
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(Shutdown::Write);
                // Until the other end closes. One that does not has the rounds that follow.
                stream.set_read_timeout(Some(Duration::from_millis(100)))?;
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
        Ok(())
    }

    /// Opens connections that stay, without a message, with half a hello or with nothing; and one
    /// that ends behind its hello.
    fn say_little(&mut self, port: SocketAddr, greeted: TcpStream) -> io::Result<()> {
        let hello = self.protocol.hello(9, 1, 16 << 10);
        let mut half = open(port)?;
        half.write_all(&hello[..10])?;
        self.kept.extend([greeted, half, open(port)?]);
        open(port)?.write_all(&hello)
    }

    fn connect(&mut self, port: SocketAddr) -> io::Result<Connection> {
        // Of nobody: providers tell processes apart by it.
        let (own, process) = (1 + self.random.below(1000) as u16, 1 + self.random.below(1 << 20));
        self.protocol.connect(port, own, process as u32)
    }
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.below(256) as u8).collect()
}

fn marked(data: u64) -> Vec<u8> {
    head(WRITE, WITH_DATA, 0, &data.to_le_bytes(), &[])
}

/// A place of memory: its address, length and key.
fn place() -> Vec<u8> {
    [0_u64, 64, 1].iter().flat_map(|word| word.to_le_bytes()).collect()
}
