//! A variable of the environment that a provider reads, and the value that is right for us.

use libfabric_sys::Version;

use super::fact::Fact;

/// Environment variable set for a provider before libfabric is asked, unless the user has set it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) value: Fact<Wanted>,
    pub(crate) for_devices: bool,
    /// The libfabric that has it first, if some have it not.
    pub(crate) since: Option<Version>,
}

/// The value that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// Always this one.
    Text(&'static str),
    /// How many endpoints one of ours is connected with, if known, as far as soft RoCE has room.
    Connections,
}

impl Variable {
    /// One of any version, for any memory.
    pub(super) const fn new(name: &'static str, value: Fact<Wanted>) -> Self {
        Self { name, value, for_devices: false, since: None }
    }

    /// One that libfabric's sources are about.
    pub(super) const fn code(
        name: &'static str,
        wanted: Wanted,
        why: &'static str,
        files: &'static str,
    ) -> Self {
        Self::new(name, Fact::code(wanted, why, files))
    }

    pub(super) const fn for_devices(self) -> Self {
        Self { for_devices: true, ..self }
    }

    pub(super) const fn since(self, version: Version) -> Self {
        Self { since: Some(version), ..self }
    }
}
