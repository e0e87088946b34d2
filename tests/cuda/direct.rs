//! Device memory offered to the fabric. Where libfabric knows CUDA and there is a device, it is
//! taken. Some is offered to none.
//!
//! `NVSHMEM_TEST_LIBFABRIC_CUDA` names a libfabric that was built with CUDA, for the case on a GPU.

use std::time::Instant;

use engine::ids::{RailId, WrId};
use engine::port::{
    Addressing, DataPath, Direction, Local, MemoryPort, Operation, PeerAddr, Polled, Registered,
    Transfer,
};
use nvshmem_transport_libfabric::job::memory::direct::register_direct;
use ofi::{Discovery, GpuDirect, MemoryKinds, OfiRegion, Opened, Options, Provider};
use test_support::needs::named_by;

use crate::bed::case::skip;
use crate::prelude::*;

cases! {
    Gpu: direct_memory_is_written_and_read;
    Fake: moving_memory_is_never_direct, gone_context_refuses_its_memory;
}

struct Pair {
    opened: Opened,
    peer: PeerAddr,
}

impl Pair {
    fn new(mut opened: Opened) -> Self {
        let address = opened.proxy.address(RailId(0)).to_vec();
        let peers = opened.host.insert(RailId(0), &[address]).expect("insert");
        // The proxy's rail sends back to nobody, but knows whom it hears.
        let sender = opened.host.address(RailId(0)).to_vec();
        opened.proxy.insert(RailId(0), &[sender]).expect("insert");
        Self { opened, peer: peers[0] }
    }

    fn run(&mut self, transfer: &Transfer) {
        let Self { opened: Opened { host, proxy, .. }, peer } = self;
        let (rail, wr_id) = (RailId(0), WrId(0));
        let (start, mut posted) = (Instant::now(), false);
        loop {
            if !posted {
                posted =
                    host.post(rail, *peer, wr_id, Operation::Transfer(transfer)).expect("post")
                        == Posted::Yes;
            }
            match host.drain(rail, &mut |index: usize| index == 0) {
                Polled::Completed(_) => return,
                Polled::Empty => {}
                Polled::Failed(failure) => panic!("{}", failure.error),
            }
            if let Polled::Failed(failure) = proxy.drain(rail, &mut |_: usize| false) {
                panic!("{}", failure.error);
            }
            assert!(start.elapsed() < HANG, "it never ends");
        }
    }
}

fn direct_memory_is_written_and_read(bed: &Bed) {
    let library = named_by("NVSHMEM_TEST_LIBFABRIC_CUDA").unwrap_or_else(|reason| skip(reason));
    let opened = open(library.to_string_lossy().into_owned());
    println!("{}", opened.report);
    let mut pair = Pair::new(opened);
    for addr in [bed.alloc(GRANULARITY), bed.heap(1)] {
        let range = bed.range(addr, GRANULARITY);
        let memory = &pair.opened.memory;
        let target = register_direct(memory, addr, &range, Access::LocalAndRemote)
            .unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!((target.reach, target.keys.len()), (Reach::Direct, 1));
        assert!(memory.reaches_devices());
        for len in [8, 1000, 4096] {
            let at = 64 + len;
            let bytes = pattern(len, len);
            let source = bed.host(len);
            fill(source, &bytes);
            let local = memory_of(&pair.opened, source, len);
            let transfer = Transfer {
                direction: Direction::Write,
                local: Local::Memory { addr: source, desc: local.host_descs[0] },
                len,
                remote: match target.addressing {
                    Addressing::Virtual => (addr + at) as u64,
                    Addressing::Offset => at as u64,
                },
                key: target.keys[0],
            };
            pair.run(&transfer);
            assert_eq!(bed.read(addr + at, len), bytes, "{len} bytes are in device memory");
            fill(source, &vec![0; len]);
            pair.run(&Transfer { direction: Direction::Read, ..transfer });
            assert_eq!(peek(source, len), bytes, "and {len} come back");
            drop(local);
            bed.free_host(source);
        }
        println!("{}: direct", range.kind());
    }
}

fn memory_of(opened: &Opened, addr: usize, len: usize) -> Registered<OfiRegion> {
    opened.memory.register(addr, len, Access::Local).unwrap_or_else(|error| panic!("{error}"))
}

/// Of shm, the one provider here that takes memory of devices when asked with emphasis.
fn open(library: String) -> Opened {
    let (provider, gpu_direct) = (Provider::Shm, GpuDirect::Always);
    let options = Options { provider, gpu_direct, library, ..Options::default() };
    let kinds = MemoryKinds::HostAndDevices;
    let discovery = Discovery::run(&options, true, kinds).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: these tests keep what they register until it is over.
    let opened = unsafe { discovery.open(&discovery.default_rails(), 1, 1) };
    opened.unwrap_or_else(|error| panic!("{error}"))
}

fn moving_memory_is_never_direct(bed: &Bed) {
    let opened = open(Options::default().library);
    let (managed, plain) = (bed.managed(1 << 20), bed.alloc(1 << 20));
    let node = bed.vmm(&[(ON_NUMA_NODE, 0)], false);
    for (addr, range, why) in [
        (managed, bed.range(managed, 1 << 20), "managed"),
        (node, bed.range(node, GRANULARITY), "NUMA"),
        // Mapped twice: what the NIC would be told is not what peers name.
        (plain + 4096, bed.range(plain, 4096), &format!("at {plain:#x} only")),
    ] {
        refused(register_direct(&opened.memory, addr, &range, Access::Local), &[why]);
    }
}

fn gone_context_refuses_its_memory(bed: &Bed) {
    let opened = open(Options::default().library);
    let own = bed.make_context(2);
    let addr = bed.alloc(4096);
    let Ok(Memory::Device(range)) = Memory::examine(bed.driver, addr, 4096) else {
        panic!("memory of device 2");
    };
    assert_eq!(range.context().device(), Ordinal(2));
    call!(bed.raw, cuCtxDestroy_v2(own => *mut c_void));
    let registered = register_direct(&opened.memory, addr, &range, Access::LocalAndRemote);
    refused(registered, &["context cannot be bound"]);
}
