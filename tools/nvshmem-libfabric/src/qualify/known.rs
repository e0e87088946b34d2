//! Error texts that may go into the file: those of `docs/errors.md`, without what was put into
//! them.

const CATALOGUE: &str = include_str!("../../../../docs/errors.md");

/// Letters that a text has at least, so that it says something without what was put into it.
const LEAST: usize = 12;

pub(super) fn known(message: &str) -> String {
    let longest = |ours: bool| {
        let texts = CATALOGUE.lines().filter_map(text_of).filter(|(_, is_ours)| *is_ours == ours);
        let found = texts.map(|(text, _)| text).filter(|text| contains(message, text));
        found.max_by_key(|text| text.len())
    };
    longest(true).into_iter().chain(longest(false)).collect::<Vec<_>>().join("; ")
}

fn text_of(row: &'static str) -> Option<(&'static str, bool)> {
    let cell = row.strip_prefix("| ")?;
    let quoted = |quote: &str, end: &str| cell.strip_prefix(quote)?.split(end).next();
    let ours = quoted("`` ", " `` |").or_else(|| quoted("`", "` |"));
    Some(ours.map_or((cell.split([',', '|']).next()?.trim(), false), |text| (text, true)))
}

fn contains(message: &str, text: &str) -> bool {
    let mut rest = message;
    text.chars().filter(|letter| letter.is_alphabetic()).count() >= LEAST
        && text.split('…').all(|part| {
            let at = rest.find(part);
            rest = at.map_or("", |at| &rest[at + part.len()..]);
            at.is_some()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_catalogued_texts_are_told() {
        let message =
            "PE 1: registering 4096 bytes at 0x7f00 of me@node-17: Cannot allocate memory";
        assert_eq!(known(message), "registering … bytes at …: …; Cannot allocate memory");
        assert_eq!(known("node-17 has lost 10.1.2.3"), "");
        assert_eq!(known(""), "");
    }
}
