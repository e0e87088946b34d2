//! What variables of other transports' recipes do here, by the tables in `docs/environments`.

use std::env;

use super::{Check, Row, note, ok};
use crate::info::Info;

const PAGES: [&str; 4] = [
    include_str!("../../../../docs/environments/README.md"),
    include_str!("../../../../docs/environments/efa.md"),
    include_str!("../../../../docs/environments/slingshot.md"),
    include_str!("../../../../docs/environments/roce-infiniband.md"),
];

pub(super) fn checks(_info: &Info) -> Vec<Row> {
    let set: Vec<_> = env::vars_os()
        .map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()))
        .collect();
    vec![("recipes", explain(&set))]
}

fn explain(set: &[[String; 2]]) -> Check {
    let mut known = Vec::new();
    for (names, ours, why) in PAGES.iter().flat_map(|page| rows(page)) {
        let is_meant = |set: &&[String; 2]| names.iter().any(|name| matches(name, &set[0]));
        let does =
            |[name, value]: &[String; 2]| format!("{name}={value} (this transport: {ours}): {why}");
        known.extend(set.iter().filter(is_meant).map(does));
    }
    known.sort();
    if known.is_empty() {
        return ok("no variable of another transport's recipes is set");
    }
    note("variables of other transports' recipes are set").details(known)
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |start| name.starts_with(start))
}

/// The rows of tables of variables: their names, what becomes of them here, and why.
fn rows(page: &'static str) -> impl Iterator<Item = (Vec<&'static str>, String, String)> {
    let mut in_table = false;
    page.lines().filter_map(move |line| {
        in_table = line.starts_with("| variable |") || in_table && line.starts_with('|');
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [names, .., ours, why] = cells[..] else { return None };
        let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        (in_table && !names.is_empty()).then(|| (names, plain(ours), plain(why)))
    })
}

fn plain(cell: &str) -> String {
    let mut parts = cell.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, l)| l));
    text.replace(['[', '`'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_recipes_are_explained() {
        for (name, says) in [
            (
                "FI_EFA_FORK_SAFE",
                "FI_EFA_FORK_SAFE=1 (this transport: left): needed before Linux 5.13; ",
            ),
            ("NVSHMEM_IB_SL", "NVSHMEM_IB_SL=1 (this transport: ignored): "),
            ("FI_CXI_RX_MATCH_MODE", "FI_CXI_RX_MATCH_MODE=1 (this transport: hybrid): "),
        ] {
            let check = explain(&[[name, "1"], ["HOME", "/"]].map(|pair| pair.map(String::from)));
            assert!(matches!(&check.details[..], [said] if said.starts_with(says)), "{check:?}");
        }
        assert!(explain(&[]).details.is_empty());
        let mut rows = PAGES.iter().flat_map(|page| rows(page));
        assert!(rows.all(|(_, ours, why)| !ours.is_empty() && !why.is_empty()));
    }
}
