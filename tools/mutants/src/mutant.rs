//! A mutant: one small change, where it is, what came of it, and how lists name it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// Names a mutant: its place in the list of a kit.
pub(crate) type Id = usize;

/// What became of a mutant when the tests were built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum State {
    /// It is in the test programs.
    Built,
    /// It does not compile.
    Unviable,
    /// It would be in code that constants are computed by.
    LeftOut,
}

/// One small change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mutant {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) function: String,
    pub(crate) change: String,
    pub(crate) state: State,
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, line, column, function, change, .. } = self;
        write!(f, "{file}:{line}:{column}: {change} in {function}")
    }
}

/// What came of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A test failed.
    Caught(String),
    /// A test did not end.
    Timeout(String),
    /// So many tests reach it, and of them so many were run, and passed.
    Missed { reach: usize, ran: usize },
}

/// The mutants that lines of a list name: for each the nearest that changes the same in the same
/// function, at the same place of its line.
pub(crate) fn listed(mutants: &[Mutant], list: &str) -> HashSet<Id> {
    let named = |line: &str| {
        let (at, what) = line.split_once(": ")?;
        let what = what.rsplit_once(" [").map_or(what, |(what, _)| what);
        let mut at = at.rsplitn(3, ':');
        let mut number = || at.next()?.parse::<usize>().ok();
        let (column, line) = (number()?, number()?);
        let file = at.next()?;
        let is_same = |mutant: &(Id, &Mutant)| {
            let Mutant { function, change, .. } = mutant.1;
            mutant.1.file == file
                && mutant.1.column == column
                && what.strip_prefix(change.as_str()) == Some(&format!(" in {function}"))
        };
        let away = |mutant: &(Id, &Mutant)| usize::abs_diff(mutant.1.line, line);
        mutants.iter().enumerate().filter(is_same).min_by_key(away).map(|(id, _)| id)
    };
    list.lines().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_mutants_that_have_moved() {
        let mutant = |line, column, change: &str| Mutant {
            file: "src/a.rs".into(),
            line,
            column,
            function: "A<P>::f".into(),
            change: change.into(),
            state: State::Built,
        };
        let mutants = [
            mutant(10, 5, "replace < with <="),
            mutant(30, 5, "replace < with <="),
            mutant(30, 9, "replace < with <="),
            mutant(30, 5, "replace < with >"),
        ];
        let list = "src/a.rs:27:5: replace < with <= in A<P>::f [7; 3 tests reach it]\n\
            src/a.rs:31:5: replace < with > in A<P>::f\n\
            src/b.rs:10:5: replace < with <= in A<P>::f\n\
            src/a.rs:10:5: replace < with <= in B::f\nnothing\n";
        assert_eq!(listed(&mutants, list), HashSet::from([1, 3]));
    }
}
