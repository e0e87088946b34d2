//! Rails that are opened and closed, also with operations in flight.

use engine::ids::RailId;
use ofi::{Discovery, MemoryKinds, OfiError, Provider};

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
