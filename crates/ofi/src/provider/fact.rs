use std::fmt;
use std::ops::Deref;

/// One property of a provider, with its reason and source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fact<T> {
    pub(crate) value: T,
    pub(crate) why: &'static str,
    pub(crate) source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Unknown: the cautious value.
    NotExamined,
    /// A manual page of libfabric, with its section.
    Manual(&'static str),
    /// Source files of libfabric, with the version in which they were read.
    Code(&'static str),
    /// Runs of ours: where, and with which libfabric.
    Seen(&'static str),
}

impl<T> Fact<T> {
    pub(super) const fn manual(value: T, why: &'static str, page: &'static str) -> Self {
        Self { value, why, source: Source::Manual(page) }
    }

    pub(super) const fn code(value: T, why: &'static str, files: &'static str) -> Self {
        Self { value, why, source: Source::Code(files) }
    }

    pub(super) const fn seen(value: T, why: &'static str, runs: &'static str) -> Self {
        Self { value, why, source: Source::Seen(runs) }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotExamined => f.write_str("not examined"),
            Self::Manual(page) => f.write_str(page),
            Self::Code(files) => write!(f, "by the code: {files}"),
            Self::Seen(runs) => write!(f, "seen: {runs}"),
        }
    }
}

impl<T> Deref for Fact<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Declares `Profile`, a list of facts, and the cautious profile. One list serves the type, the
/// cautious values and the iteration, so that none can lack a fact.
macro_rules! facts {
    ($($(#[$doc:meta])* $fact:ident: $type:ty = $cautious:expr, $why:literal;)*) => {
        #[derive(Debug)]
        pub(crate) struct Profile {
            /// Its name in `fi_getinfo`, layers included. Matched exactly: asked for `tcp`,
            /// libfabric answers with `tcp;ofi_rxm` as well.
            pub(crate) name: &'static str,
            $($(#[$doc])* pub(crate) $fact: Fact<$type>,)*
        }

        /// Values that rely on nothing a provider need not do. It has no name, and is never tried.
        pub(super) const CAUTIOUS: Profile = Profile {
            name: "",
            $($fact: Fact { value: $cautious, why: $why, source: Source::NotExamined },)*
        };

        impl Profile {
            pub(crate) fn facts(&self) -> Vec<(&'static str, Fact<String>)> {
                vec![$((stringify!($fact), self.$fact.in_words()),)*]
            }
        }
    };
}

impl<T: fmt::Debug> Fact<T> {
    pub(super) fn in_words(&self) -> Fact<String> {
        Fact { value: format!("{:?}", self.value), why: self.why, source: self.source }
    }
}
