//! A discrepancy: what an audit finds where something is counted otherwise than it is. See
//! [`Lane::audit`](crate::lane::Lane::audit).

use std::fmt::Debug;

/// A count, or a list, that differs from what it is of.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}: {kept} kept, {found} found")]
pub struct Discrepancy {
    what: String,
    kept: String,
    found: String,
}

impl Discrepancy {
    pub(crate) fn of(self, whose: impl std::fmt::Display) -> Self {
        Self { what: format!("{} of {whose}", self.what), ..self }
    }
}

pub(crate) fn same<T: PartialEq + Debug>(what: &str, kept: T, found: T) -> Result<(), Discrepancy> {
    if kept == found {
        return Ok(());
    }
    let (kept, found) = (format!("{kept:?}"), format!("{found:?}"));
    Err(Discrepancy { what: what.to_owned(), kept, found })
}
