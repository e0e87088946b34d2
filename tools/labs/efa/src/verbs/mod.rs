//! Types and constants of libibverbs and libefa.

#[allow(
    dead_code,
    missing_debug_implementations,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc
)]
mod generated {
    include!("generated.rs");
}

pub(crate) use generated::*;

/// Structs of verbs that are zero but for what is set.
///
/// # Safety
/// Zeros are a value of it: it has numbers, pointers, and functions that may be missing.
pub(crate) unsafe trait Zeros: Sized {
    fn zeros() -> Self {
        // SAFETY: as the trait has it.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! zeros {
    ($($name:ty)*) => {$(
        // SAFETY: numbers, pointers and functions that may be missing.
        unsafe impl Zeros for $name {}
    )*};
}

zeros! {
    ibv_device ibv_context ibv_context_ops ibv_device_attr ibv_port_attr ibv_cq_ex ibv_qp_ex
    efadv_device_attr
}

/// A macro of `efadv.h` and of the kernel's interface that bindgen leaves out: the completion has
/// immediate data.
pub(crate) const WITH_IMM: u32 = 1 << 1;

/// The statuses in which an EFA device ends an operation, as `efa_io_comp_status` numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Status {
    Ok = 0,
    Flushed = 1,
    QueuePair = 2,
    LocalKey = 5,
    LocalLength = 6,
    RemoteAddress = 7,
    NoQueuePair = 9,
    NoReceive = 10,
    RemoteLength = 11,
    Unresponsive = 13,
    UnknownPeer = 14,
    Unreachable = 15,
}

impl Status {
    /// Each with the status that libibverbs makes of it.
    const ALL: [(Self, ibv_wc_status); 12] = [
        (Self::Ok, IBV_WC_SUCCESS),
        (Self::Flushed, IBV_WC_WR_FLUSH_ERR),
        (Self::QueuePair, IBV_WC_LOC_QP_OP_ERR),
        (Self::LocalKey, IBV_WC_LOC_PROT_ERR),
        (Self::LocalLength, IBV_WC_LOC_LEN_ERR),
        (Self::RemoteAddress, IBV_WC_REM_ACCESS_ERR),
        (Self::NoQueuePair, IBV_WC_REM_INV_RD_REQ_ERR),
        (Self::NoReceive, IBV_WC_RNR_RETRY_EXC_ERR),
        (Self::RemoteLength, IBV_WC_REM_INV_REQ_ERR),
        (Self::Unresponsive, IBV_WC_RESP_TIMEOUT_ERR),
        (Self::UnknownPeer, IBV_WC_REM_OP_ERR),
        (Self::Unreachable, IBV_WC_RESP_TIMEOUT_ERR),
    ];

    /// Returns the status with a number of the device's, and libibverbs' for it.
    ///
    /// # Panics
    /// When there is none with that number.
    pub(crate) fn numbered(number: u32) -> (Self, ibv_wc_status) {
        let found = Self::ALL.into_iter().find(|(status, _)| *status as u32 == number);
        found.expect("a completion has one of these")
    }
}
