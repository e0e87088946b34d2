//! Registration of memory on all rails.

use engine::port::{Access, DataPath, MemoryPort};

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
