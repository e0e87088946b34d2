//! Fake device memory faults under the CPU, and system calls cannot touch it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::prelude::*;

cases! {
    Faults: reading_device_memory_faults, freed_memory_faults;
    Fake: system_calls_reach_no_device_memory, copy_over_a_border_is_refused;
}

fn load(addr: usize) {
    // SAFETY: it is not: that is what is shown.
    let byte = unsafe { (addr as *const u8).read_volatile() };
    println!("read {byte}");
}

fn reading_device_memory_faults(bed: &Bed) {
    load(bed.alloc(4096) + 100);
}

fn freed_memory_faults(bed: &Bed) {
    let addr = bed.host(4096);
    bed.free_host(addr);
    load(addr);
}

fn system_calls_reach_no_device_memory(bed: &Bed) {
    let device = bed.alloc(4096);
    let bytes = pattern(4096, 2);
    bed.write(device, &bytes);
    // Pages of the kernel's own would take the bytes; those of the device it cannot read.
    let (mut here, mut there) = UnixStream::pair().expect("a pair of sockets");
    // SAFETY: only the address is passed on; the kernel checks it.
    let memory = unsafe { std::slice::from_raw_parts_mut(device as *mut u8, 4096) };
    let sent = here.write(memory).expect_err("the kernel cannot read it");
    assert_eq!(sent.raw_os_error(), Some(libc::EFAULT), "{sent}");
    there.write_all(&[1; 16]).expect("sockets take that");
    let received = here.read(&mut memory[..16]).expect_err("nor write it");
    assert_eq!(received.raw_os_error(), Some(libc::EFAULT), "{received}");
    assert_eq!(bed.read(device, 4096), bytes, "nothing has changed");
}

fn copy_over_a_border_is_refused(bed: &Bed) {
    let border = bed.heap(2) + GRANULARITY;
    let host = bed.host(4096);
    let across = status!(bed.raw, cuMemcpyHtoD_v2(
        border - 1 => usize, host as *const u8 => *const u8, 2 => usize
    ));
    assert_eq!(across, 1);
}
