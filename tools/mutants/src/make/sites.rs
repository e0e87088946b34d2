//! Sites: the places of a file that can be changed, and how.

use std::collections::HashSet;
use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, UnOp};

use crate::make::sources::{Source, is_test};
use crate::make::values;
use crate::mutant::{Id, Mutant, State};

/// Bytes of a file.
pub(crate) type Bytes = Range<usize>;

/// A place that is written anew. Places are inside one another, or have no byte in common.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) place: Bytes,
    pub(crate) shape: Shape,
    pub(crate) mutants: Vec<Id>,
}

/// What is at a site. Alternatives are those of its mutants, in their order.
#[derive(Debug)]
pub(crate) enum Shape {
    /// An operator that looks at its operands.
    Compare { left: Bytes, right: Bytes, operator: &'static str, others: &'static [&'static str] },
    /// An operator that takes its operands.
    Compute { left: Bytes, right: Bytes, operator: &'static str, others: &'static [&'static str] },
    /// `&&`, or `||`.
    Connect { left: Bytes, right: Bytes, and: bool },
    /// Such as `+=`.
    Assign { left: Bytes, right: Bytes, operator: &'static str, others: &'static [&'static str] },
    /// `!` or `-`, which is left out.
    Prefix { operand: Bytes, operator: &'static str },
    /// The beginning of a function, which returns one of these values.
    Body { values: Vec<String> },
    /// The end of a pattern without a guard, whose arm is left out.
    Arm,
    /// The guard of an arm, which is true, is false, or whose arm is left out, which is the same.
    Guard,
    /// A field whose value is that of the structure that the others are from.
    Field { name: String, shorthand: bool, rest: String },
}

/// What is found in a file, behind what was found before.
pub(crate) fn find(
    source: &Source,
    in_constants: &HashSet<String>,
    mutants: &mut Vec<Mutant>,
) -> Vec<Site> {
    let mut finder = Finder {
        source,
        in_constants,
        mutants,
        sites: Vec::new(),
        owner: String::new(),
        function: String::new(),
        left_out: false,
        values: true,
    };
    finder.visit_file(&source.syntax);
    finder.sites
}

struct Finder<'a> {
    source: &'a Source,
    in_constants: &'a HashSet<String>,
    mutants: &'a mut Vec<Mutant>,
    sites: Vec<Site>,
    /// The type or the trait that is implemented.
    owner: String,
    function: String,
    /// Constants are computed here.
    left_out: bool,
    /// Functions here may return other values.
    values: bool,
}

impl Finder<'_> {
    fn add(&mut self, at: Span, place: Bytes, shape: Shape, changes: Vec<String>) {
        let state = if self.left_out { State::LeftOut } else { State::Built };
        let first = self.mutants.len();
        let start = at.start();
        self.mutants.extend(changes.into_iter().map(|change| Mutant {
            file: self.source.path.display().to_string(),
            line: start.line,
            column: start.column + 1,
            function: self.function.clone(),
            change,
            state,
        }));
        if !self.left_out {
            self.sites.push(Site { place, shape, mutants: (first..self.mutants.len()).collect() });
        }
    }

    fn inside(&mut self, left_out: bool, visit: impl FnOnce(&mut Self)) {
        let outer = self.left_out;
        self.left_out |= left_out;
        visit(self);
        self.left_out = outer;
    }

    fn function(
        &mut self,
        signature: &syn::Signature,
        block: &syn::Block,
        visit: impl FnOnce(&mut Self),
    ) {
        let name = signature.ident.to_string();
        let constant = signature.constness.is_some() && self.in_constants.contains(&name);
        let path = if self.owner.is_empty() { name } else { format!("{}::{name}", self.owner) };
        let outer = std::mem::replace(&mut self.function, path);
        self.inside(constant, |this| {
            if this.values && signature.unsafety.is_none() && !block.stmts.is_empty() {
                this.body(signature, block);
            }
            visit(this);
        });
        self.function = outer;
    }

    fn body(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let open = block.brace_token.span.open();
        let inside = open.byte_range().end..block.brace_token.span.close().byte_range().start;
        let now = self.source.text[inside.clone()].trim();
        let values: Vec<_> =
            values::of(&signature.output).into_iter().filter(|value| value != now).collect();
        let change = |value: &String| match value.as_str() {
            "" => "return at once".to_owned(),
            value => format!("return {value}"),
        };
        let changes = values.iter().map(change).collect();
        if !values.is_empty() {
            self.add(
                block.stmts[0].span(),
                inside.start..inside.start,
                Shape::Body { values },
                changes,
            );
        }
    }

    fn impl_of(&mut self, owner: String, values: bool, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.owner, owner);
        self.values = values;
        visit(self);
        self.values = true;
        self.owner = outer;
    }
}

/// The operator as text, and what it may become instead.
type Operators = (&'static str, &'static [&'static str]);

fn compared(operator: &BinOp) -> Option<Operators> {
    Some(match operator {
        BinOp::Eq(_) => ("==", &["!="]),
        BinOp::Ne(_) => ("!=", &["=="]),
        BinOp::Lt(_) => ("<", &["==", ">", "<="]),
        BinOp::Gt(_) => (">", &["==", "<", ">="]),
        BinOp::Le(_) => ("<=", &[">", "<"]),
        BinOp::Ge(_) => (">=", &["<", ">"]),
        _ => return None,
    })
}

fn computed(operator: &BinOp) -> Option<Operators> {
    Some(match operator {
        BinOp::Add(_) => ("+", &["-", "*"]),
        BinOp::Sub(_) => ("-", &["+", "/"]),
        BinOp::Mul(_) => ("*", &["+", "/"]),
        BinOp::Div(_) => ("/", &["%", "*"]),
        BinOp::Rem(_) => ("%", &["/", "+"]),
        BinOp::Shl(_) => ("<<", &[">>"]),
        BinOp::Shr(_) => (">>", &["<<"]),
        BinOp::BitAnd(_) => ("&", &["|", "^"]),
        // `^` is the same where parts that have no bits in common are put together, which is what
        // `|` is for here.
        BinOp::BitOr(_) => ("|", &["&"]),
        BinOp::BitXor(_) => ("^", &["|", "&"]),
        _ => return None,
    })
}

fn assigned(operator: &BinOp) -> Option<Operators> {
    Some(match operator {
        BinOp::AddAssign(_) => ("+=", &["-=", "*="]),
        BinOp::SubAssign(_) => ("-=", &["+=", "/="]),
        BinOp::MulAssign(_) => ("*=", &["+=", "/="]),
        BinOp::DivAssign(_) => ("/=", &["%=", "*="]),
        BinOp::RemAssign(_) => ("%=", &["/=", "+="]),
        BinOp::ShlAssign(_) => ("<<=", &[">>="]),
        BinOp::ShrAssign(_) => (">>=", &["<<="]),
        BinOp::BitAndAssign(_) => ("&=", &["|="]),
        BinOp::BitOrAssign(_) => ("|=", &["&="]),
        BinOp::BitXorAssign(_) => ("^=", &["|=", "&="]),
        _ => return None,
    })
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let mut owner = self.source.text[item.self_ty.span().byte_range()].to_owned();
        let mut values = true;
        if let Some((_, path, _)) = &item.trait_ {
            let name = path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
            // What is shown to programmers, and what would call itself.
            values = name != "Debug" && name != "Default";
            owner = format!("<{name} for {owner}>");
        }
        self.impl_of(owner, values, |this| visit::visit_item_impl(this, item));
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        self.impl_of(item.ident.to_string(), true, |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig, &item.block, |this| visit::visit_block(this, &item.block));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig, &item.block, |this| visit::visit_block(this, &item.block));
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block, |this| visit::visit_block(this, block));
        }
    }

    inside! {
        visit_item_const: ItemConst, visit_impl_item_const: ImplItemConst,
        visit_trait_item_const: TraitItemConst, visit_item_static: ItemStatic,
        visit_expr_const: ExprConst, visit_variant: Variant, visit_type: Type,
        visit_generic_argument: GenericArgument, visit_pat: Pat
    }

    fn visit_expr_repeat(&mut self, repeat: &'a syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.inside(true, |this| this.visit_expr(&repeat.len));
    }

    fn visit_expr_binary(&mut self, expr: &'a syn::ExprBinary) {
        let place = expr.span().byte_range();
        let (left, right) = (expr.left.span().byte_range(), expr.right.span().byte_range());
        let replaced = |operator: &str, others: &[&str]| {
            others.iter().map(|other| format!("replace {operator} with {other}")).collect()
        };
        let found = if let Some((operator, others)) = compared(&expr.op) {
            Some((Shape::Compare { left, right, operator, others }, replaced(operator, others)))
        } else if let Some((operator, others)) = computed(&expr.op) {
            Some((Shape::Compute { left, right, operator, others }, replaced(operator, others)))
        } else if let Some((operator, others)) = assigned(&expr.op) {
            Some((Shape::Assign { left, right, operator, others }, replaced(operator, others)))
        } else if let BinOp::And(_) = expr.op {
            Some((Shape::Connect { left, right, and: true }, replaced("&&", &["||"])))
        } else if let BinOp::Or(_) = expr.op {
            Some((Shape::Connect { left, right, and: false }, replaced("||", &["&&"])))
        } else {
            None
        };
        if let Some((shape, changes)) = found {
            self.add(expr.op.span(), place, shape, changes);
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'a syn::ExprUnary) {
        let operator = match expr.op {
            UnOp::Not(_) => "!",
            // A number with its sign is one number.
            UnOp::Neg(_) if !matches!(*expr.expr, Expr::Lit(_)) => "-",
            _ => return visit::visit_expr_unary(self, expr),
        };
        let operand = expr.expr.span().byte_range();
        let shape = Shape::Prefix { operand, operator };
        self.add(
            expr.op.span(),
            expr.span().byte_range(),
            shape,
            vec![format!("delete {operator}")],
        );
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'a syn::ExprMatch) {
        let wild = |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none();
        let has_wild = expr.arms.iter().any(wild);
        for arm in &expr.arms {
            let pattern = arm.pat.span();
            let short: String = self.source.text[pattern.byte_range()].chars().take(60).collect();
            let deleted = format!(
                "delete match arm {}",
                short.split_whitespace().collect::<Vec<_>>().join(" ")
            );
            if let Some((_, guard)) = &arm.guard {
                let changes =
                    vec!["replace guard with true".into(), "replace guard with false".into()];
                self.add(guard.span(), guard.span().byte_range(), Shape::Guard, changes);
            } else if has_wild && !wild(arm) {
                let end = pattern.byte_range().end;
                self.add(pattern, end..end, Shape::Arm, vec![deleted]);
            }
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_expr_struct(&mut self, expr: &'a syn::ExprStruct) {
        if let Some(rest) = &expr.rest {
            let text = &self.source.text;
            let path = &text[expr.path.span().byte_range()];
            let rest = match &text[rest.span().byte_range()] {
                "Default::default()" => format!("<{path}>::default()"),
                rest => format!("({rest})"),
            };
            for field in &expr.fields {
                let syn::Member::Named(name) = &field.member else { continue };
                let shorthand = field.colon_token.is_none();
                let change = vec![format!("delete field {name}")];
                let place = field.expr.span().byte_range();
                let shape = Shape::Field { name: name.to_string(), shorthand, rest: rest.clone() };
                self.add(name.span(), place, shape, change);
            }
        }
        visit::visit_expr_struct(self, expr);
    }
}
