//! What an EFA device does not offer, or no provider of the lab comes to.
//!
//! Libfabrics that have their providers built in are linked to all of libibverbs, and so is
//! librdmacm, which they need: they do not load without these names.

use std::ffi::c_void;

use super::refuse;

/// Functions that answer null, or an error number, and say that they were called.
macro_rules! refused {
    ($($name:ident: $answer:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> refused!(@type $answer) {
                refused!(@$answer stringify!($name))
            }
        )*
    };
    (@type null) => { *mut c_void };
    (@type error) => { i32 };
    (@null $name:expr) => {{
        tell($name);
        refuse(libc::EOPNOTSUPP)
    }};
    (@error $name:expr) => {{
        tell($name);
        libc::EOPNOTSUPP
    }};
}

fn tell(name: &str) {
    eprintln!("efa-lab: {name} is not offered");
}

refused! {
    efadv_query_mr: error;
    ibv_ack_cq_events: error;
    ibv_attach_mcast: error;
    ibv_copy_ah_attr_from_kern: error;
    ibv_copy_path_rec_from_kern: error;
    ibv_copy_qp_attr_from_kern: error;
    ibv_create_comp_channel: null;
    ibv_create_cq: null;
    ibv_create_qp: null;
    ibv_create_srq: null;
    ibv_destroy_comp_channel: error;
    ibv_destroy_srq: error;
    ibv_detach_mcast: error;
    ibv_get_cq_event: error;
    ibv_get_device_guid: null;
    ibv_get_device_index: error;
    ibv_get_pkey_index: error;
    ibv_get_sysfs_path: null;
    ibv_query_ece: error;
    ibv_read_sysfs_file: error;
    ibv_set_ece: error;
    ibv_wc_status_str: null;
}
