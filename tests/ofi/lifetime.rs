//! Rails that are opened and closed, also with operations in flight.

use engine::ids::{RailId, WrId};
use engine::port::{Access, DataPath, Operation, Posted};
use ofi::{Discovery, MemoryKinds, OfiError, Opened, Provider};

use super::process::*;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

#[test]
fn addresses_from_elsewhere_are_checked() {
    let mut opened = open(&options(Provider::TcpRxm));
    let own = opened.proxy.address(RailId(0)).to_vec();
    let error = opened.proxy.insert(RailId(0), &[&own[..], &own[..7]]).expect_err("cut short");
    assert!(error.text.contains("that of peer 1 cannot be read"), "{error}");
    let other = [&[1, 7][..], &own[2..9]].concat();
    let error = opened.proxy.insert(RailId(0), &[&own[..], &other]).expect_err("another's");
    assert!(error.text.contains("address 1 has 7 bytes"), "{error}");
    let error = opened.proxy.insert(RailId(7), &[&own]).expect_err("no such rail");
    assert!(error.text.contains("rail 7"), "{error}");
    let none: [&[u8]; 0] = [];
    assert_eq!(opened.proxy.insert(RailId(0), &none).expect("nothing to do"), []);
    let many = vec![own; 1000];
    let peers = opened.proxy.insert(RailId(0), &many).expect("more than announced");
    assert_eq!(peers.len(), 1000);
}

/// A table of paths takes no memory by PE where they are: see `rails::paths`.
#[test]
fn addresses_are_numbered_evenly() {
    for provider in PROVIDERS {
        let mut opened = open(&options(provider));
        for rail in rails(&opened.proxy).collect::<Vec<_>>() {
            let many = vec![opened.proxy.address(rail).to_vec(); 64];
            let peers = opened.proxy.insert(rail, &many).expect("insert the own address");
            let steps: Vec<u64> =
                peers.windows(2).map(|two| two[1].0.wrapping_sub(two[0].0)).collect();
            assert!(steps.iter().all(|step| *step == steps[0]), "{provider}, {rail}: {peers:?}");
        }
    }
}

#[test]
fn it_closes_with_operations_in_flight() {
    const LEN: usize = 256 << 10;
    for provider in PROVIDERS {
        for order in 0..3 {
            let mut process = Process::start(&options(provider));
            let source = Memory::new(&process.opened, vec![1; LEN], Access::Local);
            let target = Memory::new(&process.opened, vec![0; LEN], Access::LocalAndRemote);
            let transfer = target.write(RailId(0), 0, source.local(0, Lane::Host, RailId(0)), LEN);
            // The first one connects; nobody waits for the others.
            process.run(Lane::Host, RailId(0), WrId(0), &transfer);
            let (rail, peer) = process.path(Lane::Host, RailId(0));
            let mut posted = 0;
            for wr_id in 1..TOKENS {
                let port = &mut process.opened.host;
                if port.post(rail, peer, WrId(wr_id), Operation::Transfer(&transfer)).expect("post")
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

#[test]
fn opening_without_rails_fails() {
    let discovery = Discovery::run(&options(Provider::Shm), true, MemoryKinds::Host).expect("shm");
    // SAFETY: nothing is opened.
    let open = |rails: &[usize]| unsafe { discovery.open(rails, PEERS, PEERS) };
    let error = open(&[]).expect_err("no device");
    assert!(matches!(error, OfiError::NoRail { .. }), "{error}");
    let error = open(&[17]).expect_err("no such device");
    assert!(error.to_string().contains("device 17 of 2 does not exist"), "{error}");
}

#[test]
fn rails_without_descriptors_are_refused() {
    let test = "lifetime::rails_without_descriptors_are_refused";
    if !in_a_process_with("OFI_TEST_DESCRIPTORS", "few", test) {
        return;
    }
    // The limit below which so many numbers of descriptors are free.
    let limit_of = |left: usize| {
        let open = std::fs::read_dir("/proc/self/fd").expect("the descriptors").flatten();
        let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        let taken: BTreeSet<u64> = numbers.collect();
        (0..).filter(|number| !taken.contains(number)).nth(left).unwrap_or(0)
    };
    let limit = |most: u64| {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a place for the limits, of this process alone.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits), 0);
            let before = limits.rlim_cur;
            limits.rlim_cur = most;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits), 0);
            before
        }
    };
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let discovery = Discovery::run(&options(provider), true, MemoryKinds::Host);
        let discovery = discovery.unwrap_or_else(|error| panic!("{error}"));
        let rails = discovery.default_rails();
        let mut refused = 0;
        for left in 0..20 {
            let before = limit(limit_of(left));
            // SAFETY: nothing is posted.
            let opened = unsafe { discovery.open(&rails, PEERS, PEERS) };
            limit(before);
            refused += u32::from(opened.is_err());
        }
        assert!(refused > 0, "{provider}");
    }
}

#[test]
fn shm_endpoints_name_their_pid_namespace() {
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
    // What an ended process has left is removed.
    let mut ended = std::process::Command::new("true").spawn().expect("it starts");
    ended.wait().expect("it ends");
    let left = format!("/dev/shm/{}-{namespace}:0:0", ended.id());
    std::fs::write(&left, "").expect("a file");
    let opened = open(&options(Provider::Shm));
    assert!(!std::path::Path::new(&left).exists(), "{left}");
    let name = format!("{}-{namespace}", std::process::id());
    for rail in rails(&opened.proxy) {
        let address = String::from_utf8_lossy(opened.proxy.address(rail)).into_owned();
        assert!(address.contains(&name), "{address}");
    }
}
