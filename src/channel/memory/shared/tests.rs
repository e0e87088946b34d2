use super::*;

fn new(rings: u32, slots: u64) -> Shared {
    let sizes = Sizes::new(rings, slots).unwrap();
    Shared::new(sizes, 1, 4, 0, &WordsOptions::default()).unwrap()
}

#[test]
fn ring_count_is_power_of_two() {
    for (rings, is_one) in [(1, true), (16, true), (32, true), (0, false), (3, false)] {
        assert_eq!(Sizes::new(rings, 64).is_ok(), is_one, "{rings}");
    }
    assert!(Sizes::new(2 * c::NLF_MAX_RINGS, 64).is_err());
    assert!(Sizes::new(4 * c::NLF_MAX_RINGS, 64).is_err());
}

#[test]
fn failure_is_published_to_every_ring() {
    let shared = new(2, 64);
    // SAFETY: once, and the memory stays longer.
    let mut rings = unsafe { shared.rings() }.unwrap();
    // SAFETY: the context lives.
    let ring = |at: usize| unsafe { &*(*shared.context()).rings.add(at) };
    for (at, consumer) in rings.iter_mut().enumerate() {
        let put = |number: usize| {
            // SAFETY: a slot of the ring, of which this is the one producer.
            let slot = unsafe { &mut *ring(at).slots.add(number) };
            slot.q = [1, 1 << c::NLF_OP_SHIFT | c::NLF_LAP | 8, 0, c::NLF_LAP];
        };
        (0..=at).for_each(put);
        while consumer.take().is_some() {}
        assert_eq!(consumer.taken(), at as u64 + 1);
        consumer.publish_done(at as u64 + 1);
    }
    assert_eq!([shared.done(0), shared.done(1)], [1, 2]);
    rings[1].publish_done(1);
    assert_eq!(shared.done(1), 2, "it does not go back");
    // SAFETY: the context lives.
    let states = || [0, 1].map(|at| unsafe { (*ring(at).published).state });
    assert_eq!(states(), [c::NLF_STATE_RUNNING; 2]);
    shared.publish_failed();
    assert_eq!(states(), [c::NLF_STATE_FAILED; 2]);
}

#[test]
fn first_proxy_fault_comes_first() {
    let shared = new(1, 64);
    assert!(shared.fault().is_none() && !shared.is_abandoned());
    let record = |code| c::nlf_error {
        code,
        op: 1,
        pe: 2,
        ring: 3,
        addr: 4,
        bytes: 5,
        ..Default::default()
    };
    let has = |code| {
        shared.fault().is_some_and(|Fault(found)| {
            (found.code, found.op, found.pe, found.ring, found.addr, found.bytes)
                == (code, 1, 2, 3, 4, 5)
        })
    };
    // SAFETY: the context lives, and this test is its one producer.
    let error = unsafe { &mut *(*shared.context()).error };
    *error = c::nlf_error { abandoned: 1, ..record(c::NLF_ERROR_LENGTH) };
    assert!(has(c::NLF_ERROR_LENGTH) && shared.is_abandoned());
    shared.report(&Fault(record(c::NLF_ERROR_PE)));
    shared.report(&Fault(record(c::NLF_ERROR_KIND)));
    assert!(has(c::NLF_ERROR_PE));
}
