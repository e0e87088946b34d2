//! The layouts by name, and which releases of NVSHMEM have them.

use std::fmt;

/// What is recorded about a layout. Generated from the test data.
struct Facts {
    name: &'static str,
    api_version: i32,
    soname: &'static str,
    size: usize,
    releases: &'static [&'static str],
}

mod checked {
    //! Generated: one assertion per recorded size, offset and constant, and the facts.
    #![allow(clippy::unnecessary_cast)]

    use super::Facts;
    use crate::c::*;

    /// Size of the field that the closure selects.
    #[allow(dead_code)] // Rust 1.85 does not see the uses in constants.
    const fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
        size_of::<F>()
    }

    include!(concat!(env!("OUT_DIR"), "/layouts.rs"));
}

/// A memory layout of the interface, with the calling sequences that belong to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layout {
    /// NVSHMEM 3.0 to 3.2: six arguments of `get_mem_handle`, no C++ maps.
    V3a,
    /// NVSHMEM 3.3 and 3.4.
    V3b,
    /// NVSHMEM 3.5: operations at the end, `put_signal`, queue pairs.
    V4,
    /// NVSHMEM 3.6: as [`Layout::V4`].
    V5,
    /// NVSHMEM 3.7: 20-byte atomic verb, `rma_with_hints`.
    V6,
    /// NVSHMEM 3.8: `region_flush`.
    V7,
}

impl Layout {
    /// All layouts, oldest first.
    pub const ALL: [Layout; 6] =
        [Layout::V3a, Layout::V3b, Layout::V4, Layout::V5, Layout::V6, Layout::V7];

    const fn facts(self) -> &'static Facts {
        match self {
            Layout::V3a => &checked::LAYOUT_3A,
            Layout::V3b => &checked::LAYOUT_3B,
            Layout::V4 => &checked::LAYOUT_4,
            Layout::V5 => &checked::LAYOUT_5,
            Layout::V6 => &checked::LAYOUT_6,
            Layout::V7 => &checked::LAYOUT_7,
        }
    }

    /// The short name: `3a`, `3b`, `4`, `5`, `6` or `7`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The layout of that short name.
    pub fn from_name(name: &str) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.name() == name)
    }

    /// The version that such a host passes to `nvshmemt_init`. 3a and 3b pass the same.
    pub const fn api_version(self) -> i32 {
        self.facts().api_version
    }

    /// The file that such a host opens, which is also the plugin's `DT_SONAME`.
    pub const fn soname(self) -> &'static str {
        self.facts().soname
    }

    /// Bytes of the transport structure. The host touches no more than these.
    pub const fn transport_size(self) -> usize {
        self.facts().size
    }

    /// The releases of NVSHMEM whose layout was checked.
    pub const fn releases(self) -> &'static [&'static str] {
        self.facts().releases
    }

    /// The major version, which is all that `nvshmemt_init` is told.
    pub const fn major(self) -> Major {
        match self {
            Layout::V3a | Layout::V3b => Major::V3,
            Layout::V4 => Major::V4,
            Layout::V5 => Major::V5,
            Layout::V6 => Major::V6,
            Layout::V7 => Major::V7,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Major part of an api_version. It names a layout except for 3, which may be either of two: tell
/// them apart by where `get_mem_handle` finds the transport among its arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Major {
    /// [`Layout::V3a`] or [`Layout::V3b`].
    V3,
    /// [`Layout::V4`].
    V4,
    /// [`Layout::V5`].
    V5,
    /// [`Layout::V6`].
    V6,
    /// [`Layout::V7`].
    V7,
}

impl Major {
    /// All majors, oldest first.
    pub const ALL: [Major; 5] = [Major::V3, Major::V4, Major::V5, Major::V6, Major::V7];

    /// The major version in the `api_version` that the host passed.
    ///
    /// # Errors
    /// A version of no known layout. A newer major is refused too, since each one so far moved
    /// something.
    pub fn from_api_version(api_version: i32) -> Result<Major, UnsupportedApi> {
        Major::ALL
            .into_iter()
            .find(|major| major.number() == api_version / 10000)
            .ok_or(UnsupportedApi { api_version })
    }

    /// The number: 3 to 7.
    pub const fn number(self) -> i32 {
        match self {
            Major::V3 => 3,
            Major::V4 => 4,
            Major::V5 => 5,
            Major::V6 => 6,
            Major::V7 => 7,
        }
    }

    /// The layouts that share this number.
    pub const fn layouts(self) -> &'static [Layout] {
        match self {
            Major::V3 => &[Layout::V3a, Layout::V3b],
            Major::V4 => &[Layout::V4],
            Major::V5 => &[Layout::V5],
            Major::V6 => &[Layout::V6],
            Major::V7 => &[Layout::V7],
        }
    }
}

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

/// The host's api_version has no known layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnsupportedApi {
    /// What the host passed.
    pub api_version: i32,
}

impl fmt::Display for UnsupportedApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "api_version {} is not supported; supported are 30000 to 79999, the NVSHMEM releases",
            self.api_version
        )?;
        for layout in Layout::ALL {
            for release in layout.releases() {
                write!(f, " {release}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for UnsupportedApi {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_is_found_by_its_api_version() {
        for layout in Layout::ALL {
            let major = Major::from_api_version(layout.api_version()).unwrap();
            assert!(major.layouts().contains(&layout));
            assert_eq!(major, layout.major());
            assert_eq!(Layout::from_name(layout.name()), Some(layout));
            assert!(layout.soname().ends_with(&format!(".so.{major}")));
        }
    }

    #[test]
    fn an_unknown_api_version_is_refused_with_the_releases() {
        for version in [0, -1, 29999, 80000, i32::MAX, i32::MIN] {
            let text = Major::from_api_version(version).unwrap_err().to_string();
            assert!(text.contains(&version.to_string()), "{text}");
            assert!(text.contains("3.0.6") && text.contains("3.8.0"), "{text}");
        }
    }
}
