//! Staging when copies fail, when there is no memory to be had, and when a device disappears.

use engine::port::PortError;

use crate::prelude::*;

cases! {
    Fake: failed_copy_ends_its_context, refused_copy_is_told_at_once,
        half_refused_copy_ends_its_context, second_device_may_lack_memory,
        lost_device_ends_its_staging, driver_shutdown_is_told, nothing_follows_a_lost_word;
    Any: address_of_no_memory_is_refused;
    Fake ("FAKE_CUDA_PINNED_LIMIT" = "65536"): unlockable_memory_is_refused;
}

fn copy(stage: &mut Stage, direction: CopyDirection, memory: usize) -> Result<Posted, PortError> {
    let copy = Copy { direction, memory, bounce: stage.bounce(direction, 0), len: 64 };
    stage.give(copy, 99)
}

fn failed_copy_ends_its_context(bed: &Bed) {
    let heap = bed.heap(1);
    let other = bed.vmm(&[(ON_DEVICE, 1)], false);
    let (mut stage, _region) = Stage::new(bed, heap, GRANULARITY);
    let _other = stage.register(bed, other, GRANULARITY);
    // Refused by the second device alone: the first one's copy is on its way.
    call!(bed.raw, fake_cuda_fail_submit(1 => c_int, 0 => u32, 2 => u32));
    let bounce = stage.bounce(IN, 0);
    let copies = [heap, other]
        .map(|memory| TaggedCopy { copy: Copy { direction: IN, memory, bounce, len: 64 }, tag: 9 });
    assert_eq!(stage.port.start_all(&copies), Ok(Posted::Yes));
    assert_eq!(stage.wait().result.map_err(|error| error.code), Err(libc::ENOMEM));
    bed.slow(20_000_000);
    bed.fail(1, 214);
    for tag in 0..2 {
        stage.start(IN, heap, tag as u16, CHUNK, tag);
    }
    for tag in 0..2 {
        let copied = stage.wait();
        assert_eq!(copied.tag, tag, "in order");
        // The driver tells of a failure with the next call, so the first may seem failed as well.
        if tag > 0 {
            assert_eq!(copied.result.as_ref().map_err(|error| error.code), Err(214));
            refused(copied.result, &["device 0", "CUDA_ERROR_ECC_UNCORRECTABLE", "214"]);
        }
    }
    for direction in [IN, OUT] {
        refused(copy(&mut stage, direction, heap), &["CUDA_ERROR_ECC_UNCORRECTABLE"]);
    }
    refused(stage.port.store_flag(heap, 1), &["CUDA_ERROR_ECC_UNCORRECTABLE"]);
    assert!(stage.port.poll().is_none());
    stage.carries(other, &pattern(CHUNK, 3));
}

fn refused_copy_is_told_at_once(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    for (direction, memory, len, call) in [
        (IN, heap + 5, 64, "cuMemcpy2DAsync_v2"),
        (IN, heap + 8, 8, "cuMemcpyHtoDAsync_v2"),
        (IN, heap + 5, 32 << 10, "cuMemcpyHtoDAsync_v2"),
        (OUT, heap + 5, 64, "cuMemcpyDtoHAsync_v2"),
    ] {
        bed.refuse(0, 1);
        let copy = Copy { direction, memory, bounce: stage.bounce(direction, 0), len };
        let subject = format!("{len} bytes at {memory:#x}");
        refused(stage.give(copy, 99), &[call, &subject, "CUDA_ERROR_INVALID_VALUE"]);
        assert!(stage.port.poll().is_none(), "nothing was started");
    }
    stage.copy_in(heap, &[1; 64]);
}

/// Until a flush has told of the word, neither a copy nor another word is let by.
fn nothing_follows_a_lost_word(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    bed.write(heap, &[0; 16]);
    // These are stored by a copy.
    let bytes = [7; 3];
    stage.port.queue_write(heap, &bytes, DeferredOrder::After).expect("soon");
    bed.refuse(0, 2);
    for _ in 0..2 {
        refused(copy(&mut stage, IN, heap + 64), &["CUDA_ERROR_OUT_OF_MEMORY"]);
        stage.port.queue_write(heap + 8, &bytes, DeferredOrder::After).expect("soon");
    }
    refused(stage.port.flush(), &["CUDA_ERROR_OUT_OF_MEMORY"]);
    assert_eq!((stage.port.flush(), bed.word(heap + 8)), (Ok(()), 0));
    stage.copy_in(heap, &[1; 64]);
}

fn half_refused_copy_ends_its_context(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 2);
    bed.refuse(1, 2);
    stage.start(IN, heap + GRANULARITY - 100, 0, 200, 5);
    let copied = stage.wait();
    assert_eq!(copied.tag, 5);
    refused(copied.result, &["CUDA_ERROR_OUT_OF_MEMORY"]);
    refused(copy(&mut stage, IN, heap), &["CUDA_ERROR_OUT_OF_MEMORY"]);
}

fn address_of_no_memory_is_refused(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    let page = bed.hidden();
    // The first page is mapped by nobody, and 0 would be no mask to the kernel that is asked.
    for addr in [page, page + 4000, page - 63, 1, 4000] {
        refused(stage.port.reach(addr, 64), &[&format!("64 bytes at {addr:#x}"), "kernel's stack"]);
        refused(copy(&mut stage, OUT, addr), &["kernel's stack"]);
    }
    assert_eq!(stage.port.reach(page - 64, 64), Ok(Reach::Direct));
    stage.copy_in(heap, &[7; 64]);
}

fn unlockable_memory_is_refused(bed: &Bed) {
    let heap = bed.heap(1);
    let staging = Staging::new(options(4, stream_only()));
    let register = || register(&staging, bed, heap, GRANULARITY);
    let asked = format!("{} bytes of page-locked memory", 8 * CHUNK);
    refused(register(), &["cuMemHostAlloc", &asked, "CUDA_ERROR_OUT_OF_MEMORY"]);
    assert!(staging.take_stager().is_none() && staging.ranges() == 0);
    assert_eq!(bed.count(3), 0, "nothing is left behind");
    // The bounce buffers fit, what else is needed does not.
    call!(bed.raw, fake_cuda_limits(0 => c_int, 8 * CHUNK as u64 => u64, u64::MAX => u64));
    refused(register(), &["CUDA_ERROR_OUT_OF_MEMORY"]);
    assert_eq!(bed.count(3), 0, "nor here");
    assert!(staging.take_stager().is_none() && staging.ranges() == 0);
    call!(bed.raw, fake_cuda_limits(0 => c_int, u64::MAX => u64, u64::MAX => u64));
    let region = register().expect("now there is enough");
    let stager = staging.take_stager().expect("something is staged");
    let (needed, bounces) = (bed.count(3), stager.bounce.bytes() as u64);
    assert!(
        needed >= bounces && needed < bounces + 32768,
        "{needed} for bounce buffers of {bounces}"
    );
    drop((region, stager));
    assert_eq!(bed.count(3), 0, "all of it is given back");
}

fn second_device_may_lack_memory(bed: &Bed) {
    let heaps: Vec<usize> = (0..2).map(|device| bed.vmm(&[(ON_DEVICE, device)], false)).collect();
    let (mut stage, _first) = Stage::new(bed, heaps[0], GRANULARITY);
    call!(bed.raw, fake_cuda_limits(1 => c_int, 0 => u64, u64::MAX => u64));
    let register = || register(&stage.staging, bed, heaps[1], GRANULARITY);
    refused(register(), &["device 1", "OUT_OF_MEMORY"]);
    call!(bed.raw, fake_cuda_reset(1 => c_int));
    let _second = register().expect("now there is enough");
    for heap in heaps {
        stage.copy_in(heap, &[4; 100]);
        assert_eq!(stage.copy_out(heap, 100), [4; 100]);
    }
}

fn lost_device_ends_its_staging(bed: &Bed) {
    let heap = bed.heap(1);
    let (mut stage, region) = Stage::new(bed, heap, GRANULARITY);
    let unregistered = bed.alloc(4096);
    bed.slow(50_000_000);
    for tag in 0..2 {
        stage.start(IN, heap, tag as u16, CHUNK, tag);
        stage.start(OUT, heap, tag as u16, CHUNK, 10 + tag);
    }
    call!(bed.raw, fake_cuda_lose(0 => c_int, 46 => u32));
    let mut tags: Vec<u32> = (0..4)
        .map(|_| {
            let copied = stage.wait();
            refused(copied.result, &["device 0", "CUDA_ERROR_DEVICE_UNAVAILABLE"]);
            copied.tag
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 10, 11]);
    refused(copy(&mut stage, IN, heap), &["CUDA_ERROR_DEVICE_UNAVAILABLE"]);
    refused(copy(&mut stage, OUT, unregistered), &["CUDA_ERROR_DEVICE_UNAVAILABLE"]);
    refused(stage.port.load(heap, &mut [0; 16]), &["CUDA_ERROR_DEVICE_UNAVAILABLE"]);
    stage.port.store_flag(heap, 1).expect_err("the device is gone");
    // Teardown ends: nothing waits for the device.
    drop((region, stage));
}

fn driver_shutdown_is_told(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    stage.start(IN, heap, 0, CHUNK, 5);
    call!(bed.raw, fake_cuda_lose(0 => c_int, 4 => u32));
    refused(stage.wait().result, &["CUDA_ERROR_DEINITIALIZED", "the driver has shut down"]);
}
