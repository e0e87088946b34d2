//! The tables of functions that NCCL finds, one per version.

use crate::nccl::abi::{Table14, Table15, Table16};

use super::{entries, older};

/// A table with the common fields, a module's operations, and the version's own fields.
macro_rules! table {
    ($table:ident, $operations:ident { $($own:ident: $function:path),* }) => {
        $table {
            name: c"nvshmem-libfabric".as_ptr(),
            init: entries::init,
            devices: entries::devices,
            get_properties: entries::get_properties,
            listen: entries::listen,
            connect: entries::connect,
            create_context: entries::create_context,
            reg_mr_sym: entries::reg_mr_sym,
            reg_mr_sym_dma_buf: entries::reg_mr_sym_dma_buf,
            dereg_mr_sym: entries::dereg_mr_sym,
            destroy_context: entries::destroy_context,
            close_coll: entries::close_coll,
            close_listen: entries::close_listen,
            iput: $operations::iput,
            iput_signal: $operations::iput_signal,
            iget: $operations::iget,
            iflush: entries::iflush,
            test: entries::test,
            progress: entries::progress,
            query_last_error: entries::query_last_error,
            finalize: entries::finalize,
            $($own: $function,)*
        }
    };
}

pub const V16: Table16 =
    table!(Table16, entries { get_rma_properties: entries::get_rma_properties });

pub const V15: Table15 = table!(Table15, entries {});

pub const V14: Table14 = table!(Table14, older {});
