//! The files of a part: those that its modules name, without tests.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item};

use crate::error::{Error, Result, read};

/// One file, as text and as syntax.
pub(crate) struct Source {
    /// Relative to the root of the workspace.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) syntax: syn::File,
}

/// A module and those below it, except for those whose files begin with one of `except`.
pub(crate) fn modules(path: &Path, except: &[PathBuf]) -> Result<Vec<Source>> {
    let text = read(path)?;
    let syntax = parse(path, &text)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let below = match path.file_stem().and_then(|stem| stem.to_str()) {
        None | Some("mod" | "lib" | "main") => folder.to_owned(),
        Some(name) => folder.join(name),
    };
    let mut children = Vec::new();
    for item in &syntax.items {
        let Item::Mod(module) = item else { continue };
        if module.content.is_some() || is_test(&module.attrs) {
            continue;
        }
        let name = module.ident.to_string();
        let file = below.join(format!("{name}.rs"));
        let child = if file.exists() { file } else { below.join(name).join("mod.rs") };
        if !except.iter().any(|except| child.starts_with(except)) {
            children.extend(modules(&child, except)?);
        }
    }
    children.insert(0, Source { path: path.to_owned(), text, syntax });
    Ok(children)
}

pub(crate) fn parse(path: &Path, text: &str) -> Result<syn::File> {
    syn::parse_file(text).map_err(|source| Error::Syntax { path: path.to_owned(), source })
}

/// Whether what has these attributes is for tests only.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
    })
}

/// The names of all that constants are computed by, in these files: functions of these names stay
/// `const`.
pub(crate) fn in_constants(files: &[syn::File]) -> HashSet<String> {
    let mut names = Names::default();
    loop {
        let before = names.found.len();
        files.iter().for_each(|file| names.visit_file(file));
        if names.found.len() == before {
            return names.found;
        }
    }
}

#[derive(Default)]
struct Names {
    found: HashSet<String>,
    constant: bool,
}

impl Names {
    fn inside(&mut self, constant: bool, visit: impl FnOnce(&mut Self)) {
        let outer = self.constant;
        self.constant |= constant;
        visit(self);
        self.constant = outer;
    }

    fn function(&mut self, signature: &syn::Signature, visit: impl FnOnce(&mut Self)) {
        let kept = signature.constness.is_some();
        let kept = kept && self.found.contains(&signature.ident.to_string());
        self.inside(kept, visit);
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_ident(&mut self, ident: &'a syn::Ident) {
        if self.constant {
            self.found.insert(ident.to_string());
        }
    }

    fn visit_macro(&mut self, inside: &'a syn::Macro) {
        if self.constant {
            tokens(inside.tokens.clone(), &mut self.found);
        }
    }

    inside! {
        visit_item_const: ItemConst, visit_impl_item_const: ImplItemConst,
        visit_trait_item_const: TraitItemConst, visit_item_static: ItemStatic,
        visit_expr_const: ExprConst
    }

    fn visit_type_array(&mut self, array: &'a syn::TypeArray) {
        self.visit_type(&array.elem);
        self.inside(true, |this| this.visit_expr(&array.len));
    }

    fn visit_expr_repeat(&mut self, repeat: &'a syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.inside(true, |this| this.visit_expr(&repeat.len));
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.function(&item.sig, |this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.function(&item.sig, |this| visit::visit_impl_item_fn(this, item));
    }
}

fn tokens(stream: proc_macro2::TokenStream, found: &mut HashSet<String>) {
    for token in stream {
        match token {
            proc_macro2::TokenTree::Ident(ident) => {
                found.insert(ident.to_string());
            }
            proc_macro2::TokenTree::Group(group) => tokens(group.stream(), found),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_constants_are_computed_by_is_found_through_others() {
        let file = syn::parse_str(
            "const A: usize = twice(1); const fn twice(n: usize) -> usize { once(n) * 2 }
             const fn once(n: usize) -> usize { n } const fn never(n: usize) -> usize { other(n) }",
        );
        let found = in_constants(&[file.expect("Rust")]);
        assert!(found.contains("twice") && found.contains("once"));
        assert!(!found.contains("other"));
    }
}
