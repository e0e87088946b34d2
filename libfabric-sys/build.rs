//! Generates the bindings from the installed libfabric headers.
//!
//! `LIBFABRIC_INCLUDE_DIR` names a directory that holds `rdma/fabric.h` where the headers are not
//! on the compiler's own path.

use std::env;
use std::path::PathBuf;
use std::process::exit;

use bindgen::callbacks::{IntKind, ParseCallbacks};

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-env-changed=LIBFABRIC_INCLUDE_DIR");

    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .allowlist_type("fi_.*|fid.*")
        .allowlist_var("FI_.*")
        // The exported functions are looked up at run time: a declaration would invite a call
        // that links to the library.
        .ignore_functions()
        // Casts hide these from bindgen; `constants.rs` has them, with the type they are used as.
        .blocklist_var("FI_ADDR_UNSPEC|FI_ADDR_NOTAVAIL|FI_KEY_NOTAVAIL|FI_SHARED_CONTEXT")
        .prepend_enum_name(false)
        .derive_debug(true)
        .generate_comments(false)
        .parse_callbacks(Box::new(MacroTypes));
    if let Some(dir) = env::var_os("LIBFABRIC_INCLUDE_DIR") {
        builder = builder.clang_arg(format!("-I{}", dir.to_string_lossy()));
    }

    let bindings = match builder.generate() {
        Ok(bindings) => bindings,
        Err(error) => fail(&format!(
            "cannot read the libfabric headers (<rdma/fabric.h> and its companions): {error}\n\
             Install libfabric 1.17 or newer with its headers (Debian and Ubuntu: `apt install \
             libfabric-dev`; Fedora: `dnf install libfabric-devel`), or set LIBFABRIC_INCLUDE_DIR \
             to the directory that holds rdma/fabric.h."
        )),
    };
    let Some(out) = env::var_os("OUT_DIR") else { fail("OUT_DIR is not set: run through cargo") };
    let path = PathBuf::from(out).join("bindings.rs");
    if let Err(error) = bindings.write_to_file(&path) {
        fail(&format!("cannot write {}: {error}", path.display()));
    }
}

/// Gives each macro the type of the field or argument it is used in, where C leaves it open.
#[derive(Debug)]
struct MacroTypes;

impl ParseCallbacks for MacroTypes {
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

fn fail(message: &str) -> ! {
    eprintln!("libfabric-sys: {message}");
    exit(1);
}
