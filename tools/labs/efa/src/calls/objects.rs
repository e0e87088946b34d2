//! Protection domains, memory regions and address handles.

use std::ffi::c_void;

use super::refuse;
use crate::device::{Ah, Memory, Mr, Nic, Pd, deregister};
use crate::shared::nic::Gid;
use crate::verbs::{efadv_ah_attr, ibv_ah, ibv_ah_attr, ibv_context};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut Pd {
    // SAFETY: an open device.
    let nic = unsafe { Nic::of(context) };
    if nic.config.faults.refuses_domain(nic.number) {
        return refuse(libc::ENOMEM);
    }
    let Some(domain) = nic.state.add_domain(Nic::MAX_PDS) else { return refuse(libc::ENOMEM) };
    Box::into_raw(Box::new(Pd { context, handle: domain.0 }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> i32 {
    // SAFETY: from the call above, and not used again; the device is still open.
    unsafe {
        let pd = Box::from_raw(pd);
        Nic::of(pd.context).state.remove_domain();
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    at: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut Mr {
    // SAFETY: a domain of an open device.
    let (nic, pd) = unsafe { (Nic::of((*pd).context), &mut *pd) };
    nic.register(pd, Memory::At(at as u64), length, iova, access).unwrap_or_else(refuse)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    file: i32,
    access: i32,
) -> *mut Mr {
    // SAFETY: a domain of an open device.
    let (nic, pd) = unsafe { (Nic::of((*pd).context), &mut *pd) };
    let memory = Memory::DmaBuf { file, offset };
    nic.register(pd, memory, length, iova, access as u32).unwrap_or_else(refuse)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    at: *mut c_void,
    length: usize,
    access: i32,
) -> *mut Mr {
    // SAFETY: as above.
    unsafe { ibv_reg_mr_iova2(pd, at, length, at as u64, access as u32) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> i32 {
    // SAFETY: from a call above, and not used again.
    unsafe { deregister(mr) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: a domain of an open device, and what the caller asks for.
    let (nic, gid, pd) = unsafe { (Nic::of((*pd).context), Gid((*attr).grh.dgid.raw), &mut *pd) };
    Ah::create(nic, pd, gid).unwrap_or_else(refuse)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> i32 {
    // SAFETY: from the call above, and not used again.
    unsafe { Ah::destroy(ah) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_ah(ah: *mut ibv_ah, attr: *mut efadv_ah_attr, bytes: u32) -> i32 {
    if (bytes as usize) < size_of::<efadv_ah_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: a handle, and the caller's place of that length.
    unsafe { (*attr).ahn = Ah::of(ah).number as u16 };
    0
}
