//! Descriptors in the rings of the device channel: the words of one slot or of two.

use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;
use nvshmem_transport_libfabric::channel::ring::descriptor::{
    Descriptor, Put, RegionAddr, RegionIndex,
};
use nvshmem_transport_libfabric::channel::ring::slot::{LAP_WORDS, Words};
use nvshmem_transport_libfabric::channel::sys;

use crate::{Target, part};

const SLOT: usize = 32;

pub(crate) const TARGET: Target = Target { name: "ring-descriptor", short: 400, run, seeds };

fn run(input: &[u8]) {
    let words = |at| std::array::from_fn(|word| u64::from_le_bytes(part(input, at + 8 * word)));
    let first: Words = words(0);
    let second: Option<Words> = (input.len() > SLOT).then(|| words(SLOT));
    let decoded = Descriptor::decode(first, second);
    let put = Put::decode(&first);
    let Ok(descriptor) = decoded else { return assert_eq!(put, None) };
    let is_put = matches!(descriptor, Descriptor::Put { .. });
    assert_eq!(put.is_some(), is_put, "the short way finds the same");
    let encoded = descriptor.encode();
    assert_eq!(encoded.first, without_laps(first), "{descriptor:?}");
    // A second slot of what has one only is not looked at.
    if let Some(extended) = encoded.second {
        assert_eq!(Some(extended), second.map(without_laps), "{descriptor:?}");
    }
}

fn without_laps(mut words: Words) -> Words {
    LAP_WORDS.into_iter().for_each(|at| words[at] &= !sys::NLF_LAP);
    words
}

fn seeds() -> Vec<Vec<u8>> {
    let addr = |region, offset| RegionAddr::new(RegionIndex::new(region).unwrap(), offset).unwrap();
    let (pe, dst, src, signal, bytes) = (Pe(3), addr(1, 64), addr(0, 8), addr(2, 16), 100);
    let atomic = |op, value, fetch| Descriptor::Atomic {
        pe,
        dst,
        width: Width::Eight,
        op,
        value,
        compare: 0,
        fetch,
    };
    let all = [
        Descriptor::Put { pe, dst, src, bytes },
        Descriptor::Get { pe, dst, src, bytes },
        Descriptor::PutValue { pe, dst, bytes: 4, value: 7 },
        Descriptor::PutValue { pe, dst, bytes: 8, value: u64::MAX },
        Descriptor::PutSignal { pe, dst, src, bytes, signal, op: AtomicOp::SignalSet, value: 1 },
        atomic(AtomicOp::Add, 5, None),
        atomic(AtomicOp::Set, u64::MAX, None),
        atomic(AtomicOp::FetchAdd, 5, Some(src)),
        Descriptor::Fence { pe: Some(pe) },
        Descriptor::Fence { pe: None },
    ];
    let words = |descriptor: &Descriptor| {
        let encoded = descriptor.encode();
        let second = encoded.second.into_iter().flatten();
        encoded.first.into_iter().chain(second).flat_map(u64::to_le_bytes).collect()
    };
    all.iter().map(words).collect()
}
