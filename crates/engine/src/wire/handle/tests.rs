use super::*;

fn sample() -> Handle {
    Handle {
        owner: Pe(3),
        base: 0x7f00_0000_1000,
        len: 0x2000,
        region: 7,
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
        for (rails, used) in [(0, 64), (1, 64), (2, 72), (MAX_RAILS, 312)] {
            let keys = (0..rails as u64).map(|rail| u64::MAX - rail).collect();
            let handle = Handle { addressing, keys, ..sample() };
            let bytes = handle.encode();
            assert_eq!(used_bytes(rails), used);
            assert!(bytes[used..].iter().all(|byte| *byte == 0), "unused bytes");
            assert_eq!(Handle::decode(&bytes), Ok(handle));
        }
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
fn handles_of_one_identity_are_alike() {
    let prefix = |handle: &Handle| HandleView::check(&handle.encode()).unwrap().prefix();
    let learned = prefix(&sample());
    let others = [
        Handle { owner: Pe(4), ..sample() },
        Handle { keys: vec![1], ..sample() },
        Handle { keys: vec![], staged: Some(4096), ..sample() },
        Handle { keys: vec![], ..sample() },
    ];
    let like = Handle { base: 8, len: 1, region: 3, stamp: 1, direct: false, ..sample() };
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

/// By whichever of the three ways an address is looked for, it lies inside with all its bytes.
#[test]
fn addresses_lie_inside() {
    let base = sample().base;
    for (keys, staged, takes) in
        [(sample().keys, None, true), (vec![], None, false), (vec![], Some(4096), true)]
    {
        for (addressing, first) in [(Addressing::Virtual, base), (Addressing::Offset, 0)] {
            let bytes = Handle { keys: keys.clone(), staged, addressing, ..sample() }.encode();
            let view = HandleView::check(&bytes).unwrap();
            assert_eq!(view.takes_messages(), takes);
            for (offset, len) in [(0, 0x2000), (0x1ff8, 8), (0x1fff, 1), (0x2000, 0)] {
                assert_eq!(view.locate(base + offset, len), Ok(offset));
                assert_eq!(
                    view.region_addr(base + offset, len),
                    Some(RegionAddr { region: 7, offset })
                );
                assert_eq!(view.target(base + offset, len), Some(first + offset));
            }
            for (addr, len) in [
                (base - 1, 1),
                (base + 0x2000, 1),
                (base + 0x1fff, 2),
                (base, 0x2001),
                (base + 8, u64::MAX),
                (0, 1),
                (u64::MAX, 1),
            ] {
                let outside = view.locate(addr, len);
                assert!(matches!(outside, Err(HandleError::Outside { .. })), "{addr:#x} {len:#x}");
                let others = (view.region_addr(addr, len), view.target(addr, len));
                assert_eq!(others, (None, None), "{addr:#x} {len:#x}");
            }
        }
    }
}
