use engine::port::{Access, MemoryPort};

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
