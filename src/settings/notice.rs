//! What users should hear of names that are no settings, or no longer.

use std::fmt;

use log::Level;

use super::table::{BEFORE, DEBUG, PREFIX, WITHOUT_EFFECT, keys, variables_of_their_own};

/// Something about the environment that the user should hear of, and that is no error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A variable with our prefix that we do not know, perhaps misspelt.
    Unknown {
        /// The variable.
        name: String,
        /// The known variable that is spelt most like it, when one is close.
        nearest: Option<&'static str>,
    },
    /// A variable that was a setting once.
    Before {
        /// The variable.
        name: String,
        /// What has become of it.
        became: String,
    },
    /// A variable of NVIDIA's own libfabric transport that changes nothing here.
    WithoutEffect {
        /// The variable.
        name: String,
    },
}

impl Notice {
    pub(super) fn of(name: &str) -> Option<Self> {
        let known = || variables_of_their_own().map(|setting| setting.name).chain([DEBUG]);
        if known().any(|known| known == name) {
            return None;
        }
        let owned = String::from(name);
        Some(match became(name) {
            _ if WITHOUT_EFFECT.contains(&name) => Self::WithoutEffect { name: owned },
            Some(became) => Self::Before { name: owned, became },
            None => {
                let known = known().chain(WITHOUT_EFFECT.iter().copied());
                Self::Unknown { name: owned, nearest: near(name, known).first().copied() }
            }
        })
    }

    /// The level to log it at.
    pub fn level(&self) -> Level {
        match self {
            Self::Unknown { .. } | Self::Before { .. } => Level::Warn,
            Self::WithoutEffect { .. } => Level::Info,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "{name} is not a known setting and is ignored; did you mean {nearest}?")
            }
            Self::Unknown { name, nearest: None } => {
                write!(f, "{name} is not a known setting and is ignored")
            }
            Self::Before { name, became } => write!(f, "{name} {became}; it was ignored"),
            Self::WithoutEffect { name } => {
                write!(f, "{name} is accepted and has no effect in this transport")
            }
        }
    }
}

fn became(name: &str) -> Option<String> {
    if let Some((_, became)) = BEFORE.iter().find(|(before, _)| *before == name) {
        return Some(String::from(*became));
    }
    let key = name.strip_prefix(PREFIX)?.to_ascii_lowercase();
    keys().any(|setting| setting.name == key).then(|| format!("is now {DEBUG}={key}=..."))
}

pub(super) fn near(name: &str, known: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    fn own(name: &str) -> &str {
        name.strip_prefix(PREFIX).unwrap_or(name)
    }
    let distances = known.map(|candidate| (edit_distance(own(name), own(candidate)), candidate));
    let mut near: Vec<_> =
        distances.filter(|(distance, candidate)| distance * 3 <= own(candidate).len()).collect();
    near.sort_unstable();
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

/// How many letters must be put in, taken out or replaced to turn one text into the other
/// (Levenshtein's distance), whatever their case.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().map(|byte| byte.to_ascii_uppercase()).collect();
    // The distances from the part of `a` read so far to every beginning of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().map(|byte| byte.to_ascii_uppercase()).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str) -> (String, Level) {
        let notice = Notice::of(name).expect("something to say");
        (notice.to_string(), notice.level())
    }

    #[test]
    fn unknown_names_are_noticed_with_the_nearest_known_one() {
        for (name, nearest) in [
            ("NVSHMEM_LIBFABRIC_DEVICE", Some("NVSHMEM_LIBFABRIC_DEVICES")),
            ("NVSHMEM_LIBFABRIC_MAX_NICS_PER_PE", Some("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE")),
            ("NVSHMEM_LIBFABRIC_DEBUGS", Some(DEBUG)),
            ("NVSHMEM_LIBFABRIC_COLOUR", None),
        ] {
            let name = String::from(name);
            assert_eq!(Notice::of(&name), Some(Notice::Unknown { name, nearest }));
        }
        let (text, level) = said("NVSHMEM_LIBFABRIC_DEVICE");
        assert!(text.ends_with("did you mean NVSHMEM_LIBFABRIC_DEVICES?"), "{text}");
        assert_eq!(level, Level::Warn);
        assert_eq!(said(WITHOUT_EFFECT[0]).1, Level::Info);
    }

    #[test]
    fn names_of_before_are_told_what_has_become_of_them() {
        let moved = [
            "THREADING",
            "QUEUE_DEPTH",
            "MAX_SEGMENT",
            "STRIPE_SEGMENT",
            "WORDS",
            "CONSISTENCY",
            "BOOTSTRAP_SECONDS",
            "CHANNEL_RINGS",
            "CHANNEL_SLOTS",
            "CHANNEL_PIN",
        ];
        for (before, key) in moved
            .map(|name| (name, name.to_ascii_lowercase()))
            .into_iter()
            .chain([("SIGNAL_ENGINE", String::from("signals"))])
        {
            let name = format!("{PREFIX}{before}");
            assert_eq!(
                said(&name),
                (format!("{name} is now {DEBUG}={key}=...; it was ignored"), Level::Warn)
            );
        }
        for gone in
            ["TRACE", "COUNTERS_PAGE", "PROGRESS", "BATCH_RMA", "RAIL_COOLING", "RAIL_TIMEOUT"]
        {
            let (text, level) = said(&format!("{PREFIX}{gone}"));
            assert!(text.contains("is gone") && level == Level::Warn, "{text}");
        }
        assert_eq!(became("NVSHMEM_LIBFABRIC_PROVIDER"), None);
    }

    #[test]
    fn edit_distance_counts_letters() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "SITTING"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }
}
