//! Device memory where libfabric knows no CUDA, which is so for every build these tests run on:
//! each way is refused with its reason, and host memory goes on as before.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::port::Access;
use ofi::{
    DeviceMemory, DirectRefusal, Discovery, DmaBufPart, GpuDirect, MemoryKinds, Opened, Options,
    Provider,
};

use crate::process::{open, with_devices};

struct Area {
    addr: usize,
    len: usize,
}

impl Area {
    fn new(len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, of which nothing is used but its addresses.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(addr, libc::MAP_FAILED);
        Self { addr: addr as usize, len }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not used by anybody.
        unsafe { libc::munmap(self.addr as *mut _, self.len) };
    }
}

/// Registers an area as memory of device 0, and counts how often its context was bound.
fn register(opened: &Opened, dma_buf: Result<DmaBufPart<'_>, &str>) -> (DirectRefusal, usize) {
    let area = Area::new(1 << 20);
    let bound = AtomicUsize::new(0);
    let memory = DeviceMemory {
        addr: area.addr,
        len: area.len,
        ordinal: 0,
        pci: None,
        keeps_order: true,
        is_whole: true,
        dma_buf,
        with_context: &|run| {
            bound.fetch_add(1, Ordering::Relaxed);
            run();
        },
    };
    let refusal = opened
        .memory
        .register_device(&memory, Access::LocalAndRemote)
        .expect_err("no libfabric here knows CUDA");
    (refusal, bound.into_inner())
}

#[test]
fn attempts_are_listed_per_rail() {
    let opened = open(&with_devices(Provider::Shm));
    let (refusal, bound) = register(&opened, Err("the driver exports none"));
    assert_eq!(bound, 3, "two rails of the proxy and one of the host lane");
    let said = refusal.to_string();
    println!("{said}");
    for rail in &opened.report.rails {
        let expected = format!("rail {}: FI_HMEM_CUDA: fi_mr_regattr failed: ", rail.name);
        assert!(said.contains(&expected), "{said}");
    }
    assert!(said.contains("dma-buf: the driver exports none"), "{said}");

    // shm registers no dma-bufs, so it is not given one: an older one would read it as vectors.
    let file = std::fs::File::open("/proc/self/exe").expect("some descriptor");
    let (refusal, _) = register(&opened, Ok(DmaBufPart { fd: file.as_fd(), offset: 0 }));
    let said = refusal.to_string();
    assert!(said.contains("dma-buf: not with this provider"), "{said}");
    assert!(said.contains("FI_HMEM_CUDA: "), "{said}");
}

#[test]
fn shm_reaches_devices_on_insistence_only() {
    for (gpu_direct, kinds, reaches) in [
        (GpuDirect::Never, MemoryKinds::HostAndDevices, false),
        (GpuDirect::Auto, MemoryKinds::HostAndDevices, false),
        (GpuDirect::Always, MemoryKinds::Host, false),
        (GpuDirect::Always, MemoryKinds::HostAndDevices, true),
    ] {
        let options = Options { gpu_direct, ..with_devices(Provider::Shm) };
        let found = Discovery::run(&options, true, kinds).expect("shm");
        assert_eq!(found.reaches_devices(), reaches, "{gpu_direct:?} {kinds:?}");
    }
}
