//! Places of a call's arguments, as the caller leaves them: general registers and the words above
//! the stack pointer at entry. The expected places are copied from `calls_sysv_x86_64`
//! in layouts.json.
//!
//! The callee is assembly that copies registers and stack, so the test does not depend on how a
//! compiler reads its own arguments back.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use nvshmem_abi::c::*;

/// rdi, rsi, rdx, rcx, r8, r9, then the words at entry+0, entry+8, ...
const REGISTERS: usize = 6;
const WORDS: usize = REGISTERS + 10;

#[repr(C)]
struct Recording(UnsafeCell<[u64; WORDS]>);

// SAFETY: written by the recorder and read by `record` only, which holds RECORDER for both.
unsafe impl Sync for Recording {}

#[unsafe(no_mangle)]
static NVT_RECORDING: Recording = Recording(UnsafeCell::new([0; WORDS]));

static RECORDER: Mutex<()> = Mutex::new(());

global_asm!(
    ".globl nvt_record_call",
    ".hidden nvt_record_call",
    "nvt_record_call:",
    "lea rax, [rip + NVT_RECORDING]",
    "mov [rax + 0], rdi",
    "mov [rax + 8], rsi",
    "mov [rax + 16], rdx",
    "mov [rax + 24], rcx",
    "mov [rax + 32], r8",
    "mov [rax + 40], r9",
    // rsi, rdi and rcx are the caller's to lose.
    "lea rdi, [rax + 48]",
    "mov rsi, rsp",
    "mov ecx, 10",
    "cld",
    "rep movsq",
    "xor eax, eax",
    "ret",
);

unsafe extern "C" {
    fn nvt_record_call();
}

struct Call([u64; WORDS]);

impl Call {
    fn reg(&self, name: &str) -> u64 {
        let index = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"].iter().position(|r| *r == name);
        self.0[index.expect("a register name")]
    }

    fn reg32(&self, name: &str) -> i32 {
        self.reg(name) as u32 as i32
    }

    /// The `int` at entry + `at`.
    fn stack32(&self, at: usize) -> i32 {
        let word = self.0[REGISTERS + at / 8];
        if at % 8 == 4 { (word >> 32) as i32 } else { word as u32 as i32 }
    }

    fn stack(&self, at: usize) -> u64 {
        self.0[REGISTERS + at / 8]
    }
}

/// Calls the recorder as if it were a function of type `F`.
fn record<F: Copy>(call: impl FnOnce(F) -> i32) -> Call {
    let _one_at_a_time = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    let recorder: unsafe extern "C" fn() = nvt_record_call;
    assert_eq!(size_of::<F>(), size_of_val(&recorder));
    // SAFETY: F is the `Option` of a function pointer type of the same size, and the recorder
    // takes whatever arguments come: it reads registers and ten words of its caller's stack,
    // which exist below the frame of `record`.
    let f = unsafe { std::mem::transmute_copy::<unsafe extern "C" fn(), F>(&recorder) };
    assert_eq!(call(f), 0);
    // SAFETY: the recorder has returned and RECORDER is held.
    Call(unsafe { *NVT_RECORDING.0.get() })
}

macro_rules! call {
    ($type:ty: $($argument:expr),*) => {
        // SAFETY: the recorder follows none of the pointers.
        record(|f: $type| unsafe { f.unwrap()($($argument),*) })
    };
}

fn at<T>(value: u64) -> *mut T {
    std::ptr::without_provenance_mut(value as usize)
}

const VERB: nvt_rma_verb =
    nvt_rma_verb { desc: 21, is_nbi: 22, is_stream: 23, _pad: 0, cstrm: std::ptr::null_mut() };
const BYTES: nvt_rma_bytesdesc =
    nvt_rma_bytesdesc { nelems: 31, elembytes: 32, _pad: 0, srcstride: 33, deststride: 34 };
const VERB_3: nvt_amo_verb_3 = nvt_amo_verb_3 { desc: 41, is_fetch: 42, is_val: 43, is_cmp: 44 };
const VERB_6: nvt_amo_verb_6 =
    nvt_amo_verb_6 { desc: 41, is_fetch: 42, is_val: 43, is_cmp: 44, is_float: 45 };
const AMO_BYTES: nvt_amo_bytesdesc = nvt_amo_bytesdesc { name_type: 51, elembytes: 52 };

fn assert_rma(call: &Call) {
    assert_eq!((call.reg("rdi"), call.reg32("rsi")), (1, 2));
    assert_eq!((call.reg("rdx"), call.reg("rcx"), call.reg32("r8")), (3, 4, 5));
    assert_eq!((call.stack32(8), call.stack32(12), call.stack32(16)), (21, 22, 23));
    assert_eq!((call.stack(32), call.stack32(40)), (31, 32));
    assert_eq!((call.stack(48), call.stack(56)), (33, 34));
}

#[test]
fn rma() {
    assert_rma(&call!(nvt_rma_fn: at(1), 2, VERB, at(3), at(4), BYTES, 5));
    for call in [
        call!(nvt_rma_with_hints_fn_6: at(1), 2, VERB, at(3), at(4), BYTES, 5, at(6)),
        call!(nvt_rma_with_hints_fn_7: at(1), 2, VERB, at(3), at(4), BYTES, 5, at(6)),
    ] {
        assert_rma(&call);
        assert_eq!(call.reg("r9"), 6);
    }
}

#[test]
fn amo() {
    let short = call!(nvt_amo_fn_3: at(1), 2, at::<c_void>(0), VERB_3, at(4), AMO_BYTES, 5);
    assert_eq!((short.reg("rcx"), short.reg("r8")), (42 << 32 | 41, 44 << 32 | 43));
    assert_eq!(short.reg("r9"), 4);
    assert_eq!((short.stack32(8), short.stack32(12), short.stack32(16)), (51, 52, 5));
    let long = call!(nvt_amo_fn_6: at(1), 2, at::<c_void>(0), VERB_6, at(4), AMO_BYTES, 5);
    assert_eq!((long.reg("rcx"), long.reg("r8"), long.reg32("r9")), (4, 52 << 32 | 51, 5));
    assert_eq!((long.stack32(8), long.stack32(20), long.stack32(24)), (41, 44, 45));
    for call in [short, long] {
        assert_eq!((call.reg("rdi"), call.reg32("rsi"), call.reg("rdx")), (1, 2, 0));
    }
}

#[test]
fn put_signal() {
    let short = call!(nvt_put_signal_fn_4: at(1), 2, VERB, at(3), at(4), at(5), VERB_3, at(6), AMO_BYTES, 7);
    assert_eq!((short.stack32(48), short.stack32(52), short.stack32(56)), (51, 52, 7));
    let long = call!(nvt_put_signal_fn_6: at(1), 2, VERB, at(3), at(4), at(5), VERB_6, at(6), AMO_BYTES, 7);
    assert_eq!(long.stack32(48), 45);
    assert_eq!((long.stack32(56), long.stack32(60), long.stack32(64)), (51, 52, 7));
    for call in [short, long] {
        let registers = ["rdi", "rdx", "rcx", "r8", "r9"].map(|name| call.reg(name));
        assert_eq!((registers, call.reg32("rsi")), ([1, 3, 4, 5, 6], 2));
        assert_eq!((call.stack32(8), call.stack32(12)), (21, 22));
        assert_eq!((call.stack32(32), call.stack32(44)), (41, 44));
    }
}

#[test]
fn get_mem_handle() {
    let call = call!(nvt_get_mem_handle_fn_3a: at(1), at(2), at(3), 4, at(5), true);
    assert_eq!((call.reg("rdi"), call.reg("rsi"), call.reg("rdx")), (1, 2, 3));
    assert_eq!((call.reg("rcx"), call.reg("r8"), call.reg("r9") & 0xff), (4, 5, 1));
    let call = call!(nvt_get_mem_handle_fn_3b: at(1), at(3), 4, at(5), true);
    assert_eq!((call.reg("rdi"), call.reg("rsi"), call.reg("rdx")), (1, 3, 4));
    assert_eq!((call.reg("rcx"), call.reg("r8") & 0xff), (5, 1));
}
