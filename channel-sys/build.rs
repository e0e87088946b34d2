//! Generates the bindings of `include/nvshmem_libfabric_ring.h`.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use bindgen::callbacks::{IntKind, ParseCallbacks};

const HEADER: &str = "../include/nvshmem_libfabric_ring.h";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={HEADER}");
    bindgen::Builder::default()
        .header(HEADER)
        .allowlist_item("(nlf|NLF)_.*")
        .generate_comments(false)
        // Zero is what an unused context, region or error is.
        .derive_default(true)
        .parse_callbacks(Box::new(MacroTypes))
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|e| format!("{e:?}"))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .generate()?
        .write_to_file(PathBuf::from(env::var("OUT_DIR")?).join("bindings.rs"))?;
    Ok(())
}

/// Gives each macro the width of the field it is for: those that are for whole words have 64 bits.
#[derive(Debug)]
struct MacroTypes;

impl ParseCallbacks for MacroTypes {
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        let word = ["NLF_LAP", "NLF_OFFSET_MASK", "NLF_MAX_OFFSET", "NLF_MAX_INLINE"];
        Some(if word.contains(&name) { IntKind::U64 } else { IntKind::U32 })
    }
}
