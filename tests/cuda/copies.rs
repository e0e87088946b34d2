//! Copies that go well: every byte, in order, across allocations, from any thread.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::thread;

use cuda::{
    Completed, CopyEngine, Direction, Kind, PinnedPool, StartError, Ticket, Transfer, Word, Words,
};
use engine::atomic::Width;

use crate::bed::case::Case;
use test_support::random::pattern;

use crate::bed::{
    Bed, GRANULARITY, ON_NUMA_NODE, allocations, call, fill, peek, status, to_device, wait,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::any("copies_of_all_sizes_and_alignments_arrive", sizes),
        Case::any("copies_cross_the_borders_of_allocations", borders),
        Case::fake("the_fake_driver_refuses_to_cross_a_border", strict),
        Case::any("other_memory_that_the_driver_reaches_is_copied", kinds),
        Case::any("as_many_are_under_way_as_asked_for_and_end_in_order", many),
        Case::any("words_are_stored_and_loaded_in_order_with_copies", ordered_words),
        Case::any("starting_and_polling_allocate_nothing", no_allocation),
        Case::fake("a_slow_copy_is_polled_without_waiting", slow)
            .with(&[("FAKE_CUDA_COPY_NS", "400000000")]),
        Case::fake("a_copy_takes_longer_the_more_it_has", slow_bytes),
        Case::any("an_engine_works_on_threads_that_have_bound_nothing", threads),
        Case::fake("a_dropped_engine_waits_for_its_copies", dropped)
            .with(&[("FAKE_CUDA_COPY_NS", "200000000")]),
        Case::any("what_does_not_fit_is_refused", misfits),
    ]
}

fn one(engine: &mut CopyEngine, transfer: &Transfer<'_>) -> Completed {
    let ticket = engine.start(transfer).expect("it is started");
    let completed = wait(engine);
    assert_eq!(completed.ticket, ticket);
    assert_eq!(completed.result, Ok(0));
    completed
}

fn sizes() {
    const MARGIN: usize = 64;
    let bed = Bed::new();
    let lengths = [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097, 65_537, (1 << 20) + 13];
    let room = (1 << 20) + 4096;
    let device = bed.alloc(room);
    let range = bed.range(device, room);
    let mut pool = bed.pool(room, 2);
    let (up, down) = (pool.take().expect("one"), pool.take().expect("two"));
    let mut engine = bed.engine(4);
    for (round, len) in lengths.into_iter().enumerate() {
        for (at, offset) in [(0, 0), (1, 0), (0, 3), (7, 5), (8, 64)] {
            let bytes = pattern(len, round * 8 + at);
            let addr = device + MARGIN + at;
            bed.write(device, &vec![0xee; len + 3 * MARGIN]);
            fill(up.addr() + offset, &bytes);
            let direction = Direction::ToDevice;
            let there = Transfer { direction, range: &range, addr, bounce: &up, offset, len };
            one(&mut engine, &there);
            let seen = bed.read(device, len + 3 * MARGIN);
            let (before, behind) = (&seen[..MARGIN + at], &seen[MARGIN + at + len..]);
            assert!(seen[MARGIN + at..][..len] == bytes, "{len} bytes at {at} from {offset}");
            assert!(before.iter().chain(behind).all(|byte| *byte == 0xee), "more was written");

            fill(down.addr(), &vec![0x11; len + 3 * MARGIN]);
            let back = Transfer {
                direction: Direction::FromDevice,
                bounce: &down,
                offset: MARGIN + offset,
                ..there
            };
            one(&mut engine, &back);
            let seen = peek(down.addr(), len + 3 * MARGIN);
            let (before, rest) = seen.split_at(MARGIN + offset);
            assert!(rest[..len] == bytes, "{len} bytes from {at} to {offset}");
            let mut around = before.iter().chain(&rest[len..]);
            assert!(around.all(|byte| *byte == 0x11), "more was written");
        }
    }
    drop((engine, up, down, pool));
    bed.free(device);
}

fn borders() {
    let bed = Bed::new();
    let heap = bed.heap(4);
    let range = bed.range(heap, 4 * GRANULARITY);
    let mut pool = bed.pool(3 * GRANULARITY, 2);
    let (up, down) = (pool.take().expect("one"), pool.take().expect("two"));
    let mut engine = bed.engine(2);
    let border = heap + GRANULARITY;
    let parts = [
        (border - 1, 2),
        (border - 8, 16),
        (border, 4096),
        (border - 4096, 4096),
        (border - 5, 2 * GRANULARITY + 9),
        (heap + 3, 3 * GRANULARITY - 1),
    ];
    for (round, (addr, len)) in parts.into_iter().enumerate() {
        let bytes = pattern(len, round);
        fill(up.addr(), &bytes);
        let there = to_device(&range, addr, &up, len);
        one(&mut engine, &there);
        assert!(bed.read(addr, len) == bytes, "{len} bytes to {}", addr - heap);
        let back = Transfer { direction: Direction::FromDevice, bounce: &down, ..there };
        one(&mut engine, &back);
        assert!(peek(down.addr(), len) == bytes, "{len} bytes from {}", addr - heap);
    }
}

fn strict() {
    // Else the case above would prove nothing.
    let bed = Bed::new();
    let heap = bed.heap(2);
    let host = bed.host(4096);
    let border = heap + GRANULARITY;
    let across = status!(bed.raw, cuMemcpyHtoD_v2(
        border - 1 => usize, host as *const u8 => *const u8, 2 => usize
    ));
    assert_eq!(across, 1);
}

fn kinds() {
    let bed = Bed::new();
    let managed = bed.managed(1 << 16);
    let mut memory = vec![(managed, 1 << 16, Kind::Managed)];
    if bed.is_fake() {
        let heap = bed.vmm(&[(ON_NUMA_NODE, 0); 2], false);
        memory.push((heap, 2 * GRANULARITY, Kind::HostNumaDeviceOnly));
    }
    let mut pool = bed.pool(2 * GRANULARITY, 1);
    let bounce = pool.take().expect("one");
    let mut engine = bed.engine(1);
    for (addr, len, kind) in memory {
        let range = bed.range(addr, len);
        assert_eq!(range.kind(), kind);
        let bytes = pattern(len, len);
        fill(bounce.addr(), &bytes);
        let direction = Direction::ToDevice;
        let there = Transfer { direction, range: &range, addr, bounce: &bounce, offset: 0, len };
        one(&mut engine, &there);
        fill(bounce.addr(), &vec![0; len]);
        one(&mut engine, &Transfer { direction: Direction::FromDevice, ..there });
        assert!(peek(bounce.addr(), len) == bytes, "{kind}");
    }
}

fn many() {
    const DEPTH: usize = 64;
    const LEN: usize = 1024;
    let bed = Bed::new();
    if bed.is_fake() {
        call!(bed.raw, fake_cuda_latency(0 => c_int, 200_000 => u64, 0 => u64));
    }
    let room = 4 * DEPTH * LEN;
    let device = bed.alloc(room);
    let range = bed.range(device, room);
    let mut pool = bed.pool(LEN, DEPTH);
    let bounces: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    let mut engine = bed.engine(DEPTH);
    assert_eq!(engine.depth(), DEPTH);
    let mut bytes = Vec::new();
    let (mut next, mut polled) = (0_u64, 0_u64);
    let mut refused = 0;
    while polled < 4 * DEPTH as u64 {
        if next < 4 * DEPTH as u64 {
            let index = next as usize;
            let bounce = &bounces[index % DEPTH];
            let ours = pattern(LEN, index);
            let transfer = to_device(&range, device + index * LEN, bounce, LEN);
            if engine.in_flight() < DEPTH {
                fill(bounce.addr(), &ours);
            }
            match engine.start(&transfer) {
                Ok(ticket) => {
                    assert_eq!(ticket, Ticket(next));
                    bytes.extend(ours);
                    next += 1;
                    continue;
                }
                Err(StartError::Full) => {
                    assert_eq!(engine.in_flight(), DEPTH);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let completed = wait(&mut engine);
        assert_eq!(completed, Completed { ticket: Ticket(polled), result: Ok(0) });
        polled += 1;
    }
    assert!(refused > 0, "the bound was met");
    assert!(engine.poll().is_none(), "nothing is left");
    assert!(bed.read(device, room) == bytes);
    drop(engine);
    bed.free(device);
}

fn ordered_words() {
    let bed = Bed::new();
    let heap = bed.heap(2);
    let range = bed.range(heap, 2 * GRANULARITY);
    let mut pool = bed.pool(1 << 20, 1);
    let bounce = pool.take().expect("one");
    let mut engine = bed.engine(8);
    let signal = heap + GRANULARITY + 64;
    for round in 1..50_u64 {
        let bytes = pattern(1 << 20, round as usize);
        fill(bounce.addr(), &bytes);
        let copy = to_device(&range, heap + GRANULARITY - (1 << 19), &bounce, 1 << 20);
        // The last bytes of the data reach over the signal: the signal comes after.
        let word = Word { range: &range, addr: signal, width: Width::Eight };
        let data = engine.start(&copy).expect("room for it");
        let stored = engine.start_store(&word, round).expect("room for it");
        let loaded = engine.start_load(&word).expect("room for it");
        assert_eq!(wait(&mut engine), Completed { ticket: data, result: Ok(0) });
        assert_eq!(wait(&mut engine), Completed { ticket: stored, result: Ok(0) });
        assert_eq!(wait(&mut engine), Completed { ticket: loaded, result: Ok(round) });
    }
}

fn no_allocation() {
    let bed = Bed::new();
    let heap = bed.heap(2);
    let range = bed.range(heap, 2 * GRANULARITY);
    let mut pool = bed.pool(8192, 1);
    let bounce = pool.take().expect("one");
    let mut engine = bed.engine(4);
    let word = Word { range: &range, addr: heap + 8, width: Width::Four };
    let before = allocations();
    for direction in [Direction::ToDevice, Direction::FromDevice] {
        let addr = heap + GRANULARITY - 4096;
        let transfer =
            Transfer { direction, range: &range, addr, bounce: &bounce, offset: 0, len: 8192 };
        for _ in 0..10 {
            engine.start(&transfer).expect("room for it");
            engine.start_store(&word, 3).expect("room for it");
            engine.start_load(&word).expect("room for it");
            for _ in 0..3 {
                wait(&mut engine).result.expect("it goes well");
            }
        }
    }
    assert_eq!(allocations(), before);
}

fn slow() {
    let bed = Bed::new();
    let device = bed.alloc(4096);
    let range = bed.range(device, 4096);
    let mut pool = bed.pool(4096, 1);
    let bounce = pool.take().expect("one");
    let mut engine = bed.engine(2);
    let direction = Direction::ToDevice;
    let transfer =
        Transfer { direction, range: &range, addr: device, bounce: &bounce, offset: 0, len: 4096 };
    let mut polled_early = 0;
    for _ in 0..3 {
        engine.start(&transfer).expect("room for it");
        polled_early += usize::from(engine.poll().is_none());
        wait(&mut engine).result.expect("it goes well");
    }
    assert!(polled_early > 0, "starting and polling did not wait for the copy");
}

fn slow_bytes() {
    use std::time::{Duration, Instant};
    let bed = Bed::new();
    // 1 MiB at 100 ns per byte takes 105 ms, and no machine is faster than what is slept.
    call!(bed.raw, fake_cuda_latency(0 => c_int, 0 => u64, 100_000 => u64));
    let device = bed.alloc(1 << 20);
    let range = bed.range(device, 1 << 20);
    let mut pool = bed.pool(1 << 20, 1);
    let bounce = pool.take().expect("one");
    let mut engine = bed.engine(1);
    let direction = Direction::ToDevice;
    let (addr, len) = (device, 1 << 20);
    let start = Instant::now();
    one(&mut engine, &Transfer { direction, range: &range, addr, bounce: &bounce, offset: 0, len });
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
    call!(bed.raw, fake_cuda_reset(0 => c_int));
}

fn send<T: Send>(value: T) -> T {
    value
}

fn threads() {
    let bed = Bed::new();
    let device = bed.alloc(1 << 16);
    let mut pool: PinnedPool = bed.pool(1 << 16, 1);
    let context = bed.context();
    let driver = bed.driver;
    let bytes = pattern(1 << 16, 9);
    let ours = bytes.clone();
    // Everything is made here and used there, and the other way round.
    let mut engine = send(bed.engine(2));
    let work = thread::spawn(move || {
        let bounce = pool.take().expect("one");
        fill(bounce.addr(), &ours);
        let range = match cuda::Memory::examine(driver, device, 1 << 16) {
            Ok(cuda::Memory::Device(range)) => range,
            other => panic!("{other:?}"),
        };
        let direction = Direction::ToDevice;
        let len = 1 << 16;
        let transfer =
            Transfer { direction, range: &range, addr: device, bounce: &bounce, offset: 0, len };
        one(&mut engine, &transfer);
        let second = CopyEngine::new(&context, 2).expect("on this thread as well");
        let words = Words::new(&context, &crate::words::stream_only()).expect("and words");
        drop((engine, second, words, pool, bounce));
    });
    work.join().expect("no panic on the other thread");
    assert!(bed.read(device, 1 << 16) == bytes);
    let mut current = ptr::null_mut();
    call!(bed.raw, cuCtxGetCurrent(&raw mut current => *mut *mut c_void));
    assert_eq!(current, bed.handle, "this thread's context is as it was");
}

fn dropped() {
    let bed = Bed::new();
    let device = bed.alloc(4096);
    let range = bed.range(device, 4096);
    let mut pool = bed.pool(4096, 2);
    let mut engine = bed.engine(4);
    let bytes = pattern(4096, 4);
    for _ in 0..2 {
        let bounce = pool.take().expect("two");
        fill(bounce.addr(), &bytes);
        let transfer = to_device(&range, device, &bounce, 4096);
        engine.start(&transfer).expect("room for it");
    }
    drop(pool);
    assert!(bed.count(3) >= 8192, "the copies still need the bounce buffers");
    wait(&mut engine).result.expect("it goes well");
    assert!(bed.count(3) >= 8192, "the second one does");
    wait(&mut engine).result.expect("it goes well");
    assert!(bed.count(3) < 4096, "what has ended keeps nothing");
    // And now it is dropped while something is under way.
    let mut pool = bed.pool(4096, 1);
    let bounce = pool.take().expect("one");
    fill(bounce.addr(), &bytes);
    let direction = Direction::ToDevice;
    let transfer =
        Transfer { direction, range: &range, addr: device, bounce: &bounce, offset: 0, len: 4096 };
    engine.start(&transfer).expect("room for it");
    drop((bounce, pool));
    drop(engine);
    assert_eq!(bed.count(3), 0, "all is given back");
    assert!(bed.read(device, 4096) == bytes);
}

fn misfits() {
    let bed = Bed::new();
    let device = bed.alloc(4096);
    let range = bed.range(device + 64, 1024);
    let mut pool = bed.pool(512, 1);
    let bounce = pool.take().expect("one");
    let mut engine = bed.engine(1);
    let good = to_device(&range, device + 64, &bounce, 512);
    for bad in [
        Transfer { addr: device + 63, ..good },
        Transfer { addr: device + 64 + 513, ..good },
        Transfer { addr: usize::MAX, ..good },
        Transfer { offset: 1, ..good },
        Transfer { offset: usize::MAX, ..good },
        Transfer { len: 0, ..good },
        Transfer { len: usize::MAX, ..good },
    ] {
        let error = engine.start(&bad).expect_err("it does not fit");
        assert!(matches!(error, StartError::Bounds { .. }), "{bad:?}: {error:?}");
    }
    for (addr, width) in [
        (device + 65, Width::Two),
        (device + 66, Width::Four),
        (device + 68, Width::Eight),
        (device + 56, Width::Eight),
        (device + 64 + 1024, Width::Two),
    ] {
        let word = Word { range: &range, addr, width };
        let load = engine.start_load(&word).expect_err("no word there");
        let store = engine.start_store(&word, 1).expect_err("no word there");
        assert_eq!(load, store);
        assert!(matches!(load, StartError::Bounds { .. }), "{load:?}");
    }
    assert_eq!(engine.in_flight(), 0);
    one(&mut engine, &good);
    if bed.is_fake() {
        let mut other = ptr::null_mut::<c_void>();
        call!(bed.raw, cuCtxCreate_v2(&raw mut other => *mut *mut c_void, 0 => u32, 1 => c_int));
        let foreign = bed.alloc(4096);
        let foreign = bed.range(foreign, 4096);
        let transfer = Transfer { range: &foreign, addr: foreign.addr(), ..good };
        let error = engine.start(&transfer).expect_err("another context's");
        assert!(error.to_string().contains("device 1"), "{error}");
    }
}
