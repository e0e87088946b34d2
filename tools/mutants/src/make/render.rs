//! A file with all its mutants, each behind a condition. No operand is evaluated twice, or is in
//! the code twice.

use std::ops::Range;

use crate::make::sites::{Bytes, Shape, Site};
use crate::mutant::Id;

/// The file, and which of its bytes are there for which mutants.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) owners: Vec<(Range<usize>, Vec<Id>)>,
}

/// A file with those of its mutants that are `built`.
pub(crate) fn render(text: &str, sites: &[Site], built: &dyn Fn(Id) -> bool) -> Rendered {
    // A site inside another comes behind it; of those with the same bytes the outer was found
    // first.
    let mut order: Vec<_> = sites.iter().collect();
    order.sort_by_key(|site| (site.place.start, std::cmp::Reverse(site.place.end)));
    let mut renderer = Renderer { text, sites: order, built, done: Rendered::default() };
    renderer.source(0..text.len(), 0);
    renderer.done
}

struct Renderer<'a> {
    text: &'a str,
    sites: Vec<&'a Site>,
    built: &'a dyn Fn(Id) -> bool,
    done: Rendered,
}

impl Renderer<'_> {
    /// Bytes of the source, with the sites inside from the given one on.
    fn source(&mut self, bytes: Bytes, from: usize) {
        let mut at = bytes.start;
        let mut next = from;
        while let Some(site) = self.sites.get(next).copied() {
            if site.place.end > bytes.end {
                break;
            }
            let here = next;
            next += 1;
            if site.place.start < at {
                // It is inside one that is written already, or in text that is left out.
                continue;
            }
            self.done.text.push_str(&self.text[at..site.place.start]);
            let start = self.done.text.len();
            self.site(site, here + 1);
            let live: Vec<_> =
                site.mutants.iter().copied().filter(|id| (self.built)(*id)).collect();
            if !live.is_empty() {
                self.done.owners.push((start..self.done.text.len(), live));
            }
            at = site.place.end;
            while self
                .sites
                .get(next)
                .is_some_and(|inner| inner.place.end <= at && inner.place.start < at)
            {
                next += 1;
            }
        }
        self.done.text.push_str(&self.text[at..bytes.end]);
    }

    fn site(&mut self, site: &Site, next: usize) {
        let is_built = |id: &Id| (self.built)(*id);
        let live = site
            .mutants
            .iter()
            .copied()
            .zip(0..)
            .filter(|(id, _)| is_built(id))
            .collect::<Vec<_>>();
        if live.is_empty() {
            return self.source(site.place.clone(), next);
        }
        match &site.shape {
            Shape::Compare { left, right, operator, others }
            | Shape::Compute { left, right, operator, others } => {
                // What is compared is looked at, and what is computed with is moved.
                let is_compared = matches!(site.shape, Shape::Compare { .. });
                let (borrow, star) = if is_compared { ("&", "*") } else { ("", "") };
                let written = |operator: &str| format!("{star}__l {operator} {star}__r");
                self.put(&format!("(match ({borrow}("));
                self.source(left.clone(), next);
                self.put(&format!("), {borrow}("));
                self.source(right.clone(), next);
                self.put(")) { (__l, __r) => ");
                self.choice(&live, |at| written(others[at]), &written(operator));
                self.put(" })");
            }
            Shape::Connect { left, right, and } => {
                let not = if *and { "" } else { "!" };
                self.put(&format!("({{ let __m = {not}{}; if (", on(live[0].0)));
                self.source(left.clone(), next);
                self.put(") == __m { __m } else { ");
                self.source(right.clone(), next);
                self.put(" } })");
            }
            Shape::Assign { left, right, operator, others } => {
                let written = |operator: &str| format!("*__l {operator} __r");
                self.put("(match (");
                self.source(right.clone(), next);
                self.put(") { __r => { let __l = &mut (");
                self.source(left.clone(), next);
                self.put("); ");
                self.choice(&live, |at| written(others[at]), &written(operator));
                self.put(" } })");
            }
            Shape::Prefix { operand, operator } => {
                self.put("(match (");
                self.source(operand.clone(), next);
                self.put(") { __v => ");
                self.choice(&live, |_| "__v".to_owned(), &format!("{operator}__v"));
                self.put(" })");
            }
            Shape::Body { values } => {
                for (id, at) in live {
                    let text = format!(" if {} {{ return {}; }}", on(id), values[at]);
                    self.owned(id, &text);
                }
            }
            Shape::Arm => {
                self.put(&format!(" if !{}", on(live[0].0)));
            }
            Shape::Guard => {
                let [become_true, become_false] = [0, 1].map(|which| {
                    live.iter()
                        .find(|(_, at)| *at == which)
                        .map_or("false".to_owned(), |(id, _)| on(*id))
                });
                self.put(&format!("({become_true} || ("));
                self.source(site.place.clone(), next);
                self.put(&format!(")) && !{become_false}"));
            }
            Shape::Field { name, shorthand, rest } => {
                let label = if *shorthand { format!("{name}: ") } else { String::new() };
                self.put(&format!("{label}(if {} {{ ", on(live[0].0)));
                self.owned(live[0].0, &format!("{rest}.{name}"));
                self.put(" } else { ");
                self.source(site.place.clone(), next);
                self.put(" })");
            }
        }
    }

    /// What one of the mutants does, if it is on, or what the code does.
    fn choice(&mut self, live: &[(Id, usize)], other: impl Fn(usize) -> String, plain: &str) {
        for (id, at) in live {
            self.put(&format!("if {} {{ ", on(*id)));
            self.owned(*id, &other(*at));
            self.put(" } else ");
        }
        self.put(&format!("{{ {plain} }}"));
    }

    fn put(&mut self, text: &str) {
        self.done.text.push_str(text);
    }

    fn owned(&mut self, id: Id, text: &str) {
        let start = self.done.text.len();
        self.put(text);
        self.done.owners.push((start..self.done.text.len(), vec![id]));
    }
}

fn on(id: Id) -> String {
    format!("crate::mutants::on({id})")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::PathBuf;

    use super::*;
    use crate::make::sites;
    use crate::make::sources::{Source, parse};

    fn rendered(text: &str, built: &dyn Fn(Id) -> bool) -> (String, Vec<String>) {
        let path = PathBuf::from("a.rs");
        let syntax = parse(&path, text).expect("Rust");
        let source = Source { path, text: text.to_owned(), syntax };
        let mut mutants = Vec::new();
        let sites = sites::find(&source, &HashSet::new(), &mut mutants);
        let done = render(text, &sites, built).text.replace("crate::mutants::on", "on");
        syn::parse_file(&done).expect(&done);
        (done, mutants.into_iter().map(|mutant| mutant.change).collect())
    }

    #[test]
    fn sites_inside_sites_are_written_too() {
        let (text, changes) = rendered("fn f() { a == b && !c }", &|id| id != 0);
        assert_eq!(
            changes,
            ["return at once", "replace && with ||", "replace == with !=", "delete !"]
        );
        let left = "(match (&(a), &(b)) { (__l, __r) => if on(2) { *__l != *__r } else { *__l == *__r } })";
        let right = "(match (c) { __v => if on(3) { __v } else { !__v } })";
        assert_eq!(
            text,
            format!(
                "fn f() {{ ({{ let __m = on(1); if ({left}) == __m {{ __m }} else {{ {right} }} }}) }}"
            )
        );
    }

    #[test]
    fn what_is_not_built_leaves_the_code_as_it_is() {
        let text = "fn f(x: u8) -> u8 { match x { 1 => 2, y if y > 3 => -y, _ => x + 1 * 3 } }";
        let (done, changes) = rendered(text, &|_| false);
        assert_eq!(done, text);
        assert!(changes.len() > 10, "{changes:?}");
    }

    #[test]
    fn every_shape_is_rust() {
        let (text, _) = rendered(
            "fn f(x: &mut S) -> bool { x.n[i + 1] += g(1 - y); match *x { A => {} B if b || c => {} _ => {} }
             let s = S { a, b: 1 + 2, ..Default::default() }; true }",
            &|_| true,
        );
        assert!(text.contains("a: (if on("), "{text}");
        assert!(text.contains("{ __r => { let __l = &mut (x.n["), "{text}");
        assert!(text.contains("A if !on("), "{text}");
    }

    #[test]
    fn patterns_types_and_constants_are_left_alone() {
        let text = "const A: u8 = 1 + 2; fn f() { let _: [u8; 2 * 2] = [0; 3 * 3]; match x { -1 => (), _ => () } }";
        let (_, changes) = rendered(text, &|_| true);
        assert_eq!(changes[..2], ["replace + with -", "replace + with *"]);
        assert!(rendered(text, &|_| true).0.contains("const A: u8 = 1 + 2;"));
    }
}
