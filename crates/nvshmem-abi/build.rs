//! Generates, from `layouts.json`, the layouts by name and the compile-time checks that the
//! bindings agree with them.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

const LAYOUTS: &str = "layouts.json";

/// Prefix of a group of constants in the header, for each group of the recorded enums.
const ENUMS: [(&str, &str); 11] = [
    ("op", "NVT_OP_"),
    ("amo", "NVT_AMO_"),
    ("status", "NVT_STATUS_"),
    ("cap", "NVT_CAP_"),
    ("attr", "NVT_ATTR_"),
    ("lib_code", "NVT_LIB_CODE_"),
    ("qp", "NVT_QP_"),
    ("device_assignment_mode(abi7)", "NVT_DEVICE_ASSIGNMENT_MODE_"),
    ("op_flag", "NVT_OP_FLAG_"),
    ("region_hint(abi7)", "NVT_REGION_HINT_"),
    ("region_role(abi7)", "NVT_REGION_ROLE_"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={LAYOUTS}");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let recorded: Value = serde_json::from_str(&fs::read_to_string(LAYOUTS)?)?;
    fs::write(out.join("checks.rs"), checks(&recorded)?)?;
    fs::write(out.join("layouts.rs"), layouts(&recorded)?)?;
    Ok(())
}

/// The types [`Layout`] and [`Major`], oldest first, and the facts about each layout.
fn layouts(recorded: &Value) -> Result<String, Box<dyn Error>> {
    let mut abis = Vec::new();
    for (name, abi) in object(&recorded["abis"])? {
        let api_version = number(&abi["api_version"])?;
        let (major, soname) = (api_version / 10000, text(&abi["soname"])?);
        if !soname.ends_with(&format!(".so.{major}")) {
            return Err(format!("layout {name}: {soname} is not the file of major {major}").into());
        }
        abis.push((major, name, abi));
    }
    abis.sort_by_key(|(major, name, _)| (*major, name.as_str()));
    let mut majors: Vec<i64> = abis.iter().map(|(major, ..)| *major).collect();
    majors.dedup();

    let (mut variants, mut all, mut facts) = (String::new(), String::new(), String::new());
    for (major, name, abi) in &abis {
        let releases = abi["releases"].as_array().ok_or("no releases")?;
        let releases = releases.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let new = text(&abi["new"])?;
        writeln!(variants, "/// NVSHMEM {}. {new}\nV{name},", releases.join(", "))?;
        write!(all, "Layout::V{name}, ")?;
        writeln!(
            facts,
            "Facts {{ name: {name:?}, api_version: {}, soname: {:?}, \
             major: Major::V{major}, releases: &{releases:?} }},",
            number(&abi["api_version"])?,
            text(&abi["soname"])?,
        )?;
    }
    let major_variants: String =
        majors.iter().map(|n| format!("/// {n}.\nV{n} = {n},\n")).collect();
    let major_all: String = majors.iter().map(|n| format!("Major::V{n}, ")).collect();
    Ok(format!(
        "/// A memory layout of the interface, with the calling sequences that belong to it.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Layout {{ {variants} }}
        impl Layout {{
            /// All layouts, oldest first.
            pub const ALL: [Layout; {n}] = [{all}];
        }}
        const FACTS: [Facts; {n}] = [{facts}];
        /// Major part of an api_version. It names a layout except for 3, which may be either of
        /// two: tell them apart by where `get_mem_handle` finds the transport among its arguments.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Major {{ {major_variants} }}
        impl Major {{
            /// All majors, oldest first.
            pub const ALL: [Major; {m}] = [{major_all}];
        }}
        ",
        n = abis.len(),
        m = majors.len(),
    ))
}

fn checks(recorded: &Value) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    for (name, abi) in object(&recorded["abis"])? {
        layout(&mut out, name, abi).map_err(|e| format!("layout {name}: {e}"))?;
    }
    for (name, entry) in object(&recorded["types"])? {
        match name.as_str() {
            "std_vector" => {
                structure(&mut out, "nvt_memdesc_vector", entry)?;
                structure(&mut out, "nvt_bytesdesc_vector", entry)?;
            }
            _ => structure(&mut out, &format!("nvt_{name}"), entry)
                .map_err(|e| format!("type {name}: {e}"))?,
        }
    }
    for (group, values) in object(&recorded["enums"])? {
        let (_, prefix) = ENUMS
            .iter()
            .find(|(name, _)| name == group)
            .ok_or_else(|| format!("no constants for the enum {group}"))?;
        for (name, value) in object(values)? {
            // A name may carry the layouts that have it, in parentheses.
            let name = name.split('(').next().unwrap_or(name);
            writeln!(out, "const _: () = assert!({prefix}{name} as i64 == {});", number(value)?)?;
        }
    }
    Ok(out)
}

fn layout(out: &mut String, name: &str, abi: &Value) -> Result<(), Box<dyn Error>> {
    let ty = format!("nvt_transport_{name}");
    let size = number(&abi["sizeof_nvshmem_transport"])?;
    writeln!(out, "const _: () = assert!(size_of::<{ty}>() == {size});")?;
    for field in abi["fields"].as_array().ok_or("no fields")? {
        let path = text(&field["name"])?;
        // `type` is a keyword in Rust; bindgen appends an underscore.
        let path = if path == "type" { "type_" } else { path };
        field_check(out, &ty, path, number(&field["offset"])?)?;
        writeln!(
            out,
            "const _: () = assert!(field_size(|t: &{ty}| &t.{path}) == {});",
            number(&field["size"])?
        )?;
    }
    fields_of(out, text(&abi["amo_verb"]["type"])?, &abi["amo_verb"])?;
    if !abi["op_attrs"].is_null() {
        fields_of(out, &format!("nvt_op_attrs_{name}"), &abi["op_attrs"])?;
    }
    Ok(())
}

/// An entry that keeps the offsets of its fields under `fields`.
fn fields_of(out: &mut String, ty: &str, entry: &Value) -> Result<(), Box<dyn Error>> {
    writeln!(out, "const _: () = assert!(size_of::<{ty}>() == {});", number(&entry["size"])?)?;
    for (field, at) in object(&entry["fields"])? {
        field_check(out, ty, field, number(at)?)?;
    }
    Ok(())
}

/// An entry that keeps the offsets of its fields beside its size.
fn structure(out: &mut String, ty: &str, entry: &Value) -> Result<(), Box<dyn Error>> {
    for (key, value) in object(entry)? {
        match key.as_str() {
            "size" => {
                writeln!(out, "const _: () = assert!(size_of::<{ty}>() == {});", number(value)?)?;
            }
            "align" => {
                writeln!(out, "const _: () = assert!(align_of::<{ty}>() == {});", number(value)?)?;
            }
            "node" => structure(out, "nvt_map_node", value)?,
            field => field_check(out, ty, field, number(value)?)?,
        }
    }
    Ok(())
}

fn field_check(out: &mut String, ty: &str, path: &str, at: i64) -> Result<(), Box<dyn Error>> {
    writeln!(out, "const _: () = assert!(std::mem::offset_of!({ty}, {path}) == {at});")?;
    Ok(())
}

fn object(value: &Value) -> Result<&serde_json::Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("not an object: {value}"))
}

fn number(value: &Value) -> Result<i64, String> {
    value.as_i64().ok_or_else(|| format!("not a number: {value}"))
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("not a text: {value}"))
}
