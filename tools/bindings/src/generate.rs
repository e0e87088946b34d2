//! The bindings that the tree has, each with the options that bindgen makes it with.

use std::path::Path;

use bindgen::callbacks::{EnumVariantCustomBehavior, EnumVariantValue, IntKind, ParseCallbacks};
use bindgen::{Builder, Formatter, MacroTypeVariation, RustEdition, RustTarget};

use crate::Failure;

/// One checked-in file.
pub(crate) struct Binding {
    /// Where it is in the tree.
    pub(crate) path: &'static str,
    /// The header it is made of, in the tree.
    header: &'static str,
    /// The directory with others' headers that it includes, under the one with all their versions.
    include: Option<&'static str>,
    options: fn(Builder) -> Builder,
}

/// Those of the tree's own headers.
pub(crate) const OURS: [Binding; 2] = [
    Binding {
        path: "crates/channel-sys/src/generated.rs",
        header: "include/nvshmem_libfabric_ring.h",
        include: None,
        options: |builder| {
            builder
                .allowlist_item("(nlf|NLF)_.*")
                // Zero is what an unused context, region or error is.
                .derive_default(true)
                .parse_callbacks(Box::new(ChannelMacros))
        },
    },
    Binding {
        path: "crates/nvshmem-abi/src/generated.rs",
        header: "include/nvshmem_transport_abi.h",
        include: None,
        options: |builder| {
            builder
                .allowlist_file(".*nvshmem_transport_abi\\.h")
                .derive_default(true)
                .default_macro_constant_type(MacroTypeVariation::Signed)
        },
    },
];

/// The oldest libfabric that is served, which the code is compiled for.
pub(crate) const OLDEST: Binding = libfabric("crates/libfabric-sys/src/generated/v1_17.rs", "1.17");
/// A newer one, which has to extend it. It is compared, and not checked in.
pub(crate) const NEWER: Binding = libfabric("libfabric's newer headers", "2.1");

/// That of libibverbs and libefa: what a stand-in for them needs.
pub(crate) const VERBS: Binding = Binding {
    path: "tools/labs/efa/src/verbs/generated.rs",
    header: "tools/bindings/verbs.h",
    include: Some("56.1"),
    options: |builder| {
        builder
            .allowlist_type("ibv_(device|context|pd|mr|ah|ah_attr|comp_channel|srq|gid)")
            .allowlist_type("ibv_(cq|cq_ex|cq_init_attr_ex|poll_cq_attr)")
            .allowlist_type("ibv_(qp|qp_ex|qp_attr|qp_init_attr_ex|recv_wr|data_buf)")
            .allowlist_type("ibv_(device_attr|port_attr|wc_opcode|wc_status|qp_attr_mask)")
            .allowlist_type(
                "ibv_(access_flags|fork_status|mtu|qp_state|qp_type|send_flags|wr_opcode)",
            )
            .allowlist_type("efadv_(device_attr|qp_init_attr|ah_attr|cq|cq_init_attr)")
            .allowlist_var("EFADV_.*|IBV_WC_WITH_IMM")
            // Never called: the efa provider goes through the extended queues.
            .opaque_type("ibv_(flow|mw|wq|wc|ece|srq|sa|rwq|rx|xrcd).*")
            .blocklist_type("ibv_wc__.*")
            .blocklist_type("pthread_(mutex|cond)_t|__pthread_.*|__atomic_wide_counter.*")
            .raw_line("use libc::{pthread_cond_t, pthread_mutex_t};")
            .ignore_functions()
            .layout_tests(false)
            .prepend_enum_name(false)
    },
};

/// What libfabric 2 has taken back, given another value or calls deprecated: nothing may use it.
const RETIRED: [&str; 23] = [
    "FI_ATOMIC_OP_LAST",
    "FI_BUFFERED_RECV",
    "FI_DATATYPE_LAST",
    "FI_EP_SOCK_DGRAM",
    "FI_EP_SOCK_STREAM",
    "FI_ERRNO_MAX",
    "FI_LOCAL_MR",
    "FI_MR_BASIC",
    "FI_MR_SCALABLE",
    "FI_MR_UNSPEC",
    "FI_NOTIFY_FLAGS_ONLY",
    "FI_ORDER_DATA",
    "FI_ORDER_NONE",
    "FI_ORDER_STRICT",
    "FI_PATH_MAX",
    "FI_PRIORITY",
    "FI_PROV_SPECIFIC",
    "FI_REG_MR",
    "FI_RESTRICTED_COMP",
    "FI_VARIABLE_MSG",
    "FI_VERSION_MAX",
    "FI_XPU_TRIGGER",
    "fi_mr_mode",
];

const fn libfabric(path: &'static str, include: &'static str) -> Binding {
    Binding {
        path,
        header: "tools/bindings/libfabric.h",
        include: Some(include),
        options: |builder| {
            builder
                .allowlist_type("fi_.*|fid.*")
                .allowlist_var("FI_.*")
                // The exported functions are looked up at run time: a declaration would invite a
                // call that links to the library.
                .ignore_functions()
                // Casts hide these from bindgen; `constants.rs` has them, with the type they are
                // used as.
                .blocklist_var("FI_ADDR_UNSPEC|FI_ADDR_NOTAVAIL|FI_KEY_NOTAVAIL|FI_SHARED_CONTEXT")
                .blocklist_item(RETIRED.join("|"))
                // The C library's locks, which differ from one C library to the next.
                .blocklist_type("fi_mutex_cond|.*pthread.*")
                .prepend_enum_name(false)
                .parse_callbacks(Box::new(LibfabricMacros))
        },
    }
}

impl Binding {
    /// What bindgen makes of the header. `headers` has others', by version.
    pub(crate) fn generate(&self, root: &Path, headers: Option<&Path>) -> Result<String, Failure> {
        let wrong = |reason: String| Failure::Headers { path: self.path, reason };
        let mut builder = Builder::default()
            .header(root.join(self.header).to_string_lossy())
            .generate_comments(false)
            .formatter(Formatter::Prettyplease)
            .rust_target(RustTarget::stable(85, 0).map_err(|e| wrong(format!("{e:?}")))?)
            .rust_edition(RustEdition::Edition2024);
        if let (Some(headers), Some(version)) = (headers, self.include) {
            builder = builder.clang_arg(format!("-I{}", headers.join(version).display()));
        }
        let bindings =
            (self.options)(builder).generate().map_err(|error| wrong(error.to_string()))?;
        Ok(bindings.to_string())
    }
}

/// Gives each of libfabric's macros the type of the field or argument it is used in, where C leaves
/// it open.
#[derive(Debug)]
struct LibfabricMacros;

impl ParseCallbacks for LibfabricMacros {
    fn enum_variant_behavior(
        &self,
        _enum_name: Option<&str>,
        name: &str,
        _value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        RETIRED.contains(&name).then_some(EnumVariantCustomBehavior::Hide)
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
