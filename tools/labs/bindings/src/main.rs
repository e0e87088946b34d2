//! Writes the checked-in bindings anew from the C headers, with the options that each needs:
//!   bindings LIBFABRIC_HEADERS VERBS_HEADERS
//!
//! The directories are those that `scripts/headers.sh` prints. It needs libclang, which the build
//! of everything else does not.

use std::path::Path;
use std::{env, fs};

use bindgen::callbacks::{EnumVariantCustomBehavior, EnumVariantValue, IntKind, ParseCallbacks};
use bindgen::{Builder, Formatter, MacroTypeVariation, RustEdition, RustTarget};

/// What libfabric 2 has taken back, given another value or calls deprecated: nothing may use it.
const RETIRED: &str = "FI_ATOMIC_OP_LAST FI_BUFFERED_RECV FI_DATATYPE_LAST FI_EP_SOCK_DGRAM FI_EP_SOCK_STREAM \
    FI_ERRNO_MAX FI_LOCAL_MR FI_MR_BASIC FI_MR_SCALABLE FI_MR_UNSPEC FI_NOTIFY_FLAGS_ONLY \
    FI_ORDER_DATA FI_ORDER_NONE FI_ORDER_STRICT FI_PATH_MAX FI_PRIORITY FI_PROV_SPECIFIC \
    FI_REG_MR FI_RESTRICTED_COMP FI_VARIABLE_MSG FI_VERSION_MAX FI_XPU_TRIGGER fi_mr_mode";

fn is_retired(name: &str) -> bool {
    RETIRED.split_whitespace().any(|retired| retired == name)
}

fn main() {
    let headers: Vec<String> = env::args().skip(1).collect();
    let [libfabric, verbs] = &headers[..] else {
        panic!("usage: bindings LIBFABRIC_HEADERS VERBS_HEADERS");
    };
    let ring = header("include/nvshmem_libfabric_ring.h")
        .allowlist_item("(nlf|NLF)_.*")
        // Zero is what an unused context, region or error is.
        .derive_default(true)
        .parse_callbacks(Box::new(ChannelMacros));
    write(ring, "crates/channel-sys/src/generated.rs");

    let abi = header("include/nvshmem_transport_abi.h")
        .allowlist_file(".*nvshmem_transport_abi\\.h")
        .derive_default(true)
        .default_macro_constant_type(MacroTypeVariation::Signed);
    write(abi, "crates/nvshmem-abi/src/generated.rs");

    // The oldest libfabric that is served, which the code is compiled for.
    let libfabric = header("tools/labs/bindings/libfabric.h")
        .clang_arg(format!("-I{libfabric}/1.17"))
        .allowlist_type("fi_.*|fid.*")
        .allowlist_var("FI_.*")
        // The exported functions are looked up at run time: a declaration would invite a call that
        // links to the library.
        .ignore_functions()
        // Casts hide these from bindgen; `constants.rs` has them, with the type they are used as.
        .blocklist_var("FI_ADDR_UNSPEC|FI_ADDR_NOTAVAIL|FI_KEY_NOTAVAIL|FI_SHARED_CONTEXT")
        .blocklist_item(RETIRED.split_whitespace().collect::<Vec<_>>().join("|"))
        // The C library's locks, which differ from one C library to the next.
        .blocklist_type("fi_mutex_cond|.*pthread.*")
        .prepend_enum_name(false)
        .parse_callbacks(Box::new(LibfabricMacros));
    write(libfabric, "crates/libfabric-sys/src/generated/v1_17.rs");

    // Of libibverbs and libefa: what a stand-in for them needs.
    let verbs = header("tools/labs/bindings/verbs.h")
        .clang_arg(format!("-I{verbs}/56.1"))
        .allowlist_type("ibv_(device|context|pd|mr|ah|ah_attr|comp_channel|srq|gid)")
        .allowlist_type("ibv_(cq|cq_ex|cq_init_attr_ex|poll_cq_attr)")
        .allowlist_type("ibv_(qp|qp_ex|qp_attr|qp_init_attr_ex|recv_wr|data_buf)")
        .allowlist_type("ibv_(device_attr|port_attr|wc_opcode|wc_status|qp_attr_mask)")
        .allowlist_type("ibv_(access_flags|fork_status|mtu|qp_state|qp_type|send_flags|wr_opcode)")
        .allowlist_type("efadv_(device_attr|qp_init_attr|ah_attr|cq|cq_init_attr)")
        .allowlist_var("EFADV_.*|IBV_WC_WITH_IMM")
        // Never called: the efa provider goes through the extended queues.
        .opaque_type("ibv_(flow|mw|wq|wc|ece|srq|sa|rwq|rx|xrcd).*")
        .blocklist_type("ibv_wc__.*")
        .blocklist_type("pthread_(mutex|cond)_t|__pthread_.*|__atomic_wide_counter.*")
        .raw_line("use libc::{pthread_cond_t, pthread_mutex_t};")
        .ignore_functions()
        .layout_tests(false)
        .prepend_enum_name(false);
    write(verbs, "tools/labs/efa/src/verbs/generated.rs");
}

fn header(path: &str) -> Builder {
    Builder::default()
        .header(path)
        .generate_comments(false)
        .formatter(Formatter::Prettyplease)
        .rust_target(RustTarget::stable(85, 0).expect("a release"))
        .rust_edition(RustEdition::Edition2024)
}

fn write(builder: Builder, path: &str) {
    let bindings = builder.generate().expect("the header is read");
    fs::write(Path::new(path), bindings.to_string()).expect("the bindings are written");
    println!("{path}");
}

#[derive(Debug)]
struct LibfabricMacros;

impl ParseCallbacks for LibfabricMacros {
    fn enum_variant_behavior(
        &self,
        _enum_name: Option<&str>,
        name: &str,
        _value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        is_retired(name).then_some(EnumVariantCustomBehavior::Hide)
    }

    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        let is_errno = name.starts_with("FI_E") && (1..512).contains(&value);
        let is_mr_mode = name.starts_with("FI_MR_") && i32::try_from(value).is_ok();
        if is_errno || is_mr_mode {
            // `fi_domain_attr.mr_mode` and all return codes are int.
            Some(IntKind::I32)
        } else if name.ends_with("_VERSION") {
            Some(IntKind::U32)
        } else if name.starts_with("FI_") {
            // Capability, mode, order and operation flags share 64-bit fields.
            Some(IntKind::U64)
        } else {
            None
        }
    }
}

/// Gives each macro of the channel the width of the field it is for: those that are for whole words
/// have 64 bits.
#[derive(Debug)]
struct ChannelMacros;

impl ParseCallbacks for ChannelMacros {
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        let word = [
            "NLF_LAP",
            "NLF_OFFSET_MASK",
            "NLF_MAX_OFFSET",
            "NLF_MAX_INLINE",
            "NLF_REGION_LENGTH",
            "NLF_REGION_SYMMETRIC",
        ];
        Some(if word.contains(&name) { IntKind::U64 } else { IntKind::U32 })
    }
}
