//! Tests of what is read of the host's arguments, by structures made by hand.

use std::ptr;

use super::*;
use crate::job::guard::EntryError;

fn shape(nelems: usize, elembytes: c_int, srcstride: isize, deststride: isize) -> RmaBytes {
    RmaBytes {
        nelems: nelems as _,
        elembytes,
        _pad: 0,
        srcstride: srcstride as _,
        deststride: deststride as _,
    }
}

#[test]
fn odd_shapes_are_refused_or_counted() {
    type Expected = Result<usize, fn(&AbiError) -> bool>;
    let strides: Expected = Err(|error| matches!(error, AbiError::Strides { .. }));
    let no_size: Expected = Err(|error| matches!(error, AbiError::ElementSize { .. }));
    let too_large: Expected = Err(|error| matches!(error, AbiError::TooLarge { .. }));
    for (nelems, elembytes, src, dest, expected) in [
        (2, 4, 1, 1, Ok(8)),
        (0, 4, 2, 2, Ok(0)),
        // There is no next one.
        (1, 4, 2, 1, Ok(4)),
        (1, 4, -1, -1, Ok(4)),
        (2, 4, 2, 1, strides),
        (3, 4, 1, 2, strides),
        (100, 4, 0, 1, strides),
        (2, 4, -1, -1, strides),
        (2, 0, 1, 1, no_size),
        (2, -1, 1, 1, no_size),
        (2, c_int::MIN, 1, 1, no_size),
        (usize::MAX, 1, 1, 1, Ok(usize::MAX)),
        (usize::MAX, 2, 1, 1, too_large),
    ] {
        let shape = shape(nelems, elembytes, src, dest);
        match (length("PUT", &shape), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{shape:?}"),
            (Err(found), Err(expected)) => assert!(expected(&found), "{shape:?}: {found}"),
            (found, _) => panic!("{shape:?}: {found:?}"),
        }
    }
}

#[test]
fn refusals_have_their_status() {
    let no_such_pe = pe(-1).unwrap_err();
    assert_eq!(no_such_pe.to_string(), "PE -1 does not exist");
    let strides = length("PUT", &shape(2, 1, 1, 2)).unwrap_err();
    for (error, status) in [
        (no_such_pe, c::NVT_STATUS_INVALID_VALUE),
        (AbiError::BadOp { code: 3 }, c::NVT_STATUS_INVALID_VALUE),
        (AbiError::Null { argument: "remote" }, c::NVT_STATUS_INVALID_VALUE),
        (strides, c::NVT_STATUS_NOT_SUPPORTED),
    ] {
        assert_eq!(error.status(), status, "{error}");
    }
}

/// Bytes one behind the other, so many.
fn bytes(len: usize) -> RmaBytes {
    shape(len, 1, 1, 1)
}

fn verb(desc: c_int, is_nbi: c_int) -> RmaVerb {
    RmaVerb { desc, is_nbi, ..RmaVerb::default() }
}

fn place(addr: usize, handle: &mut c::nvt_mem_handle) -> RmaMem {
    RmaMem { ptr: ptr::without_provenance_mut(addr), offset: 0, handle }
}

#[test]
fn null_memory_needs_zero_length() {
    let mut handle = c::nvt_mem_handle::default();
    let remote = place(0x1000, &mut handle);
    let read = |local: usize, len: usize| {
        let local = RmaMem { ptr: ptr::without_provenance_mut(local), ..RmaMem::default() };
        // SAFETY: all are alive; the addresses are not read.
        let read =
            unsafe { read(3, &verb(PUT, 1), &raw const remote, &raw const local, &bytes(len)) };
        read.map(|(request, waits)| (request.len, waits))
    };
    assert_eq!(read(0x2000, 8).ok(), Some((8, false)));
    assert_eq!(read(0x2000, 0).ok(), Some((0, false)));
    assert_eq!(read(0, 0).ok(), Some((0, false)));
    assert!(matches!(read(0, 8), Err(AbiError::Null { argument: "local->ptr" })));
    let homeless = RmaMem { handle: ptr::null_mut(), ..remote };
    // SAFETY: both are alive.
    let refused =
        unsafe { super::read(3, &verb(PUT, 1), &raw const homeless, &raw const remote, &bytes(8)) };
    assert!(matches!(refused, Err(AbiError::Null { argument: "remote->handle" })));
}

#[test]
fn verb_tells_blocking_from_nonblocking() {
    let mut handle = c::nvt_mem_handle::default();
    let mut word = 7_u64;
    let remote = place(0x1000, &mut handle);
    let local = RmaMem { ptr: (&raw mut word).cast(), ..RmaMem::default() };
    let eight = shape(1, 8, 1, 1);
    for (desc, is_nbi, waits) in [
        (PUT, 0, true),
        (PUT, 1, false),
        (GET, 0, true),
        (G, 0, true),
        (P, 0, false),
        (P, 1, false),
    ] {
        // SAFETY: all are alive, and the value of a P has 8 bytes.
        let read =
            unsafe { read(3, &verb(desc, is_nbi), &raw const remote, &raw const local, &eight) };
        let (request, found) = read.unwrap();
        assert_eq!((request.len, found), (8, waits), "{desc} {is_nbi}");
        assert_eq!(request.local == LocalSide::Value(7), desc == P);
    }
}

#[test]
fn fast_path_takes_common_shapes_only() {
    let local = RmaMem { ptr: ptr::without_provenance_mut(0x2000), ..RmaMem::default() };
    // SAFETY: both are alive.
    let side = |shape: &RmaBytes| unsafe { contiguous(&raw const local, shape) };
    assert_eq!(side(&bytes(9)), Some((LocalSide::Memory(0x2000), 9)));
    for other in [shape(9, 2, 1, 1), shape(9, 1, 2, 1), shape(9, 1, 1, 2)] {
        assert_eq!(side(&other), None, "{other:?}");
    }
    assert!(is_put_nbi(&verb(PUT, 1)));
    assert!(!is_put_nbi(&verb(PUT, 0)) && !is_put_nbi(&verb(GET, 1)));
    let mut value = 5_u64;
    let at = RmaMem { ptr: (&raw mut value).cast(), ..RmaMem::default() };
    // SAFETY: 8 bytes can be read where there is anything.
    let word = |at: &RmaMem, elembytes| unsafe { word(at, &shape(1, elembytes, 1, 1)) };
    assert_eq!(word(&at, 8), Some((LocalSide::Value(5), 8)));
    assert_eq!(word(&at, 4), None);
    assert_eq!(word(&RmaMem::default(), 8), None);
}

/// A put with signal of so many parts, as the host lays it out.
struct ByHand {
    remote: Vec<RmaMem>,
    local: Vec<RmaMem>,
    bytes: Vec<RmaBytes>,
    signal: AmoMem,
    _handle: Box<c::nvt_mem_handle>,
}

impl ByHand {
    fn new(parts: usize) -> Self {
        let mut handle = Box::new(c::nvt_mem_handle::default());
        let mut places = |first: usize| -> Vec<RmaMem> {
            (0..parts).map(|at| place(first + at, &mut handle)).collect()
        };
        let (remote, local) = (places(0x1000), places(0x2000));
        let remote_memdesc = place(0x3000, &mut handle);
        let signal = AmoMem { remote_memdesc, val: 1, ..AmoMem::default() };
        Self { remote, local, bytes: vec![bytes(16); parts], signal, _handle: handle }
    }

    /// Has `see` look at it, with vectors of so many parts of what it has.
    fn seen<T>(
        &mut self,
        [remote, local, bytes]: [usize; 3],
        desc: c_int,
        see: impl FnOnce(&Put<'_>, *const AmoMem) -> T,
    ) -> T {
        let places = |all: &mut Vec<RmaMem>, len: usize| {
            let begin = all.as_mut_ptr();
            let end = begin.wrapping_add(len);
            RmaMemVector { begin, end, cap: end }
        };
        let remote = places(&mut self.remote, remote);
        let local = places(&mut self.local, local);
        let begin = self.bytes.as_mut_ptr();
        let end = begin.wrapping_add(bytes);
        let bytes = RmaBytesVector { begin, end, cap: end };
        let verb = verb(desc, 1);
        let put = Put { pe: 3, verb: &verb, remote: &remote, local: &local, bytes: &bytes };
        see(&put, &self.signal)
    }

    fn common(&mut self, lens: [usize; 3], desc: c_int, signal_bytes: c_int) -> Option<usize> {
        let signal_bytes = AmoBytes { elembytes: signal_bytes, ..AmoBytes::default() };
        let amo = Amo { code: c::NVT_AMO_SIGNAL_SET, float: false };
        self.seen(lens, desc, |put, signal| {
            // SAFETY: the vectors are alive, and no longer than what is there.
            let read = unsafe { common_signal(put, amo, signal, signal_bytes) };
            read.map(|(part, _)| part.len)
        })
    }
}

#[test]
fn common_put_signal_has_one_part() {
    assert_eq!(ByHand::new(1).common([1; 3], PUT, 8), Some(16));
    assert_eq!(ByHand::new(1).common([1; 3], GET, 8), None);
    assert_eq!(ByHand::new(1).common([1; 3], PUT, 4), None);
    for lens in [[2, 1, 1], [1, 2, 1], [1, 1, 2], [2; 3], [0; 3]] {
        assert_eq!(ByHand::new(2).common(lens, PUT, 8), None, "{lens:?}");
    }
    let mut apart = ByHand::new(1);
    apart.bytes[0].srcstride = 2;
    assert_eq!(apart.common([1; 3], PUT, 8), None);
}

#[test]
fn put_signal_vectors_have_equal_length() {
    let parts = |made: &mut ByHand, lens, desc| made.seen(lens, desc, |put, _| put.parts());
    assert_eq!(parts(&mut ByHand::new(2), [2; 3], PUT).ok(), Some(2));
    assert_eq!(parts(&mut ByHand::new(0), [0; 3], PUT).ok(), Some(0));
    for lens in [[1, 2, 2], [2, 1, 2], [2, 2, 1]] {
        let refused = parts(&mut ByHand::new(2), lens, PUT);
        assert!(matches!(refused, Err(AbiError::Vectors { .. })), "{lens:?}");
    }
    let refused = parts(&mut ByHand::new(2), [2; 3], GET);
    assert!(matches!(refused, Err(AbiError::BadOp { code: GET })));
}

#[test]
fn wrong_atomics_are_refused() {
    let mut handle = c::nvt_mem_handle::default();
    let mem = AmoMem { remote_memdesc: place(0x1000, &mut handle), ..AmoMem::default() };
    let read = |code, elembytes| {
        let bytes = AmoBytes { elembytes, ..AmoBytes::default() };
        // SAFETY: the descriptor and its handle are alive; neither address is followed.
        unsafe { atomic(3, Amo { code, float: false }, &raw const mem, &bytes) }.map(|read| read.pe)
    };
    assert_eq!(read(c::NVT_AMO_ADD, 8).ok(), Some(Pe(3)));
    for code in [-1, 0, c::NVT_AMO_ACK, c::NVT_AMO_END_OF_NONFETCH, 20] {
        assert!(matches!(read(code, 8), Err(AbiError::BadAtomic { .. })), "{code}");
    }
    for bytes in [-8, 0, 1, 3, 16] {
        assert!(matches!(read(c::NVT_AMO_ADD, bytes), Err(AbiError::ElementSize { .. })));
    }
    let fetch = read(c::NVT_AMO_FETCH, 8);
    assert!(matches!(fetch, Err(AbiError::Null { argument: "retptr" })));
}
