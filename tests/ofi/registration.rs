//! Registration of memory on all rails.

use engine::ids::{RailId, WrId};
use engine::port::{Access, DataPath, Local, MemoryPort};
use ofi::{Options, Threading};

use super::process::*;

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

#[test]
fn region_keys_are_unique() {
    for provider in PROVIDERS {
        let opened = open(&options(provider));
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
            let mut process = Process::start(&Options { threading, ..options(provider) });
            let Process { opened, .. } = &mut process;
            let target = Memory::new(opened, vec![0; 8], Access::LocalAndRemote);
            let memory = std::mem::replace(&mut opened.memory, open(&options(provider)).memory);
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
                    let transfer = target.write(RailId(0), 0, Local::Value(value), 8);
                    process.run(Lane::Host, RailId(0), WrId(3), &transfer);
                }
            });
            assert_eq!(target.now_all(), 300_u64.to_le_bytes());
        }
    }
}
