//! A process with rails open to itself and to others, and memory for them.

use engine::ids::{RailId, WrId};
use engine::lane::segments_for;
use engine::port::{
    Access, Addressing, DataPath, Direction, Local, MemoryPort, Operation, PeerAddr, Polled,
    Posted, Registered, Transfer,
};
use ofi::{
    Devices, Discovery, GpuDirect, MemoryKinds, OfiPort, OfiRegion, Opened, Options, Provider,
};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const HANG: Duration = Duration::from_secs(300);
pub(crate) const PEERS: usize = 8;
pub(crate) const PROVIDERS: [Provider; 3] = [Provider::Tcp, Provider::TcpRxm, Provider::Shm];

/// Whether this process has the variable with this value. If not, the test, by its whole name, has
/// been run in one that has, for libfabric reads its environment once; and it has passed.
pub(crate) fn in_a_process_with(variable: &str, value: &str, test: &str) -> bool {
    if std::env::var(variable).is_ok_and(|has| has == value) {
        return true;
    }
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    let output = child.args([test, "--nocapture"]).env(variable, value).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{complained}");
    false
}

pub(crate) fn options(provider: Provider) -> Options {
    let library = std::env::var("OFI_TEST_LIBRARY");
    let devices = match provider {
        Provider::Shm => Devices::Include(vec![String::from("shm"), String::from("shm")]),
        _ => Devices::Any,
    };
    Options {
        provider,
        devices,
        library: library.unwrap_or_else(|_| String::from("libfabric.so.1")),
        ..Options::default()
    }
}

/// Options under which device memory is asked for, of providers that have it only when asked with
/// emphasis too.
pub(crate) fn with_devices(provider: Provider) -> Options {
    Options { gpu_direct: GpuDirect::Always, ..options(provider) }
}

pub(crate) fn open(options: &Options) -> Opened {
    let kinds = match options.gpu_direct {
        GpuDirect::Always => MemoryKinds::HostAndDevices,
        _ => MemoryKinds::Host,
    };
    let discovery = Discovery::run(options, true, kinds).unwrap_or_else(|error| panic!("{error}"));
    let rails = discovery.default_rails();
    // SAFETY: these tests keep what they register, and post from, until it is over.
    let opened = unsafe { discovery.open(&rails, PEERS, PEERS) };
    opened.unwrap_or_else(|error| panic!("{error}"))
}

/// One process' fabric, with what the host lane needs to reach its own proxy rails.
pub(crate) struct Process {
    pub(crate) opened: Opened,
    pub(crate) from_host: Vec<PeerAddr>,
    /// The proxy rails as the proxy rail of the same number knows them.
    pub(crate) from_proxy: Vec<PeerAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    Host,
    Proxy,
}

impl Process {
    pub(crate) fn start(options: &Options) -> Self {
        let mut opened = open(options);
        let addresses: Vec<Vec<u8>> =
            rails(&opened.proxy).map(|rail| opened.proxy.address(rail).to_vec()).collect();
        let from_host = opened.host.insert(RailId(0), &addresses).expect("insert at the host lane");
        let mut from_proxy = Vec::new();
        for rail in rails(&opened.proxy) {
            let own = [&addresses[rail.index()]];
            from_proxy.extend(opened.proxy.insert(rail, &own).expect("insert at the proxy lane"));
        }
        Self { opened, from_host, from_proxy }
    }

    pub(crate) fn port(&mut self, lane: Lane) -> &mut OfiPort {
        match lane {
            Lane::Host => &mut self.opened.host,
            Lane::Proxy => &mut self.opened.proxy,
        }
    }

    pub(crate) fn path(&self, lane: Lane, to: RailId) -> (RailId, PeerAddr) {
        match lane {
            Lane::Host => (RailId(0), self.from_host[to.index()]),
            Lane::Proxy => (to, self.from_proxy[to.index()]),
        }
    }

    pub(crate) fn progress(&mut self, lane: Lane, except: Option<RailId>) {
        for rail in 0..self.port(lane).limits().len() as u8 {
            if except == Some(RailId(rail)) {
                continue;
            }
            match poll(self.port(lane), RailId(rail)).1 {
                Polled::Empty => {}
                other => panic!("unexpected on {lane:?} rail {rail}: {other:?}"),
            }
        }
    }

    pub(crate) fn post(&mut self, lane: Lane, to: RailId, wr_id: WrId, transfer: &Transfer) {
        let (rail, peer) = self.path(lane, to);
        let start = Instant::now();
        loop {
            match self.port(lane).post(rail, peer, wr_id, Operation::Transfer(transfer)) {
                Ok(Posted::Yes) => return,
                Ok(Posted::Again) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < HANG, "the fabric never took the operation");
            // The connection is made by polling both of its ends.
            assert!(self.completed(lane, rail).is_empty(), "nothing else is in flight");
            for other in [Lane::Host, Lane::Proxy] {
                self.progress(other, (other == lane).then_some(rail));
            }
        }
    }

    pub(crate) fn completed(&mut self, lane: Lane, rail: RailId) -> Vec<WrId> {
        completed(self.port(lane), rail)
    }
}

pub(crate) fn poll(port: &mut OfiPort, rail: RailId) -> (Vec<WrId>, Polled) {
    let (mut done, segments) = (Vec::new(), segments_for(port.limits()));
    let polled = port.drain(rail, &mut |index: usize| {
        let is_known = index < segments as usize;
        done.extend(is_known.then_some(WrId(index as u32)));
        is_known
    });
    (done, polled)
}

pub(crate) fn completed(port: &mut OfiPort, rail: RailId) -> Vec<WrId> {
    match poll(port, rail) {
        (_, Polled::Failed(failure)) => panic!("{failure:?}"),
        (done, _) => done,
    }
}

pub(crate) struct Memory {
    // Dropped before the bytes that it registers.
    pub(crate) registered: Registered<OfiRegion>,
    pub(crate) bytes: Vec<u8>,
}

impl Memory {
    pub(crate) fn new(opened: &Opened, bytes: Vec<u8>, access: Access) -> Self {
        let registered = opened
            .memory
            .register(bytes.as_ptr() as usize, bytes.len(), access)
            .unwrap_or_else(|error| panic!("{error}"));
        Self { registered, bytes }
    }

    pub(crate) fn local(&self, offset: usize, lane: Lane, rail: RailId) -> Local {
        let desc = match lane {
            Lane::Host => self.registered.host_descs[0],
            Lane::Proxy => self.registered.proxy_descs[rail.index()],
        };
        Local::Memory { addr: self.bytes.as_ptr() as usize + offset, desc }
    }

    pub(crate) fn remote(&self, offset: usize) -> u64 {
        match self.registered.addressing {
            Addressing::Virtual => self.bytes.as_ptr() as u64 + offset as u64,
            Addressing::Offset => offset as u64,
        }
    }

    pub(crate) fn write(&self, rail: RailId, to: usize, local: Local, len: usize) -> Transfer {
        let (remote, key) = (self.remote(to), self.key(rail));
        Transfer { direction: Direction::Write, local, len, remote, key }
    }

    pub(crate) fn key(&self, rail: RailId) -> u64 {
        self.registered.keys[rail.index()]
    }

    /// A byte as it is in memory now: the provider writes it behind the compiler's back.
    pub(crate) fn now(&self, offset: usize) -> u8 {
        // SAFETY: the reference gives a valid place; volatile because of the writes from outside.
        unsafe { (&raw const self.bytes[offset]).read_volatile() }
    }

    pub(crate) fn now_all(&self) -> Vec<u8> {
        (0..self.bytes.len()).map(|offset| self.now(offset)).collect()
    }
}

pub(crate) fn rails(port: &OfiPort) -> impl Iterator<Item = RailId> + use<> {
    (0..port.limits().len() as u8).map(RailId)
}
