//! Devices, their attributes, and memory exported as dma-bufs.

use std::os::fd::AsRawFd;
use std::ptr;

use cuda::{Device, DmaBuf, WritesOrdering};

use crate::bed::case::skip;
use crate::prelude::*;

cases! {
    Any: device_says_what_it_offers, writes_can_be_flushed, dma_buf_has_the_bytes;
    Fake: dma_buf_is_mapped_through_pcie;
    Fake ("FAKE_CUDA_DMA_BUF" = "1"): dma_buf_is_mapped_through_pcie;
    Fake ("FAKE_CUDA_DMA_BUF" = "0"): driver_without_dma_buf_says_so;
}

fn device_says_what_it_offers(bed: &Bed) {
    assert!(Device::count(bed.driver).expect("it answers") > 0);
    let device = Device::new(bed.driver, bed.device).expect("device 0");
    let attributes = device.attributes().expect("it answers");
    println!("{device}: {attributes:?}");
    assert!(attributes.compute.0 > 0);
    let pci = device.pci_address().expect("it has one");
    let parts: Vec<_> = pci.split([':', '.']).map(|part| u32::from_str_radix(part, 16)).collect();
    assert!(parts.len() == 4 && parts.iter().all(Result::is_ok), "{pci}");
    assert_eq!(pci, pci.to_lowercase());
    assert!(device.to_string().contains(&pci), "{device}");
    let current = Device::current(bed.driver).expect("its context is bound");
    assert_eq!(current.ordinal(), bed.device);
    refused(Device::new(bed.driver, Ordinal(4096)), &["device 4096: CUDA_ERROR_INVALID_DEVICE"]);
    if bed.is_fake() {
        assert_eq!((pci.as_str(), device.name().as_deref()), ("fafe:00:00.0", Ok("Fake GPU")));
        assert_eq!(attributes.writes_ordering, WritesOrdering::Owner);
        assert!(attributes.dma_buf && attributes.stream_write_64 && !attributes.gpudirect_rdma);
        assert!(attributes.flush_on_host);
        assert_eq!(Device::count(bed.driver), Ok(8));
    }
}

fn writes_can_be_flushed(bed: &Bed) {
    let device = Device::new(bed.driver, bed.device).expect("device 0");
    if !device.attributes().expect("it answers").flush_on_host {
        skip("this device has no flush on the host");
    }
    let context = bed.context();
    flush_writes(&context).expect("it is offered");
    // The call binds the context where nothing is bound.
    let flushed = std::thread::spawn(move || flush_writes(&context)).join();
    flushed.expect("no panic").expect("as well");
}

fn dma_buf_has_the_bytes(bed: &Bed) {
    let len = 3 << 16;
    let device = bed.alloc(2 << 20);
    let bytes = pattern(len, 1);
    bed.write(device, &bytes);
    let whole = bed.range(device, len);
    refused(DmaBuf::export(&whole, device + 1, len), &["CUDA_ERROR_INVALID_VALUE"]);
    let buffer = match DmaBuf::export(&bed.range(device, len), device, len) {
        Ok(buffer) => buffer,
        Err(error) if !bed.is_fake() => skip(error),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(buffer.offset(), 0);
    let inside = DmaBuf::export(&whole, device + 5000, 100).expect("a part of it");
    assert_eq!(inside.offset(), 5000 % 4096, "whole pages");
    let over = DmaBuf::export(&whole, device + 8191, 2).expect("a part of it");
    assert_eq!(over.offset(), 4095, "two pages");
    DmaBuf::export(&whole, device, 0).expect_err("nothing");
    let fd = buffer.fd().as_raw_fd();
    // SAFETY: a new mapping at an address that the system chooses.
    let mapped =
        unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if mapped == libc::MAP_FAILED {
        assert!(!bed.is_fake(), "the fake driver's can be mapped");
        println!("this driver's dma-bufs cannot be mapped");
    } else {
        // SAFETY: mapped above with this length; nobody writes to it.
        let seen = unsafe { std::slice::from_raw_parts(mapped.cast::<u8>(), len) };
        assert!(seen == bytes, "the dma-buf has other bytes");
    }
    drop((inside, over, buffer));
    // SAFETY: only asks about a number.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "the descriptor is closed");
    bed.free(device);
}

const BY_PCIE: u32 = 13;

/// As the driver offers it: an old one gives its own mapping.
fn dma_buf_is_mapped_through_pcie(bed: &Bed) {
    dma_buf_has_the_bytes(bed);
    let is_old = std::env::var_os("FAKE_CUDA_DMA_BUF").is_some();
    assert_eq!(bed.count(BY_PCIE), if is_old { 0 } else { 3 });
}

fn driver_without_dma_buf_says_so(bed: &Bed) {
    let device = bed.alloc(1 << 16);
    let range = bed.range(device, 1 << 16);
    refused(
        DmaBuf::export(&range, device, 1 << 16),
        &["CUDA_ERROR_NOT_SUPPORTED (801)", "65536 bytes"],
    );
}
