//! Tests of handles: what they say, what is refused, and what the fast paths take.

use super::*;

fn sample() -> Handle {
    Handle {
        owner: Pe(3),
        base: 0x7f00_0000_1000,
        len: 0x2000,
        slot: 7,
        stamp: 9,
        staged: None,
        direct: true,
        addressing: Addressing::Virtual,
        keys: vec![0x1111, u64::MAX, 0],
    }
}

#[test]
fn handles_are_read_as_written() {
    for addressing in [Addressing::Virtual, Addressing::Offset] {
        for rails in [0, 1, MAX_RAILS] {
            let handle = Handle {
                addressing,
                keys: (0..rails as u64).map(|rail| rail * 0x0101_0101).collect(),
                ..sample()
            };
            assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
        }
    }
}

#[test]
fn unused_bytes_are_zero() {
    for (rails, used) in [(0, 64), (1, 64), (2, 72), (MAX_RAILS, 312)] {
        assert_eq!(used_bytes(rails), used);
        let bytes = Handle { keys: vec![u64::MAX; rails], ..sample() }.encode();
        assert!(bytes[used..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn damaged_bytes_are_refused() {
    let good = sample().encode();
    let with = |at: usize, bytes: &[u8]| {
        let mut handle = good;
        handle[at..at + bytes.len()].copy_from_slice(bytes);
        Handle::decode(&handle)
    };
    assert!(matches!(Handle::decode(&[0; HANDLE_BYTES]), Err(HandleError::Magic { found: 0 })));
    assert!(matches!(with(0, b"x"), Err(HandleError::Magic { .. })));
    assert!(matches!(with(12, b"x"), Err(HandleError::Magic { .. })));
    assert_eq!(with(3, &[1]), Err(HandleError::Version { found: 1 }));
    assert_eq!(with(6, &[33]), Err(HandleError::Rails { found: 33 }));
    assert!(matches!(with(24, &0u64.to_le_bytes()), Err(HandleError::Region { len: 0, .. })));
    assert!(matches!(with(24, &u64::MAX.to_le_bytes()), Err(HandleError::Region { .. })));
    assert!(matches!(with(48, &1_u64.to_le_bytes()), Err(HandleError::Region { .. })));
    let most = Handle { keys: vec![0; MAX_RAILS], len: 0, ..sample() };
    assert!(matches!(Handle::decode(&most.encode()), Err(HandleError::Region { .. })));
}

#[test]
fn handles_of_other_pes_are_refused() {
    let bytes = sample().encode();
    let (owner, pe) = (sample().owner, Pe(4));
    assert!(HandleView::check_of(owner, &bytes).is_ok());
    let refused = HandleView::check_of(pe, &bytes).map(|_| ()).unwrap_err();
    assert_eq!(refused, HandleError::Owner { owner, pe });
}

#[test]
fn handles_of_one_identity_are_alike() {
    let prefix = |handle: &Handle| HandleView::check(&handle.encode()).unwrap().prefix();
    let learned = prefix(&sample());
    let others = [
        Handle { owner: Pe(4), ..sample() },
        Handle { keys: vec![1], ..sample() },
        Handle { keys: vec![], staged: Some(4096), ..sample() },
        Handle { keys: vec![], ..sample() },
    ];
    let like = Handle { base: 8, len: 1, slot: 3, stamp: 1, direct: false, ..sample() };
    assert!(HandleView::keyed(&like.encode(), learned).is_some());
    let none = HandlePrefix::unseen(sample().owner);
    for (at, other) in others.iter().enumerate() {
        let bytes = other.encode();
        assert!(HandleView::keyed(&bytes, learned).is_none(), "{other:?}");
        assert!(HandleView::keyed(&bytes, none).is_none(), "none was seen: {other:?}");
        let asks = (1..=2).contains(&at);
        assert_eq!(HandleView::for_messages(&bytes, learned).is_some(), asks, "{other:?}");
        assert_eq!(HandleView::for_messages(&bytes, none).is_some(), asks, "{other:?}");
    }
    assert!(HandleView::keyed(&[0; HANDLE_BYTES], learned).is_none());
    assert!(HandleView::for_messages(&[0; HANDLE_BYTES], learned).is_none());
}

#[test]
fn bounds_hold_at_both_ends() {
    let bytes = sample().encode();
    let view = HandleView::check(&bytes).unwrap();
    let base = sample().base;
    assert_eq!(view.locate(base, 0x2000), Ok(0));
    assert_eq!(view.locate(base + 0x1fff, 1), Ok(0x1fff));
    assert_eq!(view.locate(base + 0x2000, 0), Ok(0x2000));
    for (addr, len) in [
        (base - 1, 1),
        (base + 0x2000, 1),
        (base + 0x1fff, 2),
        (base, 0x2001),
        (base + 8, u64::MAX),
        (0, 1),
        (u64::MAX, 1),
    ] {
        assert!(
            matches!(view.locate(addr, len), Err(HandleError::Outside { .. })),
            "{addr:#x} {len:#x}"
        );
    }
}

#[test]
fn missing_key_is_named() {
    let bytes = sample().encode();
    let view = HandleView::check(&bytes).unwrap();
    assert_eq!(view.key(RailId(1)), Ok(u64::MAX));
    assert_eq!(view.key(RailId(3)), Err(HandleError::NoKey { rail: RailId(3), rails: 3 }));
    assert_eq!(view.remote_address(16), sample().base + 16);
}

#[test]
fn spots_lie_inside() {
    let base = sample().base;
    for (keys, staged, takes) in
        [(vec![1], None, true), (vec![], None, false), (vec![], Some(4096), true)]
    {
        for addressing in [Addressing::Virtual, Addressing::Offset] {
            let keys = keys.clone();
            let bytes = Handle { keys, staged, addressing, ..sample() }.encode();
            let view = HandleView::check(&bytes).unwrap();
            assert_eq!(view.takes_messages(), takes);
            let spot = |offset| Some(RegionAddr { slot: 7, offset });
            assert_eq!(view.region_addr(base, 0x2000), spot(0));
            assert_eq!(view.region_addr(base + 0x1ff8, 8), spot(0x1ff8));
            for (addr, len) in [(base, 0x2001), (base + 0x1ff9, 8), (base - 1, 1), (0, 1)] {
                assert_eq!(view.region_addr(addr, len), None, "{addr:#x} {len}");
            }
        }
    }
}

#[test]
fn targets_lie_inside() {
    let base = sample().base;
    for (addressing, first) in [(Addressing::Virtual, base), (Addressing::Offset, 0)] {
        let bytes = Handle { addressing, ..sample() }.encode();
        let view = HandleView::check(&bytes).unwrap();
        let target = |addr, len, rail| {
            let rail = RailKey::of(RailId(rail));
            view.target(addr, len).map(|at| (at, view.key_at(rail)))
        };
        assert_eq!(target(base, 0x2000, 0), Some((first, 0x1111)));
        assert_eq!(target(base + 0x1ff8, 8, 1), Some((first + 0x1ff8, u64::MAX)));
        for (addr, len) in [(base, 0x2001), (base + 0x1ff9, 8), (base - 1, 1), (0, 1)] {
            assert_eq!(target(addr, len, 0), None, "{addr:#x} {len}");
        }
    }
}

#[test]
fn keys_lie_in_the_handle() {
    for rail in 0..=u8::MAX {
        let key = RailKey::of(RailId(rail));
        assert_eq!(usize::from(key.place), 8 * (usize::from(rail) % MAX_RAILS));
    }
}
