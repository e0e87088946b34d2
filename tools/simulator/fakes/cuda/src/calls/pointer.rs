//! Queries about an address.

use std::ffi::{c_uint, c_void};

use crate::state::context::Raw;
use crate::state::device::devices;
use crate::state::memory::{Mapping, find};
use crate::state::pages::Kind;
use crate::state::status::{INVALID_VALUE, In, NOT_SUPPORTED, Out, Outcome};

const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

const NO_DEVICE: i32 = -2;

fn write(which: u32, mapping: Option<&Mapping>, address: usize, into: &Out<c_void>) -> Outcome {
    let kind = mapping.map(|mapping| mapping.kind);
    match which {
        // CONTEXT
        1 => {
            let context = mapping.and_then(|mapping| mapping.context);
            into.of::<Raw>().put(context.map_or(std::ptr::null(), std::ptr::from_ref))
        }
        // MEMORY_TYPE
        2 => into.of::<c_uint>().put(match kind {
            None => 0,
            Some(Kind::Device | Kind::VmmDevice | Kind::Pool | Kind::Managed) => DEVICE,
            Some(Kind::VmmHost | Kind::Pinned | Kind::Registered) => HOST,
        }),
        // DEVICE_POINTER
        3 => into.of::<usize>().put(mapping.map_or(0, |_| address)),
        // HOST_POINTER
        4 => into.of::<usize>().put(mapping.filter(|mapping| mapping.cpu).map_or(0, |_| address)),
        // BUFFER_ID
        7 => into.of::<u64>().put(mapping.map_or(0, |mapping| mapping.id)),
        // IS_MANAGED
        8 => into.of::<c_uint>().put((kind == Some(Kind::Managed)).into()),
        // DEVICE_ORDINAL
        9 => {
            let ordinal = mapping.map(|mapping| mapping.device.ordinal as i32);
            into.of::<i32>().put(ordinal.unwrap_or(NO_DEVICE))
        }
        // IS_LEGACY_CUDA_IPC_CAPABLE
        10 => into.of::<c_uint>().put((kind == Some(Kind::Device)).into()),
        // RANGE_START_ADDR and RANGE_SIZE
        11 => into.of::<usize>().put(mapping.map_or(0, |mapping| mapping.base)),
        12 => into.of::<usize>().put(mapping.map_or(0, |mapping| mapping.len)),
        // MAPPED
        13 => into.of::<c_uint>().put(mapping.is_some().into()),
        _ => Err(INVALID_VALUE),
    }
}

calls! {
    /// An address that the driver does not know has the value null in every attribute.
    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: In<u32>,
        data: In<Out<c_void>>,
        address: usize,
    ) {
        devices()?;
        let (count, mapping) = (count as usize, find(address));
        let mut all = attributes.list(count)?.iter().zip(data.list(count)?);
        all.try_for_each(|(which, into)| write(*which, mapping.as_ref(), address, into))
    }

    /// Unlike the call for several attributes, this one fails for an address that is not known.
    fn cuPointerGetAttribute(into: Out<c_void>, attribute: u32, address: usize) {
        devices()?;
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        write(attribute, Some(&mapping), address, &into)
    }

    /// `SYNC_MEMOPS` alone can be set, and not for memory of the VMM interface.
    fn cuPointerSetAttribute(value: In<c_uint>, attribute: u32, address: usize) {
        devices()?;
        value.get()?;
        match find(address).map(|mapping| mapping.kind).filter(|_| attribute == 6) {
            Some(Kind::Device | Kind::Managed | Kind::Pinned) => Ok(()),
            Some(_) => Err(NOT_SUPPORTED),
            None => Err(INVALID_VALUE),
        }
    }
}
