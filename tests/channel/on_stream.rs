//! Puts on streams: begun behind the stream's earlier work, over before its later one.

use std::ffi::c_void;
use std::ptr;

use nvshmem_transport_libfabric::channel::sys as c;
use nvshmem_transport_libfabric::channel::{Channel, StreamSignal};

use super::memory::{on_device, on_host};
use super::traffic::{AT_LEAST, bootstrap, options, producer};
use launcher::Place;
use test_jobs::memory::device;

type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> u32;
type Fill = unsafe extern "C" fn(*mut u8, u8, usize, *mut c_void) -> u32;
type Capture = unsafe extern "C" fn(*mut c_void, u32) -> u32;
type EndCapture = unsafe extern "C" fn(*mut c_void, *mut *mut u8) -> u32;
type Spin = unsafe extern "C" fn(*mut c_void) -> usize;
type Release = unsafe extern "C" fn(usize) -> u32;

/// See the module.
pub(crate) fn on_stream(place: &Place) {
    const LEN: usize = 3000;
    const ROUNDS: u64 = 30;
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    let (heap, words) = (on_device(&channel, 2 * LEN), on_host(&channel, 4096));
    let p = producer(&channel);
    let to = (place.me + 1) % place.n_pes;
    let _bound = device().bind();
    let mut stream: *mut c_void = ptr::null_mut();
    // SAFETY: their types in CUDA's header and in the stand-in's source.
    let (create, fill, capture, end_capture, spin, release) = unsafe {
        (
            device().call::<Create>(b"cuStreamCreate"),
            device().call::<Fill>(b"cuMemsetD8Async"),
            device().call::<Capture>(b"cuStreamBeginCapture_v2"),
            device().call::<EndCapture>(b"cuStreamEndCapture"),
            device().call::<Spin>(b"fake_cuda_spin"),
            device().call::<Release>(b"fake_cuda_release"),
        )
    };
    // SAFETY: a place for the handle.
    assert_eq!(unsafe { create(&raw mut stream, 1) }, 0);
    let set = |value: u64| {
        // SAFETY: memory of the device.
        assert_eq!(unsafe { fill(heap.at(0), value as u8, LEN, stream) }, 0);
    };
    let word = words.at(0).cast::<u64>();
    channel.barrier().unwrap();
    for round in 1..=ROUNDS {
        let len = [LEN, 1, 0, 200][round as usize % 4];
        // SAFETY: a stream of this test.
        let gate = unsafe { spin(stream) };
        set(round);
        let kind = if round % 2 == 0 { c::NLF_KIND_SET } else { c::NLF_KIND_ADD };
        let value = if round % 2 == 0 { round } else { 1 };
        let signal = Some(StreamSignal { word, value, kind });
        // SAFETY: a stream of the context that is bound; what is put changes behind a quiet.
        unsafe {
            if len > 1 {
                channel.put_on_stream(heap.at(LEN), heap.at(0), 1, None, to, stream).unwrap();
            }
            channel.put_on_stream(heap.at(LEN), heap.at(0), len, signal, to, stream).unwrap();
            channel.quiet_on_stream(stream).unwrap();
        }
        set(0xff);
        // SAFETY: as before.
        assert_eq!(unsafe { release(gate) }, 0);
        // SAFETY: a word of the heap.
        assert_eq!(unsafe { p.wait_until(words.here(0, 8).cast(), AT_LEAST, round) }, 0);
        let found = heap.bytes(LEN, len);
        assert!(found.iter().all(|byte| *byte == round as u8), "round {round}: {len} bytes");
        channel.barrier().unwrap();
    }
    // SAFETY: refused.
    let refused = |dst, bytes, word, pe| unsafe {
        let signal = Some(StreamSignal { word, value: 1, kind: c::NLF_KIND_ADD });
        channel.put_on_stream(dst, heap.at(0), bytes, signal, pe, stream).unwrap_err().to_string()
    };
    assert!(refused(heap.at(0), 8, word, place.n_pes).contains("there is no PE"));
    assert!(refused(heap.at(2 * LEN), 8, word, to).contains("are not all in registered memory"));
    assert!(refused(heap.at(0), 8, words.at(4).cast(), to).contains("is not aligned"));
    assert!(refused(heap.at(0), 1 << 32, word, to).contains("too many"));
    // A graph would run it again. SAFETY: a stream of this test, and a place for the graph.
    unsafe {
        assert_eq!(capture(stream, 0), 0);
        let why = channel.quiet_on_stream(stream).unwrap_err().to_string();
        assert!(why.contains("captured"), "{why}");
        let mut graph = ptr::null_mut();
        end_capture(stream, &raw mut graph);
        // The last one is drained at the end.
        channel.put_on_stream(heap.at(LEN), heap.at(0), LEN, None, to, stream).unwrap();
        channel.quiet_on_stream(stream).unwrap();
    }
    channel.barrier().unwrap();
    channel.stop().unwrap();
}
