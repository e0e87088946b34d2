//! Page-locked bounce buffers.

use std::collections::BTreeSet;
use std::ffi::c_int;

use cuda::{Kind, PinnedPool, Pointer};

use crate::bed::case::Case;
use crate::bed::{Bed, allocations, call};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::any("a_pool_gives_each_chunk_to_one", bounces),
        Case::fake("a_pool_takes_what_it_says_and_gives_it_back", peak),
        Case::fake("a_pool_that_cannot_be_locked_says_how_much_was_asked", out_of_memory),
    ]
}

fn bounces() {
    let bed = Bed::new();
    let mut pool = bed.pool(4096, 5);
    assert_eq!((pool.available(), pool.bounce_len(), pool.memory().len()), (5, 4096, 5 * 4096));
    let start = pool.memory().addr();
    let kind = Pointer::of(bed.driver, start).expect("it answers").kind;
    assert_eq!(kind, Kind::RegisteredHost);
    let mut taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    let addresses: BTreeSet<_> = taken.iter().map(|bounce| bounce.addr()).collect();
    let expected: BTreeSet<_> = (0..5).map(|index| start + index * 4096).collect();
    assert_eq!(addresses, expected);
    assert!(pool.take().is_none(), "all are in use");
    let before = allocations();
    let last = taken.pop().expect("five");
    let addr = last.addr();
    pool.give(last);
    let again = pool.take().expect("one is back");
    assert_eq!((again.addr(), again.len(), again.is_empty()), (addr, 4096, false));
    pool.give(again);
    assert_eq!(allocations(), before, "taking and giving back allocates nothing");
    // A bounce buffer of another pool does not come into this one.
    let mut other = bed.pool(4096, 1);
    pool.give(other.take().expect("one"));
    assert_eq!(pool.available(), 1);
}

fn peak() {
    let bed = Bed::new();
    let mut pool = bed.pool(1 << 20, 4);
    assert_eq!(bed.count(3), 4 << 20);
    let bounce = pool.take().expect("four");
    drop(pool);
    assert_eq!(bed.count(3), 4 << 20, "a bounce buffer is in use");
    drop(bounce);
    assert_eq!(bed.count(3), 0);
}

fn out_of_memory() {
    let bed = Bed::new();
    let limits = (1 << 20, u64::MAX);
    call!(bed.raw, fake_cuda_limits(0 => c_int, limits.0 => u64, limits.1 => u64));
    let context = bed.context();
    let error = PinnedPool::new(&context, 1 << 18, 5).expect_err("too much");
    let said = error.to_string();
    assert!(said.contains("1310720 bytes of page-locked memory"), "{said}");
    assert!(said.contains("CUDA_ERROR_OUT_OF_MEMORY (2)"), "{said}");
    assert_eq!(bed.count(3), 0);
    PinnedPool::new(&context, 1 << 18, 4).expect("that fits");
    PinnedPool::new(&context, usize::MAX, 2).expect_err("more than there are addresses");
}
