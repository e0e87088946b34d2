//! The layouts by name, and which releases of NVSHMEM have them.

use std::fmt;

struct Facts {
    name: &'static str,
    api_version: i32,
    soname: &'static str,
    major: Major,
    releases: &'static [&'static str],
}

mod checked {
    //! Generated: one assertion per recorded size, offset and constant.
    #![allow(clippy::unnecessary_cast)]

    use crate::c::*;

    /// Size of the field that the closure selects.
    #[allow(dead_code)] // Rust 1.85 does not see the uses in constants.
    const fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
        size_of::<F>()
    }

    include!(concat!(env!("OUT_DIR"), "/checks.rs"));
}

// `Layout` and `Major`, each with `ALL`, and `FACTS`: made of layouts.json. A new layout is a new
// variant, and what has to be said of it is where the compiler finds a match without it.
include!(concat!(env!("OUT_DIR"), "/layouts.rs"));

impl Layout {
    const fn facts(self) -> &'static Facts {
        &FACTS[self as usize]
    }

    /// The short name, as in layouts.json: a major number, with a letter where it has several.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

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

    /// The releases of NVSHMEM with this layout, by their headers or by runs.
    pub const fn releases(self) -> &'static [&'static str] {
        self.facts().releases
    }

    /// The major version, which is all that `nvshmemt_init` is told.
    pub const fn major(self) -> Major {
        self.facts().major
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Major {
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

    /// The number, which is also that of the file that a host opens.
    pub const fn number(self) -> i32 {
        self as i32
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
    pub api_version: i32,
}

impl fmt::Display for UnsupportedApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_version } = self;
        let (oldest, newest) = (Layout::ALL[0], Layout::ALL[Layout::ALL.len() - 1]);
        if *api_version < oldest.api_version() {
            write!(
                f,
                "api_version {api_version} is older than any served: install a newer NVSHMEM"
            )?;
        } else {
            write!(
                f,
                "api_version {api_version} is newer than {}, the newest served: install a newer release of \
                 this transport, or choose another with NVSHMEM_REMOTE_TRANSPORT",
                newest.api_version()
            )?;
        }
        f.write_str("; served are the NVSHMEM releases")?;
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
    fn layouts_are_found_by_api_version() {
        for layout in Layout::ALL {
            let major = layout.major();
            // A host that is newer by a minor version has the layout of its major.
            for version in [layout.api_version(), major.number() * 10000 + 9999] {
                assert_eq!(Major::from_api_version(version), Ok(major));
            }
            assert_eq!(Layout::from_name(layout.name()), Some(layout));
            assert_eq!(layout.soname(), crate::file_name("libfabric", major));
        }
        let (older, newer) = ("a newer NVSHMEM", "a newer release of this transport");
        for (version, remedy) in [
            (0, older),
            (-1, older),
            (29999, older),
            (i32::MIN, older),
            (80000, newer),
            (i32::MAX, newer),
        ] {
            let text = Major::from_api_version(version).unwrap_err().to_string();
            for part in ["install ", remedy, &version.to_string(), "3.0.6", "3.8.0"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    /// The page that says what goes with what has one row for each minor version, with the number
    /// of its file.
    #[test]
    fn compatibility_page_lists_every_release() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md");
        let page = std::fs::read_to_string(path).expect("docs/compatibility.md");
        let minor = |text: &str| text.strip_prefix("3.")?.split('.').next()?.parse::<u32>().ok();
        let said: Vec<(u32, String)> = page
            .lines()
            .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
            .filter(|cells| cells.len() > 2 && cells[2].starts_with("`.so."))
            .map(|cells| (minor(cells[1]).expect(cells[1]), cells[2].trim_matches('`').to_owned()))
            .collect();
        let of = |layout: Layout| {
            let number = layout.soname().rsplit_once(".so.").expect("a number").1;
            let minors = layout.releases().iter().filter_map(|release| minor(release));
            minors.map(|minor| (minor, format!(".so.{number}"))).collect::<Vec<_>>()
        };
        let mut known: Vec<_> = Layout::ALL.into_iter().flat_map(of).collect();
        // Releases before 3.1 had the layout, and not this transport's interface to users.
        known.retain(|(minor, _)| *minor > 0);
        known.dedup();
        assert_eq!(said, known);
    }
}
