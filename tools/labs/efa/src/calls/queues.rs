//! Queue pairs and completion queues.

use super::refuse;
use crate::device::{Cq, Nic, Qp};
use crate::verbs::{
    efadv_cq, efadv_cq_init_attr, efadv_qp_init_attr, ibv_context, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr_ex,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    _: *mut efadv_cq_init_attr,
    _: u32,
) -> *mut ibv_cq_ex {
    // SAFETY: an open device, and what the caller asks for.
    let (nic, attr) = unsafe { (Nic::of(context), &*attr) };
    Cq::create(nic, attr).unwrap_or_else(refuse)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut efadv_cq {
    // SAFETY: from the call above.
    unsafe { Cq::efa(cq) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> i32 {
    // SAFETY: from the first call above, and not used again when it goes.
    unsafe { Cq::destroy(cq.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    _: u32,
) -> *mut ibv_qp {
    // SAFETY: an open device with its queues, and what the caller asks for.
    unsafe { Qp::create(Nic::of(context), &*attr, &*efa).unwrap_or_else(refuse) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    qp.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: i32) -> i32 {
    // SAFETY: a queue pair, and what the caller asks for.
    unsafe { Qp::modify(qp, &*attr, mask as u32) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> i32 {
    // SAFETY: a queue pair, not used again.
    unsafe { Qp::destroy(qp) };
    0
}

/// No data is promised to arrive in order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: u32, _: u32) -> i32 {
    0
}
