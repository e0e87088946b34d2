//! PTX of the resident kernel, and the page-locked memory that it shares with the processor.

use std::ffi::CStr;

/// The kernel's only argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments {
    pub(super) page: u64,
    /// Number of the launch.
    pub(super) number: u32,
    /// Number of the first order to execute.
    pub(super) next: u32,
    /// Nanoseconds without orders, and since its start, after which the kernel ends.
    pub(super) idle_ns: u32,
    pub(super) life_ns: u32,
}

const _: () = assert!(size_of::<Arguments>() == 24);

pub(super) const NAME: &CStr = c"nvshmem_libfabric_resident";

pub(super) const THREADS: u32 = 32;

// Offsets in the page. The kernel writes the first cache line, the processor all others.

/// 4 bytes: all orders before this number are executed and visible. At the page's start.
pub(super) const DONE: usize = 0;
/// 4 bytes: number of the last launch that has started.
pub(super) const STARTED: usize = 4;
/// 8 bytes: number of the last launch that has ended; above it, of the order where it stopped.
pub(super) const ENDED: usize = 8;
/// 4 bytes: number of a launch that must execute nothing.
pub(super) const REVOKED: usize = 64;
/// `RING` orders of four words of 8 bytes.
pub(super) const ORDERS: usize = 256;
pub(super) const RING: u32 = 64;
pub(super) const BYTES: usize = ORDERS + RING as usize * ORDER;
pub(super) const ORDER: usize = 32;

// An order: the destination; the source, or the low half of a stored word; flags and count; the
// high half of a stored word. The top byte of each is the number of the order by `RING`, so a word
// of an earlier order is told from the expected one, and the kernel needs no index of the last.

pub(super) const LAP_SHIFT: u32 = 56;
/// The count is below, the logarithm of the unit's bytes here. A lane copies one unit of less than
/// 16 bytes, and up to 8 of 16.
pub(super) const UNIT_SHIFT: u32 = 32;
pub(super) const STORE: u64 = 1 << 40;
/// All earlier orders are visible before this one.
pub(super) const AFTER: u64 = 1 << 41;
/// Sets `DONE` once it is visible, with all before it.
pub(super) const REPORT: u64 = 1 << 42;
/// For the processor: the copy is to the host.
pub(super) const TO_HOST: u64 = 1 << 43;

/// Loads eight orders at once, of which lane 4 k + i has word i of order k. It ends without a look
/// back: the processor launches it again when it has ended and orders are left. Lanes decide
/// together, by votes and by values of lane 0.
///
/// Loads of data are volatile: neither the host's nor the device's bytes may come from a cache of
/// the multiprocessor. A barrier orders the accesses of lanes, and the fence behind it makes them
/// visible to the system before lane 0 stores.
pub(super) const PTX: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry nvshmem_libfabric_resident(.param .align 8 .b8 arguments[24])
{
    .reg .pred %first, %yes, %one, %two, %four, %eight;
    .reg .pred %p0, %p1, %p2, %p3, %p4, %p5, %p6, %p7;
    .reg .b16 %byte, %half;
    .reg .b32 %number, %next, %lane, %slot, %x, %y, %valid, %base, %low, %high;
    .reg .b32 %count, %flags, %from_low, %from_high, %to_low, %to_high, %top, %word;
    .reg .b64 %page, %idle, %life, %born, %busy, %now, %at, %t, %to, %from;
    .reg .b64 %a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7;
    .reg .b64 %b0, %b1, %b2, %b3, %b4, %b5, %b6, %b7;
    ld.param.u64 %page, [arguments];
    ld.param.u32 %number, [arguments+8];
    ld.param.u32 %next, [arguments+12];
    ld.param.u32 %x, [arguments+16];
    cvt.u64.u32 %idle, %x;
    ld.param.u32 %x, [arguments+20];
    cvt.u64.u32 %life, %x;
    mov.u32 %lane, %tid.x;
    setp.eq.u32 %first, %lane, 0;
    mov.u64 %born, %globaltimer;
    mov.u64 %busy, %born;
    @%first st.volatile.u32 [%page+4], %number;
    fence.sc.sys;
    ld.volatile.u32 %x, [%page+64];
    setp.eq.u32 %yes, %x, %number;
    vote.sync.any.pred %yes, %yes, 0xffffffff;
    @%yes bra end;
poll:
    shr.u32 %slot, %lane, 2;
    add.u32 %slot, %slot, %next;
    and.b32 %x, %slot, 63;
    shl.b32 %x, %x, 5;
    and.b32 %y, %lane, 3;
    shl.b32 %y, %y, 3;
    add.u32 %x, %x, %y;
    cvt.u64.u32 %at, %x;
    add.u64 %at, %at, %page;
    ld.acquire.sys.u64 %t, [%at+256];
    mov.b64 {%low, %high}, %t;
    shr.u32 %x, %high, 24;
    shr.u32 %y, %slot, 6;
    and.b32 %y, %y, 255;
    setp.eq.u32 %yes, %x, %y;
    vote.sync.ballot.b32 %valid, %yes, 0xffffffff;
    and.b32 %high, %high, 0xffffff;
    mov.u32 %base, 0;
    and.b32 %x, %valid, 15;
    setp.eq.u32 %yes, %x, 15;
    @%yes bra execute;
rest:
    mov.u64 %now, %globaltimer;
    sub.u64 %t, %now, %busy;
    setp.gt.u64 %yes, %t, %idle;
    sub.u64 %t, %now, %born;
    setp.gt.or.u64 %yes, %t, %life, %yes;
    vote.sync.any.pred %yes, %yes, 0xffffffff;
    @!%yes bra poll;
end:
    fence.acq_rel.sys;
    mov.b64 %t, {%number, %next};
    @%first st.volatile.u64 [%page+8], %t;
    ret;
execute:
    bar.warp.sync 0xffffffff;
    shfl.sync.idx.b32 %to_low, %low, %base, 31, 0xffffffff;
    shfl.sync.idx.b32 %to_high, %high, %base, 31, 0xffffffff;
    add.u32 %x, %base, 1;
    shfl.sync.idx.b32 %from_low, %low, %x, 31, 0xffffffff;
    shfl.sync.idx.b32 %from_high, %high, %x, 31, 0xffffffff;
    add.u32 %x, %base, 2;
    shfl.sync.idx.b32 %count, %low, %x, 31, 0xffffffff;
    shfl.sync.idx.b32 %flags, %high, %x, 31, 0xffffffff;
    add.u32 %x, %base, 3;
    shfl.sync.idx.b32 %top, %low, %x, 31, 0xffffffff;
    mov.b64 %to, {%to_low, %to_high};
    and.b32 %x, %flags, 0x200;
    setp.eq.u32 %yes, %x, 0;
    @%yes bra ordered;
    fence.acq_rel.sys;
ordered:
    and.b32 %y, %flags, 7;
    and.b32 %x, %flags, 0x100;
    setp.ne.u32 %yes, %x, 0;
    @%yes bra store;
    mov.b64 %from, {%from_low, %from_high};
    shl.b32 %x, %lane, %y;
    cvt.u64.u32 %at, %x;
    add.u64 %from, %from, %at;
    add.u64 %to, %to, %at;
    setp.eq.u32 %yes, %y, 4;
    @%yes bra wide;
    setp.lt.u32 %yes, %lane, %count;
    setp.eq.and.u32 %one, %y, 0, %yes;
    setp.eq.and.u32 %two, %y, 1, %yes;
    setp.eq.and.u32 %four, %y, 2, %yes;
    setp.eq.and.u32 %eight, %y, 3, %yes;
    @%one ld.volatile.u8 %byte, [%from];
    @%two ld.volatile.u16 %half, [%from];
    @%four ld.volatile.u32 %word, [%from];
    @%eight ld.volatile.u64 %t, [%from];
    @%one st.volatile.u8 [%to], %byte;
    @%two st.volatile.u16 [%to], %half;
    @%four st.volatile.u32 [%to], %word;
    @%eight st.volatile.u64 [%to], %t;
    bra executed;
wide:
    sub.u32 %x, %count, %lane;
    setp.gt.s32 %p0, %x, 0;
    setp.gt.s32 %p1, %x, 32;
    setp.gt.s32 %p2, %x, 64;
    setp.gt.s32 %p3, %x, 96;
    setp.gt.s32 %p4, %x, 128;
    setp.gt.s32 %p5, %x, 160;
    setp.gt.s32 %p6, %x, 192;
    setp.gt.s32 %p7, %x, 224;
    @%p0 ld.volatile.v2.u64 {%a0, %b0}, [%from];
    @%p1 ld.volatile.v2.u64 {%a1, %b1}, [%from+512];
    @%p2 ld.volatile.v2.u64 {%a2, %b2}, [%from+1024];
    @%p3 ld.volatile.v2.u64 {%a3, %b3}, [%from+1536];
    @%p4 ld.volatile.v2.u64 {%a4, %b4}, [%from+2048];
    @%p5 ld.volatile.v2.u64 {%a5, %b5}, [%from+2560];
    @%p6 ld.volatile.v2.u64 {%a6, %b6}, [%from+3072];
    @%p7 ld.volatile.v2.u64 {%a7, %b7}, [%from+3584];
    @%p0 st.volatile.v2.u64 [%to], {%a0, %b0};
    @%p1 st.volatile.v2.u64 [%to+512], {%a1, %b1};
    @%p2 st.volatile.v2.u64 [%to+1024], {%a2, %b2};
    @%p3 st.volatile.v2.u64 [%to+1536], {%a3, %b3};
    @%p4 st.volatile.v2.u64 [%to+2048], {%a4, %b4};
    @%p5 st.volatile.v2.u64 [%to+2560], {%a5, %b5};
    @%p6 st.volatile.v2.u64 [%to+3072], {%a6, %b6};
    @%p7 st.volatile.v2.u64 [%to+3584], {%a7, %b7};
    bra executed;
store:
    mov.b64 %t, {%from_low, %top};
    setp.eq.and.u32 %four, %y, 2, %first;
    setp.eq.and.u32 %eight, %y, 3, %first;
    @%four st.volatile.u32 [%to], %from_low;
    @%eight st.volatile.u64 [%to], %t;
executed:
    bar.warp.sync 0xffffffff;
    add.u32 %next, %next, 1;
    and.b32 %x, %flags, 0x400;
    setp.eq.u32 %yes, %x, 0;
    @%yes bra unreported;
    fence.acq_rel.sys;
    @%first st.volatile.u32 [%page], %next;
unreported:
    mov.u64 %busy, %globaltimer;
    add.u32 %base, %base, 4;
    shr.u32 %valid, %valid, 4;
    and.b32 %x, %valid, 15;
    setp.eq.u32 %yes, %x, 15;
    @%yes bra execute;
    bra rest;
}
";
