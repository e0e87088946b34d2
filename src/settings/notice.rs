//! Warnings for variables with our prefix that are not, or no longer, settings.

use log::Level;

use super::table::{BEFORE, DEBUG, PREFIX, WITHOUT_EFFECT, keys, variables_of_their_own};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    pub level: Level,
    pub text: String,
}

impl Notice {
    /// A notice of a variable with our prefix, unless it is a setting.
    pub(super) fn of(name: &str) -> Option<Self> {
        let known = || variables_of_their_own().map(|setting| setting.name).chain([DEBUG]);
        if known().any(|known| known == name) {
            return None;
        }
        if WITHOUT_EFFECT.contains(&name) {
            let text = format!("{name} is accepted and has no effect in this transport");
            return Some(Self { level: Level::Info, text });
        }
        if let Some((_, became)) = BEFORE.iter().find(|(before, _)| *before == name) {
            return Some(Self { level: Level::Warn, text: format!("{name} {became}") });
        }
        let mut text = format!("{name} is not a known setting and is ignored");
        let key = name.strip_prefix(PREFIX).unwrap_or(name).to_ascii_lowercase();
        if keys().any(|setting| setting.name == key) {
            text += &format!("; did you mean {DEBUG}={key}=...?");
        } else if let Some(near) = near(name, known().chain(WITHOUT_EFFECT.iter().copied())).first()
        {
            text += &format!("; did you mean {near}?");
        }
        Some(Self { level: Level::Warn, text })
    }
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

/// Levenshtein's distance of two texts, case-insensitive.
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

    #[test]
    fn unknown_names_suggest_nearest() {
        for (name, near) in [
            ("NVSHMEM_LIBFABRIC_DEVICE", "; did you mean NVSHMEM_LIBFABRIC_DEVICES?"),
            (
                "NVSHMEM_LIBFABRIC_MAX_NICS_PER_PE",
                "; did you mean NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE?",
            ),
            ("NVSHMEM_LIBFABRIC_DEBUGS", "; did you mean NVSHMEM_LIBFABRIC_DEBUG?"),
            (
                "NVSHMEM_LIBFABRIC_MAX_SEGMENT",
                "; did you mean NVSHMEM_LIBFABRIC_DEBUG=max_segment=...?",
            ),
            ("NVSHMEM_LIBFABRIC_COLOUR", ""),
        ] {
            let text = format!("{name} is not a known setting and is ignored{near}");
            assert_eq!(Notice::of(name), Some(Notice { level: Level::Warn, text }));
        }
        for (before, became) in BEFORE {
            let text = format!("{before} {became}");
            assert_eq!(Notice::of(before), Some(Notice { level: Level::Warn, text }));
        }
        let level = |name| Notice::of(name).map(|notice| notice.level);
        assert_eq!(level(WITHOUT_EFFECT[0]), Some(Level::Info));
        assert_eq!(level("NVSHMEM_LIBFABRIC_PROVIDER"), None);
    }
}
