//! Two stagers, as of two processes, that copy from each other's bounce buffers.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use cuda::{PeerShare, SECRET_BYTES, SharedLayout, SharedMemory, Shares};
use engine::ids::Pe;

use crate::prelude::*;

cases! {
    Any: peers_copy_from_each_other, lists_span_several_bounce_memories, peer_memory_is_read_only,
        peer_memory_stays_until_released;
    Fake: ended_peer_is_seen;
    Fake ("FAKE_CUDA_REGISTERS" = "0"): unlocked_memory_is_not_shared;
}

const CHUNKS: u16 = 4;

struct Side {
    stage: Stage,
    heap: usize,
    _region: StagedRegion,
}

fn make() -> (Arc<SharedMemory>, OwnedFd, SharedLayout) {
    let layout = SharedLayout::new(2 * usize::from(CHUNKS) * CHUNK, 2);
    let (memory, fd) = SharedMemory::create(layout.bytes()).expect("the system has such");
    layout.write_secret(&memory, &[7; SECRET_BYTES]);
    (Arc::new(memory), fd, layout)
}

fn shares(me: u32, own: &Arc<SharedMemory>, other: &OwnedFd, layout: SharedLayout) -> Shares {
    let opened = SharedMemory::of(other.try_clone().expect("a copy"), layout.bytes());
    let memory = Arc::new(opened.expect("it is of this user"));
    assert!(layout.has_secret(&memory, &[7; SECRET_BYTES]));
    assert!(!layout.has_secret(&memory, &[8; SECRET_BYTES]));
    let peer = PeerShare { pe: Pe(1 - me), memory, layout, process: None };
    Shares { me: Pe(me), own: Arc::clone(own), layout, peers: vec![peer] }
}

fn side(bed: &Bed, shares: Shares) -> Side {
    let heap = bed.heap(1);
    let staging = Staging::new(options(CHUNKS, stream_only()));
    staging.share(shares);
    let region = register(&staging, bed, heap, GRANULARITY);
    let region = region.expect("it can be staged");
    Side { stage: Stage::take(staging), heap, _region: region }
}

fn both(bed: &Bed) -> [Side; 2] {
    let (first, first_fd, layout) = make();
    let (second, second_fd, _) = make();
    let sides = [
        side(bed, shares(0, &first, &second_fd, layout)),
        side(bed, shares(1, &second, &first_fd, layout)),
    ];
    drop((first_fd, second_fd));
    sides
}

fn pass(bed: &Bed, from: &mut Side, (to, from_pe): (&mut Side, Pe), len: usize, seed: usize) {
    let bytes = pattern(len, seed);
    bed.write(from.heap, &bytes);
    bed.write(to.heap, &pattern(len, seed + 1));
    from.stage.start(OUT, from.heap, 1, len, 5);
    from.stage.ends(5);
    let shared = to.stage.port.peer_bounce(from_pe).expect("they share");
    assert_eq!(shared.len, from.stage.bounce.bytes());
    let offset = from.stage.bounce(OUT, 1) - from.stage.bounce.addr;
    let bounce = shared.at(offset as u64, len).expect("it is inside");
    let copy = Copy { direction: IN, memory: to.heap, bounce, len };
    to.stage.run(copy);
    assert!(bed.read(to.heap, len) == bytes, "{len} bytes");
}

fn peers_copy_from_each_other(bed: &Bed) {
    let [mut one, mut other] = both(bed);
    assert!(bed.has_logged("bounce memory is shared with PE 1 of this host"));
    assert!(!one.stage.port.is_mapped_by(Pe(1)) && !other.stage.port.is_mapped_by(Pe(0)));
    one.stage.port.announce();
    assert!(!one.stage.port.is_mapped_by(Pe(1)) && other.stage.port.is_mapped_by(Pe(0)));
    other.stage.port.announce();
    assert!(one.stage.port.is_mapped_by(Pe(1)));
    assert!(!one.stage.port.is_mapped_by(Pe(0)) && !one.stage.port.is_mapped_by(Pe(2)));
    assert!([0, 7].iter().all(|pe| one.stage.port.peer_bounce(Pe(*pe)).is_none()));
    assert!(!one.stage.port.has_ended(Pe(1)));
    for (seed, len) in [1, 100, 4096, 16 << 10, CHUNK].into_iter().enumerate() {
        pass(bed, &mut one, (&mut other, Pe(0)), len, 2 * seed);
        pass(bed, &mut other, (&mut one, Pe(1)), len, 2 * seed + 50);
    }
    assert_eq!(one.stage.port.bytes_by_cpu() + other.stage.port.bytes_by_cpu(), 0);
    drop(other);
    assert!(!one.stage.port.is_mapped_by(Pe(1)), "it copies no more");
}

fn ended_peer_is_seen(bed: &Bed) {
    let ((own, _own, layout), (_other, fd, _)) = (make(), make());
    let mut shares = shares(0, &own, &fd, layout);
    // Like a process's descriptor, the socket can be read once the other end is closed.
    let (process, end) = UnixStream::pair().expect("sockets");
    shares.peers[0].process = Some(process.into());
    let side = side(bed, shares);
    let has_ended = || [1, 2].map(|pe| side.stage.port.has_ended(Pe(pe)));
    assert_eq!(has_ended(), [false, false]);
    drop(end);
    assert_eq!(has_ended(), [true, false]);
}

fn lists_span_several_bounce_memories(bed: &Bed) {
    let [mut one, mut other] = both(bed);
    let (len, count) = (1000, 8);
    let bytes = pattern(count * len, 3);
    bed.write(other.heap, &bytes);
    other.stage.start(OUT, other.heap, 0, count * len, 5);
    other.stage.ends(5);
    fill(one.stage.bounce(IN, 0), &bytes);
    let shared = one.stage.port.peer_bounce(Pe(1)).expect("they share");
    let copies: Vec<TaggedCopy> = (0..count)
        .map(|at| {
            let from = if at % 2 == 0 { shared.addr } else { one.stage.bounce(IN, 0) };
            let (memory, bounce) = (one.heap + 3 * at * len, from + at * len);
            TaggedCopy { copy: Copy { direction: IN, memory, bounce, len }, tag: 7 }
        })
        .collect();
    assert_eq!(one.stage.port.start_all(&copies), Ok(Posted::Yes));
    one.stage.ends(7);
    for at in 0..count {
        assert!(bed.read(one.heap + 3 * at * len, len) == bytes[at * len..][..len], "{at}");
    }
}

fn peer_memory_is_read_only(bed: &Bed) {
    let [mut one, _other] = both(bed);
    let shared = one.stage.port.peer_bounce(Pe(1)).expect("they share");
    let end = shared.addr + shared.len;
    for (direction, bounce, len) in
        [(OUT, shared.addr, 64), (IN, shared.addr - 1, 64), (IN, end - 63, 64), (IN, end, 1)]
    {
        let copy = Copy { direction, memory: one.heap, bounce, len };
        refused(one.stage.give(copy, 0), &["in no bounce buffer"]);
    }
    let copy = Copy { direction: IN, memory: one.heap, bounce: end - 64, len: 64 };
    one.stage.run(copy);
    assert_eq!(shared.at(shared.len as u64, 1), None);
    assert_eq!(shared.at(u64::MAX, 64), None);
    assert_eq!(shared.at(1, shared.len), None);
    assert_eq!(shared.at(0, shared.len), Some(shared.addr));
}

/// Copies that are under way end when the peer that the bytes are of has ended.
fn peer_memory_stays_until_released(bed: &Bed) {
    let [mut one, mut other] = both(bed);
    let bytes = pattern(CHUNK, 9);
    bed.write(other.heap, &bytes);
    other.stage.start(OUT, other.heap, 0, CHUNK, 5);
    other.stage.ends(5);
    let shared = one.stage.port.peer_bounce(Pe(1)).expect("they share");
    drop(other);
    let copy = Copy { direction: IN, memory: one.heap, bounce: shared.addr, len: CHUNK };
    one.stage.run(copy);
    assert!(bed.read(one.heap, CHUNK) == bytes);
}

fn unlocked_memory_is_not_shared(bed: &Bed) {
    let [mut one, other] = both(bed);
    assert!(
        one.stage.port.peer_bounce(Pe(1)).is_none()
            && other.stage.port.peer_bounce(Pe(0)).is_none()
    );
    one.stage.port.announce();
    assert!(!other.stage.port.is_mapped_by(Pe(0)));
    let bytes = pattern(CHUNK, 3);
    one.stage.copy_in(one.heap, &bytes);
    assert!(one.stage.copy_out(one.heap, CHUNK) == bytes);
}
