//! The check that the newer libfabric's declarations extend the oldest one's.
//!
//! The code is compiled for the oldest. That it serves newer libraries rests on this: constants
//! keep their values, fields and functions in tables their types and places, and structs only grow.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::{Expr, Item, Lit, Stmt};

use crate::generate::{NEWER, OLDEST};
use crate::{Failure, facts};

/// Compares the declarations of both headers, and the newer ones with the facts stated by hand.
pub(crate) fn check(older: &str, newer: &str) -> Result<(), Failure> {
    let parsed = |path, source| {
        Declarations::parse(source)
            .map_err(|error| Failure::Parse { path, reason: error.to_string() })
    };
    let (older, newer) = (parsed(OLDEST.path, older)?, parsed(NEWER.path, newer)?);
    let wrong = older.not_in(&newer);
    if !wrong.is_empty() {
        return Err(Failure::Extends(wrong.join("\n")));
    }
    let wrong = facts::wrong(&newer);
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Facts(wrong.join("\n"))) }
}

/// What one file declares, by name, in Rust's notation.
#[derive(Default)]
pub(crate) struct Declarations {
    /// Constants.
    constants: BTreeMap<String, String>,
    /// Types that stand for another.
    aliases: BTreeMap<String, String>,
    /// The types of fields, by `Struct::field`.
    fields: BTreeMap<String, String>,
    /// The fields of a struct in their order, with their types.
    order: BTreeMap<String, Vec<(String, String)>>,
    /// What bindgen found: `Size of S`, `Offset of field: S::f`.
    layout: BTreeMap<String, u64>,
}

impl Declarations {
    pub(crate) fn parse(source: &str) -> syn::Result<Self> {
        let mut found = Self::default();
        for item in syn::parse_file(source)?.items {
            match item {
                Item::Const(item) if item.ident == "_" => found.layout(&item.expr),
                Item::Const(item) => {
                    found.constants.insert(item.ident.to_string(), text(&item.expr));
                }
                // Bindgen counts enums without a name through; they differ by that number alone.
                Item::Type(item) if !item.ident.to_string().starts_with("_bindgen_ty_") => {
                    found.aliases.insert(item.ident.to_string(), text(&item.ty));
                }
                Item::Struct(item) => found.fields(&item.ident.to_string(), item.fields.iter()),
                Item::Union(item) => {
                    found.fields(&item.ident.to_string(), item.fields.named.iter());
                }
                _ => {}
            }
        }
        Ok(found)
    }

    fn fields<'a>(&mut self, name: &str, fields: impl Iterator<Item = &'a syn::Field>) {
        for field in fields {
            if let Some(ident) = &field.ident {
                let ty = text(&field.ty);
                self.fields.insert(format!("{name}::{ident}"), ty.clone());
                self.order.entry(name.to_owned()).or_default().push((ident.to_string(), ty));
            }
        }
    }

    /// Reads bindgen's assertions: `["Size of S"][size_of::<S>() - 8usize];`.
    fn layout(&mut self, assertions: &Expr) {
        let Expr::Block(block) = assertions else { return };
        for statement in &block.block.stmts {
            if let Some((name, value)) = asserted(statement) {
                self.layout.insert(name, value);
            }
        }
    }

    /// The value of a constant.
    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        self.constants.get(name)?.parse().ok()
    }

    /// Bytes of a struct.
    pub(crate) fn size(&self, name: &str) -> Option<u64> {
        self.layout.get(&format!("Size of {name}")).copied()
    }

    /// Where a field is, of a struct or of a union in it.
    pub(crate) fn place(&self, field: &str) -> Option<u64> {
        self.field(field).map(|(place, _)| place)
    }

    fn offset(&self, field: &str) -> Option<u64> {
        self.layout.get(&format!("Offset of field: {field}")).copied()
    }

    /// Where a field is, and its type: that of the struct itself, or of a union in it, where newer
    /// headers have more than one name for the place.
    fn field(&self, name: &str) -> Option<(u64, &str)> {
        if let Some(ty) = self.fields.get(name) {
            return Some((self.offset(name)?, ty));
        }
        let (structure, field) = name.split_once("::")?;
        let anonymous = format!("{structure}::__bindgen_anon_");
        self.fields.iter().filter(|(name, _)| name.starts_with(&anonymous)).find_map(|(_, ty)| {
            let member = format!("{ty}::{field}");
            let place = self.place_of(structure, ty)? + self.offset(&member)?;
            Some((place, self.fields.get(&member)?.as_str()))
        })
    }

    /// Where a union without a name is: bindgen asserts its size and what follows it. What precedes
    /// it has been compared on its own.
    fn place_of(&self, structure: &str, union: &str) -> Option<u64> {
        let size = self.layout.get(&format!("Size of {union}"))?;
        let alignment = self.layout.get(&format!("Alignment of {union}"))?;
        let fields = self.order.get(structure)?;
        let at = fields.iter().position(|(_, ty)| ty == union)?;
        let next = self.offset(&format!("{structure}::{}", fields.get(at + 1)?.0))?;
        Some(next.checked_sub(*size)? / alignment * alignment)
    }

    /// Whether a type is one of `newer`. Those without a name are numbered by bindgen, so they are
    /// compared by what they hold.
    fn same_type(&self, mine: &str, newer: &Self, theirs: &str) -> bool {
        if !mine.contains("__bindgen_ty_") {
            return mine == theirs;
        }
        self.order.get(mine).is_some_and(|fields| {
            fields.iter().all(|(field, _)| {
                self.same_field(&format!("{mine}::{field}"), newer, &format!("{theirs}::{field}"))
            })
        })
    }

    fn same_field(&self, mine: &str, newer: &Self, theirs: &str) -> bool {
        match (self.field(mine), newer.field(theirs)) {
            (Some((here, mine)), Some((there, theirs))) => {
                here == there && self.same_type(mine, newer, theirs)
            }
            // Opaque structs have one private field, and no layout.
            (None, _) => true,
            _ => false,
        }
    }

    /// Everything in this one that the other one has not or has otherwise, in words.
    fn not_in(&self, newer: &Self) -> Vec<String> {
        let mut wrong = Vec::new();
        let pairs = |mine: &BTreeMap<String, String>, theirs: &BTreeMap<String, String>| {
            mine.iter()
                .filter(|(name, value)| theirs.get(*name) != Some(*value))
                .map(|(name, value)| format!("{name}: {value}, then {:?}", theirs.get(name)))
                .collect::<Vec<_>>()
        };
        let mut constants = self.constants.clone();
        // libfabric's own version is another one, of course.
        constants.retain(|name, _| !name.ends_with("_VERSION"));
        wrong.extend(pairs(&constants, &newer.constants));
        wrong.extend(pairs(&self.aliases, &newer.aliases));
        let named = |name: &&String| !name.contains("__bindgen_ty_");
        for name in self.fields.keys().filter(named) {
            if !self.same_field(name, newer, name) {
                wrong.push(format!("{name}: {:?}, then {:?}", self.field(name), newer.field(name)));
            }
        }
        for name in self.order.keys().filter(named) {
            let name = &format!("Size of {name}");
            let Some(size) = self.layout.get(name) else { continue };
            if newer.layout.get(name).is_none_or(|newer| newer < size) {
                wrong.push(format!("{name}: {size}, then {:?}", newer.layout.get(name)));
            }
        }
        wrong
    }
}

fn text(part: &impl ToTokens) -> String {
    part.to_token_stream().to_string()
}

/// What one of bindgen's assertions is about, and the value that it says.
fn asserted(statement: &Stmt) -> Option<(String, u64)> {
    let Stmt::Expr(Expr::Index(index), _) = statement else { return None };
    let (Expr::Array(name), Expr::Binary(difference)) = (&*index.expr, &*index.index) else {
        return None;
    };
    let (Expr::Lit(name), Expr::Lit(value)) = (name.elems.first()?, &*difference.right) else {
        return None;
    };
    let (Lit::Str(name), Lit::Int(value)) = (&name.lit, &value.lit) else { return None };
    Some((name.value(), value.base10_parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"
        pub const FI_READ: u64 = 256;
        pub type fi_progress = u32;
        #[repr(C)]
        pub struct fi_attr { pub mode: fi_progress, pub count: u32 }
        const _: () = {
            ["Size of fi_attr"][size_of::<fi_attr>() - 8usize];
            ["Offset of field: fi_attr::mode"][offset_of!(fi_attr, mode) - 0usize];
            ["Offset of field: fi_attr::count"][offset_of!(fi_attr, count) - 4usize];
        };
    "#;

    fn wrong(newer: &str) -> Vec<String> {
        let [older, newer] = [OLD, newer].map(|source| Declarations::parse(source).unwrap());
        older.not_in(&newer)
    }

    #[test]
    fn growth_at_the_end_and_new_names_are_allowed() {
        assert_eq!(wrong(OLD), [""; 0]);
        let grown = OLD
            .replace("count: u32 }", "count: u32, pub page: usize } pub const FI_NEW: u64 = 1;")
            .replace("- 8usize", "- 16usize");
        assert_eq!(wrong(&grown), [""; 0]);
    }

    #[test]
    fn a_field_may_move_into_a_union_at_its_place() {
        let moved = OLD
            .replace("pub mode: fi_progress", "pub __bindgen_anon_1: fi_attr__bindgen_ty_1")
            .replace(
                r#"["Offset of field: fi_attr::mode"][offset_of!(fi_attr, mode) - 0usize];"#,
                "",
            );
        let union = r#"
            pub union fi_attr__bindgen_ty_1 { pub mode: fi_progress, pub other: fi_progress }
            const _: () = {
                ["Size of fi_attr__bindgen_ty_1"][0 - 4usize];
                ["Alignment of fi_attr__bindgen_ty_1"][0 - 4usize];
                ["Offset of field: fi_attr__bindgen_ty_1::mode"][0 - 0usize];
                ["Offset of field: fi_attr__bindgen_ty_1::other"][0 - 0usize];
            };
        "#;
        assert_eq!(wrong(&format!("{moved}{union}")), [""; 0]);
        assert_eq!(wrong(&moved).len(), 1, "a union without the field");
    }

    #[test]
    fn every_other_change_is_found() {
        for (what, old, new) in [
            ("a value", "u64 = 256", "u64 = 257"),
            ("a constant gone", "FI_READ", "FI_REED"),
            ("an alias", "fi_progress = u32", "fi_progress = u64"),
            ("a type", "count: u32", "count: i32"),
            ("a place", "count) - 4usize", "count) - 8usize"),
            ("a size", "- 8usize", "- 4usize"),
        ] {
            assert_eq!(wrong(&OLD.replace(old, new)).len(), 1, "{what}");
        }
    }
}
