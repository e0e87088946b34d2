//! Transfers of the port over real providers: bytes, completions, refusals.

use engine::ids::{RailId, WrId};
use engine::port::{
    Access, DataPath, Direction, Failure, Local, MemoryPort, Operation, Polled, Transfer,
};
use ofi::Provider;
use std::time::Instant;

use super::process::*;

/// `fi_write` must take `FI_DELIVERY_COMPLETE` from the endpoint: a completion that comes while
/// the target has not been polled must find the data there already.
#[test]
fn completed_data_is_visible() {
    for provider in PROVIDERS {
        let mut process = Process::start(&options(provider));
        let (rail, wr_id) = (RailId(0), WrId(1));
        for len in [8_usize, 4096, 65_536] {
            let target = Memory::new(&process.opened, vec![0; len], Access::LocalAndRemote);
            let mut early = 0;
            for round in 0..300_usize {
                let source = vec![(round % 255) as u8 + 1; len];
                let source = Memory::new(&process.opened, source, Access::Local);
                let transfer = target.write(rail, 0, source.local(0, Lane::Host, rail), len);
                process.post(Lane::Host, rail, wr_id, &transfer);
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
fn invalid_posts_are_refused() {
    let mut process = Process::start(&options(Provider::Shm));
    let target = Memory::new(&process.opened, vec![0; 64], Access::LocalAndRemote);
    let peer = process.from_proxy[0];
    let port = &mut process.opened.proxy;
    let beyond = u32::MAX;
    let good = target.write(RailId(0), 0, Local::Value(7), 8);
    let mut refused = |rail: u8, wr_id: u32, transfer: Transfer, why: &str| {
        let error = port
            .post(RailId(rail), peer, WrId(wr_id), Operation::Transfer(&transfer))
            .expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(0, 0, Transfer { len: 9, ..good }, "9 bytes");
    refused(0, 0, Transfer { direction: Direction::Read, ..good }, "inline");
    refused(0, beyond, good, &format!("work-request id {beyond}"));
    refused(9, 0, good, "rail 9");
    assert!(matches!(
        poll(&mut process.opened.proxy, RailId(9)).1,
        Polled::Failed(failure) if failure.wr_id.is_none()
    ));
    assert_eq!(target.now_all(), [0; 64]);
}

fn failure_of(process: &mut Process, remote: u64, key: u64) -> Failure {
    let (direction, local) = (Direction::Write, Local::Value(7));
    let write = Transfer { direction, local, len: 8, remote, key };
    process.post(Lane::Host, RailId(0), WrId(42), &write);
    let start = Instant::now();
    loop {
        match poll(&mut process.opened.host, RailId(0)) {
            (_, Polled::Failed(failure)) => return *failure,
            (done, Polled::Completed(_)) => panic!("completed: {done:?}"),
            (_, Polled::Empty) => process.progress(Lane::Proxy, None),
        }
        assert!(start.elapsed() < HANG, "no failure was reported");
    }
}

#[test]
fn write_outside_region_fails() {
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let mut process = Process::start(&options(provider));
        let target = Memory::new(&process.opened, vec![0; 64], Access::LocalAndRemote);
        let failure = failure_of(&mut process, target.remote(64), target.key(RailId(0)));
        assert_eq!(failure.wr_id, Some(WrId(42)), "{failure:?}");
        // Libfabric's own text, and the provider's.
        assert!(failure.error.code > 0, "{failure:?}");
        let (general, own) = failure.error.text.split_once("; the provider: ").expect("both");
        assert!(!general.is_empty() && !own.is_empty() && general != own, "{failure:?}");
        assert_eq!(target.now_all(), [0; 64]);
    }
}

/// Whoever reaches a port and knows where memory begins does not know its key: those that come to
/// mind reach nothing, nor do those beside the key of another region.
#[test]
fn a_guessed_key_reaches_nothing() {
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        for guess in 0..4 {
            let mut process = Process::start(&options(provider));
            let new = || Memory::new(&process.opened, vec![0; 64], Access::LocalAndRemote);
            let (known, target) = (new(), new());
            let key = if guess == 3 { known.key(RailId(0)) + 1 } else { guess };
            assert_ne!(key, target.key(RailId(0)));
            failure_of(&mut process, target.remote(0), key);
            assert_eq!((target.now_all(), known.now_all()), (vec![0; 64], vec![0; 64]));
        }
    }
}

#[test]
fn invalid_memory_is_not_registered() {
    for provider in PROVIDERS {
        let opened = open(&options(provider));
        let byte = 0_u8;
        let addr = &raw const byte as usize;
        for (addr, len) in [(addr, 0), (0, 8), (addr, usize::MAX)] {
            let error = opened.memory.register(addr, len, Access::Local).expect_err("no memory");
            assert!(error.text.contains("are no memory"), "{error}");
            assert!(error.text.contains(&opened.report.rails[0].name), "{error}");
        }
    }
}
