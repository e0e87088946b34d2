//! The `ofi` layer over real providers, in one process on loopback and shared memory.
//!
//! `OFI_TEST_LIBRARY` names the libfabric to use, since a process can use only one: the suite runs
//! once for each version. All waiting is polling of every port, up to a deadline that only a hang
//! reaches.

mod device_memory;
mod host_memory;
mod messages;
mod remote_data;

use std::process::Command;
use std::time::{Duration, Instant};

use nvshmem_transport_libfabric::engine::ids::{RailId, Token};
use nvshmem_transport_libfabric::engine::port::{
    Access, Addressing, Clock, DataPath, Desc, Direction, Failure, Local, MemoryPort, Operation,
    POLL_BATCH, PeerAddr, Polled, Posted, RailControl, Registered, Transfer,
};
use nvshmem_transport_libfabric::ofi::{
    Discovery, MemoryKinds, OfiError, OfiPort, OfiRegion, Opened, Report,
};
use nvshmem_transport_libfabric::settings::{
    Devices, GpuDirect, Progress, Provider, Settings, Threading,
};

const HANG: Duration = Duration::from_secs(60);
const TOKENS: u32 = 64;
const PEERS: usize = 8;
const PROVIDERS: [Provider; 3] = [Provider::Tcp, Provider::TcpRxm, Provider::Shm];

/// Whether this process has the variable with this value. If not, the test, by its whole name, has been run in one
/// that has, for libfabric reads its environment once; and it has passed.
fn in_a_process_with(variable: &str, value: &str, test: &str) -> bool {
    if std::env::var(variable).is_ok_and(|has| has == value) {
        return true;
    }
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    let output = child.args(["--exact", test, "--nocapture"]).env(variable, value).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{complained}");
    false
}

fn settings(provider: Provider) -> Settings {
    let library = std::env::var("OFI_TEST_LIBRARY");
    let devices = match provider {
        Provider::Shm => Devices::Include(vec![String::from("shm"), String::from("shm")]),
        _ => Devices::Any,
    };
    Settings {
        provider,
        devices,
        warn_after: None,
        fail_after: None,
        library: library.unwrap_or_else(|_| String::from("libfabric.so.1")),
        ..Settings::default()
    }
}

/// Settings under which device memory is asked for, of providers that have it only when asked with
/// emphasis too.
fn with_devices(provider: Provider) -> Settings {
    Settings { gpu_direct: GpuDirect::Always, ..settings(provider) }
}

/// Every provider, and what they are like when device memory was asked for.
fn fabrics() -> Vec<Settings> {
    PROVIDERS.into_iter().map(settings).chain(PROVIDERS.into_iter().map(with_devices)).collect()
}

fn open(settings: &Settings) -> Opened {
    let kinds = match settings.gpu_direct {
        GpuDirect::Always => MemoryKinds::HostAndDevices,
        _ => MemoryKinds::Host,
    };
    let discovery = Discovery::run(settings, true, kinds).unwrap_or_else(|error| panic!("{error}"));
    let rails = discovery.default_rails();
    discovery.open(&rails, PEERS).unwrap_or_else(|error| panic!("{error}"))
}

/// One process' fabric, with what the host lane needs to reach its own proxy rails.
struct Process {
    opened: Opened,
    /// The proxy rails as the host rail knows them.
    from_host: Vec<PeerAddr>,
    /// The proxy rails as the proxy rail of the same number knows them.
    from_proxy: Vec<PeerAddr>,
}

/// A lane of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    Host,
    Proxy,
}

impl Process {
    fn start(settings: &Settings) -> Self {
        let mut opened = open(settings);
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

    fn port(&mut self, lane: Lane) -> &mut OfiPort {
        match lane {
            Lane::Host => &mut self.opened.host,
            Lane::Proxy => &mut self.opened.proxy,
        }
    }

    /// The rail to post on, and the peer, to reach proxy rail `to` from a lane.
    fn path(&self, lane: Lane, to: RailId) -> (RailId, PeerAddr) {
        match lane {
            Lane::Host => (RailId(0), self.from_host[to.index()]),
            Lane::Proxy => (to, self.from_proxy[to.index()]),
        }
    }

    /// Polls every rail of a lane but one, where nothing is expected to complete.
    fn progress(&mut self, lane: Lane, except: Option<RailId>) {
        let mut done = [Token(0); POLL_BATCH];
        for rail in 0..self.port(lane).limits().len() as u8 {
            if except == Some(RailId(rail)) {
                continue;
            }
            match self.port(lane).poll(RailId(rail), &mut done) {
                Polled::Empty => {}
                other => panic!("unexpected on {lane:?} rail {rail}: {other:?}"),
            }
        }
    }

    fn progress_all_but(&mut self, lane: Lane, rail: RailId) {
        for other in [Lane::Host, Lane::Proxy] {
            self.progress(other, (other == lane).then_some(rail));
        }
    }

    /// Posts until the fabric takes it.
    fn post(&mut self, lane: Lane, to: RailId, token: Token, transfer: &Transfer) {
        let (rail, peer) = self.path(lane, to);
        let start = Instant::now();
        loop {
            match self.port(lane).post(rail, peer, token, Operation::Transfer(transfer)) {
                Ok(Posted::Yes) => return,
                Ok(Posted::Again) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < HANG, "the fabric never took the operation");
            // The connection is made by polling both of its ends.
            assert!(self.completed(lane, rail).is_empty(), "nothing else is in flight");
            self.progress_all_but(lane, rail);
        }
    }

    /// What completes on one rail, now.
    fn completed(&mut self, lane: Lane, rail: RailId) -> Vec<Token> {
        let mut done = [Token(u32::MAX); POLL_BATCH];
        match self.port(lane).poll(rail, &mut done) {
            Polled::Empty => Vec::new(),
            Polled::Completed(count) => done[..count].to_vec(),
            Polled::Failed(failure) => panic!("{failure:?}"),
        }
    }

    /// Waits for the one operation in flight.
    fn wait(&mut self, lane: Lane, to: RailId, token: Token) {
        let (rail, _) = self.path(lane, to);
        let start = Instant::now();
        loop {
            let done = self.completed(lane, rail);
            if !done.is_empty() {
                assert_eq!(done, [token]);
                return;
            }
            assert!(start.elapsed() < HANG, "the operation never completed");
            self.progress_all_but(lane, rail);
        }
    }

    fn run(&mut self, lane: Lane, to: RailId, token: Token, transfer: &Transfer) {
        self.post(lane, to, token, transfer);
        self.wait(lane, to, token);
    }
}

/// Registered memory of this process.
struct Memory {
    // Dropped before the bytes that it registers.
    registered: Registered<OfiRegion>,
    bytes: Vec<u8>,
}

impl Memory {
    fn new(opened: &Opened, bytes: Vec<u8>, access: Access) -> Self {
        let registered = opened
            .memory
            .register(bytes.as_ptr() as usize, bytes.len(), access)
            .unwrap_or_else(|error| panic!("{error}"));
        Self { registered, bytes }
    }

    fn local(&self, offset: usize, lane: Lane, rail: RailId) -> Local {
        let desc = match lane {
            Lane::Host => self.registered.host_descs[0],
            Lane::Proxy => self.registered.proxy_descs[rail.index()],
        };
        Local::Memory { addr: self.bytes.as_ptr() as usize + offset, desc }
    }

    fn remote(&self, offset: usize) -> u64 {
        match self.registered.addressing {
            Addressing::Virtual => self.bytes.as_ptr() as u64 + offset as u64,
            Addressing::Offset => offset as u64,
        }
    }

    fn key(&self, rail: RailId) -> u64 {
        self.registered.keys[rail.index()]
    }

    /// A byte as it is in memory now: the provider writes it behind the compiler's back.
    fn now(&self, offset: usize) -> u8 {
        // SAFETY: the reference gives a valid place; volatile because of the writes from outside.
        unsafe { (&raw const self.bytes[offset]).read_volatile() }
    }

    fn now_all(&self) -> Vec<u8> {
        (0..self.bytes.len()).map(|offset| self.now(offset)).collect()
    }
}

fn rails(port: &OfiPort) -> impl Iterator<Item = RailId> + use<> {
    (0..port.limits().len() as u8).map(RailId)
}

/// Bytes that differ from their neighbours and from one seed to the next.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn what_is_written_is_there_and_what_is_there_is_read() {
    const MARGIN: usize = 16;
    let sizes = [1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 4096, 65_537, 1 << 20, (4 << 20) + 1];
    for settings in fabrics() {
        let provider = settings.provider;
        let mut process = Process::start(&settings);
        println!("{}", process.opened.report);
        assert_eq!(process.opened.report.rails.len(), 2, "{}", process.opened.report);
        for (round, len) in sizes.into_iter().enumerate() {
            for lane in [Lane::Host, Lane::Proxy] {
                for rail in rails(&process.opened.proxy) {
                    let seed = round * 16 + rail.index() * 2 + lane as usize;
                    let source = pattern(len + 3, seed);
                    let source = Memory::new(&process.opened, source, Access::Local);
                    let target = vec![0xee; len + 2 * MARGIN];
                    let target = Memory::new(&process.opened, target, Access::LocalAndRemote);
                    let token = Token((seed as u32) % TOKENS);
                    let write = Transfer {
                        direction: Direction::Write,
                        local: source.local(3, lane, rail),
                        len,
                        remote: target.remote(MARGIN),
                        key: target.key(rail),
                    };
                    process.run(lane, rail, token, &write);
                    let landed = target.now_all();
                    assert_eq!(
                        landed[MARGIN..MARGIN + len],
                        source.bytes[3..],
                        "{provider:?} {len}"
                    );
                    assert!(landed[..MARGIN].iter().all(|&byte| byte == 0xee), "wrote before it");
                    assert!(landed[MARGIN + len..].iter().all(|&byte| byte == 0xee), "and behind");

                    let back = Memory::new(&process.opened, vec![0x11; len + 5], Access::Local);
                    let read = Transfer {
                        direction: Direction::Read,
                        local: back.local(5, lane, rail),
                        ..write
                    };
                    process.run(lane, rail, token, &read);
                    let back = back.now_all();
                    assert_eq!(back[5..], source.bytes[3..], "{provider:?} {len}");
                    assert_eq!(back[..5], [0x11; 5]);
                }
            }
        }
    }
}

#[test]
fn inline_values_need_no_memory_of_the_caller() {
    for settings in fabrics() {
        let mut process = Process::start(&settings);
        let target = Memory::new(&process.opened, vec![0; 80], Access::LocalAndRemote);
        for lane in [Lane::Host, Lane::Proxy] {
            for rail in rails(&process.opened.proxy) {
                for len in [1, 2, 4, 8] {
                    let value = 0x8877_6655_4433_2211_u64 ^ (rail.0 as u64) << 3 ^ lane as u64;
                    let transfer = Transfer {
                        direction: Direction::Write,
                        local: Local::Inline(value),
                        len,
                        remote: target.remote(8 * len),
                        key: target.key(rail),
                    };
                    process.run(lane, rail, Token(TOKENS - 1), &transfer);
                    let landed = target.now_all();
                    assert_eq!(landed[8 * len..][..len], value.to_le_bytes()[..len]);
                }
            }
        }
    }
}

/// `fi_write` must take `FI_DELIVERY_COMPLETE` from the endpoint: a completion that comes while
/// the target has not been polled must find the data there already.
#[test]
fn a_completion_means_that_the_data_is_visible() {
    for provider in PROVIDERS {
        let mut process = Process::start(&settings(provider));
        let (rail, token) = (RailId(0), Token(1));
        for len in [8_usize, 4096, 65_536] {
            let target = Memory::new(&process.opened, vec![0; len], Access::LocalAndRemote);
            let mut early = 0;
            for round in 0..300_usize {
                let source = vec![(round % 255) as u8 + 1; len];
                let source = Memory::new(&process.opened, source, Access::Local);
                let transfer = Transfer {
                    direction: Direction::Write,
                    local: source.local(0, Lane::Host, rail),
                    len,
                    remote: target.remote(0),
                    key: target.key(rail),
                };
                process.post(Lane::Host, rail, token, &transfer);
                let start = Instant::now();
                'wait: loop {
                    // The source alone for a while, so that a completion which does not wait for
                    // the target has every chance to come first.
                    for _ in 0..20 {
                        if !process.completed(Lane::Host, rail).is_empty() {
                            break 'wait;
                        }
                    }
                    assert!(start.elapsed() < HANG, "the write never completed");
                    process.progress(Lane::Proxy, None);
                }
                let value = (round % 255) as u8 + 1;
                if target.now(0) != value || target.now(len - 1) != value {
                    early += 1;
                }
                while target.now(0) != value || target.now(len - 1) != value {
                    process.progress(Lane::Proxy, None);
                    assert!(start.elapsed() < HANG, "the data never landed");
                }
            }
            assert_eq!(early, 0, "{provider:?}: {early} of 300 writes of {len} completed early");
        }
    }
}

#[test]
fn every_operation_in_flight_completes_once() {
    const SLOT: usize = 512;
    for provider in PROVIDERS {
        let mut process = Process::start(&settings(provider));
        let source = pattern(SLOT * TOKENS as usize, 5);
        let source = Memory::new(&process.opened, source, Access::Local);
        let target = vec![0; source.bytes.len()];
        let target = Memory::new(&process.opened, target, Access::LocalAndRemote);
        let rail_count = process.opened.proxy.limits().len() as u32;

        let mut in_flight = 0;
        let mut next = 0;
        let mut completed = vec![0; TOKENS as usize];
        let start = Instant::now();
        while completed.iter().sum::<u32>() < TOKENS {
            assert!(start.elapsed() < HANG, "{completed:?}");
            if next < TOKENS {
                let rail = RailId((next % rail_count) as u8);
                let offset = next as usize * SLOT;
                let transfer = Transfer {
                    direction: Direction::Write,
                    local: source.local(offset, Lane::Proxy, rail),
                    len: SLOT,
                    remote: target.remote(offset),
                    key: target.key(rail),
                };
                let peer = process.from_proxy[rail.index()];
                let port = &mut process.opened.proxy;
                if port.post(rail, peer, Token(next), Operation::Transfer(&transfer)).expect("post")
                    == Posted::Yes
                {
                    next += 1;
                    in_flight += 1;
                    continue;
                }
            }
            for rail in rails(&process.opened.proxy) {
                for token in process.completed(Lane::Proxy, rail) {
                    assert_eq!(token.0 % rail_count, u32::from(rail.0), "on the rail of its post");
                    completed[token.index()] += 1;
                    in_flight -= 1;
                }
            }
            process.progress(Lane::Host, None);
        }
        assert_eq!(in_flight, 0);
        assert!(completed.iter().all(|&count| count == 1), "{completed:?}");
        assert_eq!(target.now_all(), source.bytes);
    }
}

#[test]
fn limits_follow_the_settings() {
    for provider in PROVIDERS {
        let offered = open(&settings(provider));
        for limits in offered.proxy.limits() {
            assert!((64..=4096).contains(&limits.depth), "{provider:?}: {limits:?}");
            assert!(limits.max_segment >= 1 << 30, "{provider:?}: {limits:?}");
        }
        let narrow = Settings { queue_depth: 1, max_segment: 4096, ..settings(provider) };
        let mut process = Process::start(&narrow);
        for port in [&process.opened.proxy, &process.opened.host] {
            for limits in port.limits() {
                assert_eq!((limits.depth, limits.max_segment), (1, 4096));
            }
        }
        // One at a time still works, first contact included.
        let target = Memory::new(&process.opened, vec![0; 8], Access::LocalAndRemote);
        for value in 1..=200_u64 {
            let transfer = Transfer {
                direction: Direction::Write,
                local: Local::Inline(value),
                len: 8,
                remote: target.remote(0),
                key: target.key(RailId(1)),
            };
            process.run(Lane::Proxy, RailId(1), Token(0), &transfer);
            assert_eq!(target.now_all(), value.to_le_bytes());
        }
    }
}

#[test]
fn rails_on_loopback_have_addresses_of_their_own() {
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let opened = open(&settings(provider));
        let report: &Report = &opened.report;
        let names: Vec<&str> = report.rails.iter().map(|rail| rail.name.as_str()).collect();
        assert_eq!(names, ["127.0.0.1", "127.0.0.2"]);
        assert!(report.rails.iter().all(|rail| rail.pci_path.is_none()));
        for (rail, last) in [(RailId(0), 1), (RailId(1), 2)] {
            // A sockaddr_in: family, port, address.
            let address = opened.proxy.address(rail);
            assert_eq!(address[4..8], [127, 0, 0, last]);
            assert_eq!(opened.proxy.rail_name(rail), format!("127.0.0.{last}"));
        }
        assert_ne!(opened.proxy.address(RailId(0)), opened.host.address(RailId(0)));
        for rail in &report.rails {
            println!("{provider:?} {}: domain {}, fabric {}", rail.name, rail.domain, rail.fabric);
        }
    }
}

#[test]
fn chosen_devices_are_the_rails_in_their_order() {
    let devices = ["127.0.0.3", "lo", "127.0.0.2", "127.0.0.2"].map(String::from).to_vec();
    let chosen = Settings { devices: Devices::Include(devices), ..settings(Provider::TcpRxm) };
    let discovery =
        Discovery::run(&chosen, false, MemoryKinds::Host).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<&str> = discovery.devices().iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["127.0.0.3", "lo", "127.0.0.2", "127.0.0.2#2"]);
    assert_eq!(discovery.default_rails(), [0, 1, 2, 3]);

    let capped = Settings { max_nic_per_pe: 3, ..chosen };
    let discovery =
        Discovery::run(&capped, false, MemoryKinds::Host).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(discovery.default_rails(), [0, 1, 2]);

    let devices = Devices::Exclude(vec![String::from("127.0.0.1")]);
    let without = Settings { devices, ..settings(Provider::Tcp) };
    let discovery =
        Discovery::run(&without, true, MemoryKinds::Host).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(discovery.devices().len(), 1);
    assert_eq!(discovery.devices()[0].name, "127.0.0.2");
    assert!(discovery.refusals().iter().any(|refusal| refusal.to_string().contains("excluded")));
}

#[test]
fn a_device_that_does_not_exist_is_named_with_what_there_is() {
    for (entry, reason) in
        [("mlx5_9", "nothing there has this name"), ("203.0.113.7", "not an address of this host")]
    {
        let devices = Devices::Include(vec![String::from("127.0.0.1"), String::from(entry)]);
        let wrong = Settings { devices, ..settings(Provider::Tcp) };
        let error = Discovery::run(&wrong, true, MemoryKinds::Host).expect_err("no such device");
        assert!(matches!(error, OfiError::UnknownDevice { .. }), "{error:?}");
        let said = error.to_string();
        println!("{said}");
        assert!(said.contains(entry) && said.contains(reason), "{said}");
        assert!(said.contains("lo (127.0.0.1)"), "it must say what there is: {said}");
    }
}

#[test]
fn a_missing_provider_is_explained() {
    if !in_a_process_with("FI_PROVIDER", "^efa,cxi,verbs", "a_missing_provider_is_explained") {
        return;
    }
    for (provider, name) in [(Provider::Cxi, "cxi"), (Provider::Efa, "efa")] {
        let error = Discovery::run(&settings(provider), true, MemoryKinds::Host)
            .expect_err("no such NIC here");
        let said = error.to_string();
        println!("{said}");
        assert!(matches!(error, OfiError::NoDevice { .. }), "{said}");
        assert!(said.contains(&format!("`{name}`")), "{said}");
        assert!(said.contains(&format!("\n  {name}: ")), "one line per refusal: {said}");
    }
}

#[test]
fn auto_settles_on_tcp_and_explains_the_others() {
    let test = "auto_settles_on_tcp_and_explains_the_others";
    if !in_a_process_with("FI_PROVIDER", "^efa,cxi,verbs", test) {
        return;
    }
    let automatic = Settings { devices: Devices::Any, ..settings(Provider::Auto) };
    let discovery = Discovery::run(&automatic, true, MemoryKinds::Host)
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(discovery.provider().starts_with("tcp"), "{}", discovery.provider());
    for refusal in discovery.refusals() {
        println!("{refusal}");
    }
    let refused: Vec<&str> =
        discovery.refusals().iter().map(|refusal| refusal.provider.as_str()).collect();
    for provider in ["efa", "cxi", "verbs;ofi_rxm"] {
        assert!(refused.contains(&provider), "{refused:?}");
    }
}

#[test]
fn a_missing_library_is_an_error_that_names_it() {
    // One that has loaded a libfabric answers that it has another already.
    let missing = "libfabric-of-nowhere.so.1";
    let test = "a_missing_library_is_an_error_that_names_it";
    if !in_a_process_with("OFI_TEST_LIBRARY", missing, test) {
        return;
    }
    let error = Discovery::run(&settings(Provider::Auto), true, MemoryKinds::Host)
        .expect_err("no such library");
    assert!(matches!(error, OfiError::Load(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains(missing), "{said}");
    assert!(said.contains("cannot open shared object file"), "the loader's own words: {said}");
    assert!(said.contains("install libfabric 1.17"), "{said}");
}

#[test]
fn wrong_posts_are_refused_with_a_reason() {
    let mut process = Process::start(&settings(Provider::Shm));
    let target = Memory::new(&process.opened, vec![0; 64], Access::LocalAndRemote);
    let peer = process.from_proxy[0];
    let port = &mut process.opened.proxy;
    let beyond = port.token_capacity() as u32;
    let good = Transfer {
        direction: Direction::Write,
        local: Local::Inline(7),
        len: 8,
        remote: target.remote(0),
        key: target.key(RailId(0)),
    };
    let mut refused = |rail: u8, token: u32, transfer: Transfer, why: &str| {
        let error = port
            .post(RailId(rail), peer, Token(token), Operation::Transfer(&transfer))
            .expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(0, 0, Transfer { len: 9, ..good }, "9 bytes");
    refused(0, 0, Transfer { direction: Direction::Read, ..good }, "inline");
    refused(0, beyond, good, &format!("token {beyond}"));
    refused(9, 0, good, "rail 9");
    assert!(matches!(
        process.opened.proxy.poll(RailId(9), &mut [Token(0); POLL_BATCH]),
        Polled::Failed(Failure { token: None, .. })
    ));
    assert_eq!(target.now_all(), [0; 64]);
}

/// The target refuses it; the initiator hears of it, by token, and nothing lands.
#[test]
fn a_write_outside_the_region_fails_with_its_token() {
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let mut process = Process::start(&settings(provider));
        let target = Memory::new(&process.opened, vec![0; 64], Access::LocalAndRemote);
        let outside = Transfer {
            direction: Direction::Write,
            local: Local::Inline(7),
            len: 8,
            remote: target.remote(64),
            key: target.key(RailId(0)),
        };
        process.post(Lane::Host, RailId(0), Token(42), &outside);
        let start = Instant::now();
        let failure = loop {
            let mut done = [Token(0); POLL_BATCH];
            match process.opened.host.poll(RailId(0), &mut done) {
                Polled::Failed(failure) => break failure,
                Polled::Completed(count) => panic!("completed: {:?}", &done[..count]),
                Polled::Empty => process.progress(Lane::Proxy, None),
            }
            assert!(start.elapsed() < HANG, "no failure was reported");
        };
        assert_eq!(failure.token, Some(Token(42)), "{failure:?}");
        assert!(failure.error.code > 0 && !failure.error.text.is_empty(), "{failure:?}");
        println!("{provider:?}: {}", failure.error);
        assert_eq!(target.now_all(), [0; 64]);
    }
}

#[test]
fn addresses_from_elsewhere_are_checked() {
    let mut opened = open(&settings(Provider::TcpRxm));
    let own = opened.proxy.address(RailId(0)).to_vec();
    let error = opened.proxy.insert(RailId(0), &[&own[..], &own[..7]]).expect_err("cut short");
    assert!(error.text.contains("address 1 has 7 bytes"), "{error}");
    let error = opened.proxy.insert(RailId(7), &[&own]).expect_err("no such rail");
    assert!(error.text.contains("rail 7"), "{error}");
    let none: [&[u8]; 0] = [];
    assert_eq!(opened.proxy.insert(RailId(0), &none).expect("nothing to do"), []);
    let many = vec![own; 1000];
    let peers = opened.proxy.insert(RailId(0), &many).expect("more than announced");
    assert_eq!(peers.len(), 1000);
}

#[test]
fn memory_that_is_none_cannot_be_registered() {
    for provider in PROVIDERS {
        let opened = open(&settings(provider));
        let byte = 0_u8;
        let addr = &raw const byte as usize;
        for (addr, len) in [(addr, 0), (0, 8), (addr, usize::MAX)] {
            let error = opened.memory.register(addr, len, Access::Local).expect_err("no memory");
            assert!(error.text.contains("are no memory"), "{error}");
            assert!(error.text.contains(&opened.report.rails[0].name), "{error}");
        }
    }
}

#[test]
fn keys_are_unique_among_regions_of_all_kinds() {
    for provider in PROVIDERS {
        let opened = open(&settings(provider));
        let regions: Vec<Memory> =
            // Those for local use have keys too: peers read by them when they are asked to.
            (0..50).map(|at| [Access::LocalAndRemote, Access::Local][at % 2])
                .map(|access| Memory::new(&opened, vec![0; 4096], access))
                .collect();
        for rail in rails(&opened.proxy) {
            let mut keys: Vec<u64> = regions.iter().map(|region| region.key(rail)).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), regions.len());
        }
        let local = Memory::new(&opened, vec![0; 16], Access::Local);
        assert_eq!(local.registered.keys.len(), opened.proxy.limits().len());
        assert_eq!(local.registered.proxy_descs.len(), opened.proxy.limits().len());
        assert_eq!(local.registered.host_descs.len(), 1);
    }
}

/// Registration from other threads while the lane posts and polls, with the gate
/// (`FI_THREAD_DOMAIN`) and without.
#[test]
fn registration_runs_beside_transfers() {
    for provider in PROVIDERS {
        for threading in [Threading::Completion, Threading::Domain, Threading::Safe] {
            let progress = Progress::Manual;
            let mut process =
                Process::start(&Settings { threading, progress, ..settings(provider) });
            let Process { opened, .. } = &mut process;
            let target = Memory::new(opened, vec![0; 8], Access::LocalAndRemote);
            let memory = std::mem::replace(&mut opened.memory, open(&settings(provider)).memory);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let bytes = [0_u8; 256];
                            let addr = bytes.as_ptr() as usize;
                            let registered = memory
                                .register(addr, bytes.len(), Access::LocalAndRemote)
                                .unwrap_or_else(|error| panic!("{error}"));
                            assert_eq!(registered.keys.len(), 2);
                        }
                    });
                }
                for value in 1..=300_u64 {
                    let transfer = Transfer {
                        direction: Direction::Write,
                        local: Local::Inline(value),
                        len: 8,
                        remote: target.remote(0),
                        key: target.key(RailId(0)),
                    };
                    process.run(Lane::Host, RailId(0), Token(3), &transfer);
                }
            });
            assert_eq!(target.now_all(), 300_u64.to_le_bytes());
        }
    }
}

#[test]
fn it_opens_and_closes_many_times() {
    for provider in PROVIDERS {
        for cycle in 1..=10_u64 {
            let mut process = Process::start(&settings(provider));
            let target = Memory::new(&process.opened, vec![0; 8], Access::LocalAndRemote);
            let transfer = Transfer {
                direction: Direction::Write,
                local: Local::Inline(cycle),
                len: 8,
                remote: target.remote(0),
                key: target.key(RailId(1)),
            };
            process.run(Lane::Host, RailId(1), Token(0), &transfer);
            assert_eq!(target.now_all(), cycle.to_le_bytes());
            // The region outlives ports and memory in every other cycle.
            if cycle % 2 == 0 {
                drop(process);
            }
        }
    }
}

#[test]
fn it_closes_with_operations_in_flight() {
    const LEN: usize = 256 << 10;
    for provider in PROVIDERS {
        for order in 0..3 {
            let mut process = Process::start(&settings(provider));
            let source = Memory::new(&process.opened, vec![1; LEN], Access::Local);
            let target = Memory::new(&process.opened, vec![0; LEN], Access::LocalAndRemote);
            let transfer = Transfer {
                direction: Direction::Write,
                local: source.local(0, Lane::Host, RailId(0)),
                len: LEN,
                remote: target.remote(0),
                key: target.key(RailId(0)),
            };
            // The first one connects; nobody waits for the others.
            process.run(Lane::Host, RailId(0), Token(0), &transfer);
            let (rail, peer) = process.path(Lane::Host, RailId(0));
            let mut posted = 0;
            for token in 1..TOKENS {
                let port = &mut process.opened.host;
                if port
                    .post(rail, peer, Token(token), Operation::Transfer(&transfer))
                    .expect("post")
                    == Posted::Yes
                {
                    posted += 1;
                }
            }
            assert!(posted > 0, "nothing in flight to close upon");
            let Opened { host, proxy, memory, .. } = process.opened;
            match order {
                0 => drop((host, proxy, memory)),
                1 => drop((memory, proxy, host)),
                _ => drop((proxy, memory, host)),
            }
        }
    }
}

/// What a poll has read and the engine has not been given yet is of operations that the closing has ended.
#[test]
fn completions_of_a_closed_queue_are_not_told_once_it_is_open_again() {
    const RAIL: RailId = RailId(0);
    for provider in PROVIDERS.into_iter().filter(|provider| *provider != Provider::Shm) {
        let mut process = Process::start(&settings(provider));
        let memory = Memory::new(&process.opened, vec![1; 64], Access::LocalAndRemote);
        let transfer = Transfer {
            direction: Direction::Write,
            local: memory.local(0, Lane::Host, RAIL),
            len: 8,
            remote: memory.remote(8),
            key: memory.key(RAIL),
        };
        process.run(Lane::Host, RAIL, Token(0), &transfer);
        process.post(Lane::Host, RAIL, Token(1), &transfer);
        let start = Instant::now();
        while !process.opened.host.has_completions(RAIL) {
            assert!(start.elapsed() < HANG, "the operation never completed");
            process.progress(Lane::Proxy, None);
        }
        process.opened.host.reset_rail(RAIL).expect("opened again");
        let mut told = Vec::new();
        let polled = process.opened.host.drain(RAIL, |index| {
            told.push(index);
            true
        });
        assert!(told.is_empty() && matches!(polled, Polled::Empty), "{told:?} {polled:?}");
    }
}

#[test]
fn nothing_stays_open_when_no_rail_opens() {
    let discovery = Discovery::run(&settings(Provider::Shm), true, MemoryKinds::Host).expect("shm");
    let error = discovery.open(&[], PEERS).expect_err("no device");
    assert!(matches!(error, OfiError::NoRail { .. }), "{error}");
    let error = discovery.open(&[17], PEERS).expect_err("no such device");
    assert!(error.to_string().contains("device 17 of 2 does not exist"), "{error}");
}

/// None of the providers that run without hardware moves data by itself as we open them, whatever
/// it answers: native tcp says `FI_PROGRESS_AUTO`.
#[test]
fn progress_is_judged_not_believed() {
    for provider in PROVIDERS {
        let report = open(&settings(provider)).report;
        println!("{report}");
        assert!(!report.verdict.truly_automatic, "{report}");
        let asked = if report.provider == "tcp" { "AUTO" } else { "MANUAL" };
        assert!(report.asked.contains(asked) && report.progress == asked, "{report}");
        let manual = Settings { progress: Progress::Manual, ..settings(provider) };
        let report = open(&manual).report;
        assert!(!report.verdict.truly_automatic, "{report}");
        assert_eq!(report.progress, "MANUAL", "{report}");
    }
}

#[test]
fn a_clock_and_a_descriptor() {
    let mut opened = open(&settings(Provider::Shm));
    let earlier = opened.host.now();
    opened.host.relax();
    assert!(opened.host.now() >= earlier);
    assert_eq!(Desc::default(), Desc(0));
}
