//! The C structures, function types and constants of NVSHMEM's remote transport interface, in every
//! layout in use.
//!
//! The source is `include/nvshmem_transport_abi.h`, which also says who writes which field. Every
//! size, offset and constant that `layouts.json` lists is compared at compile time, and the layouts
//! by name are made of it too; `docs/adding-an-nvshmem-release.md` says how a release comes in. The
//! names of the header are in [`c`]; the types have Rust names here.

mod layout;

/// The header as bindgen read it; `scripts/bindings.sh` makes it anew.
#[allow(
    non_camel_case_types,
    non_snake_case,
    missing_debug_implementations,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc
)]
pub mod c {
    include!("generated.rs");
}

pub use c::{
    nvt_amo_bytesdesc as AmoBytes, nvt_amo_memdesc as AmoMem, nvt_amo_verb_3 as AmoVerb3,
    nvt_amo_verb_6 as AmoVerb6, nvt_bootstrap_handle as Bootstrap,
    nvt_bytesdesc_vector as RmaBytesVector, nvt_host_ops_3b as HostOps3b,
    nvt_host_ops_4 as HostOps4, nvt_host_ops_6 as HostOps6, nvt_host_ops_7 as HostOps7,
    nvt_mem_handle as MemHandle, nvt_memdesc_vector as RmaMemVector, nvt_op_attrs_6 as OpAttrs6,
    nvt_op_attrs_7 as OpAttrs7, nvt_pe_info as PeInfo, nvt_rma_bytesdesc as RmaBytes,
    nvt_rma_memdesc as RmaMem, nvt_rma_verb as RmaVerb, nvt_std_unordered_map as StdUnorderedMap,
    nvt_transport as Transport, nvt_transport_3b as Transport3b, nvt_transport_4 as Transport4,
    nvt_transport_6 as Transport6, nvt_transport_7 as Transport7,
};
pub use layout::{Layout, Major, UnsupportedApi};

/// Version in [`Bootstrap`], the same in every release.
pub const BOOTSTRAP_VERSION: i32 = 30000;

/// Entries of the table of CUDA driver functions that the newest host passes to `nvshmemt_init`.
pub const CUDA_TABLE_SLOTS: usize = 39;

/// Name of the one symbol that the host looks up in a plugin.
pub const INIT_SYMBOL: &str = "nvshmemt_init";

/// The file that a host of this major opens for a transport that a user names.
pub fn file_name(transport: &str, major: impl std::fmt::Display) -> String {
    format!("nvshmem_transport_{transport}.so.{major}")
}

/// `(end - begin)` of a C++ vector, as a number of elements.
macro_rules! vector_len {
    ($($vector:ty),+) => {$(
        impl $vector {
            #[inline]
            pub fn len(&self) -> usize {
                fn stride<T>(_: *mut T) -> usize {
                    size_of::<T>()
                }
                (self.end as usize).saturating_sub(self.begin as usize) / stride(self.begin)
            }

            /// Whether there is no element: a put with signal that has no payload.
            #[inline]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }
    )+};
}

vector_len!(RmaMemVector, RmaBytesVector);
