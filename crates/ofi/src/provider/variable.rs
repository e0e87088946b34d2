use libfabric_sys::Version;

use super::fact::Fact;

/// Environment variable set for a provider before libfabric is asked, unless the user has set it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) value: Fact<Wanted>,
    pub(crate) for_devices: bool,
    /// First libfabric that has it, if not all do.
    pub(crate) since: Option<Version>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    Text(&'static str),
    /// Number of endpoints connected with one of ours, if known, within soft RoCE's capacity.
    Connections,
}

impl Variable {
    /// Creates a variable of any version, for any memory.
    pub(super) const fn new(name: &'static str, value: Fact<Wanted>) -> Self {
        Self { name, value, for_devices: false, since: None }
    }

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
