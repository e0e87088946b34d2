//! A host as the command line names it, with how many PEs it takes.

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(super) name: String,
    pub(super) slots: u32,
}

impl Named {
    /// As the command line has it, with so many PEs.
    pub(crate) fn with(&self, slots: u32) -> String {
        match self.name.contains(':') {
            true => format!("[{}]:{slots}", self.name),
            false => format!("{}:{slots}", self.name),
        }
    }

    /// Reads `NAME`, `NAME:SLOTS`, or `[ADDRESS]:SLOTS`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, slots) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, rest.strip_prefix(':').or(Some(rest))),
            None => match text.split_once(':') {
                Some((_, rest)) if rest.contains(':') => {
                    return Err(String::from("an address with colons goes into brackets: [::1]:2"));
                }
                Some((name, slots)) => (name, Some(slots)),
                None => (text, None),
            },
        };
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "-._@:%".contains(letter);
        // The agent would take it for an option, or a shell for more than a word.
        if name.is_empty() || name.starts_with('-') || !name.chars().all(fits) {
            return Err(String::from("a host is a name, an address or USER@NAME"));
        }
        let slots = slots.map_or(Ok(1), |slots| match slots.parse() {
            Ok(slots) if (1..=64).contains(&slots) => Ok(slots),
            _ => Err(String::from("PEs of a host are from 1 to 64, as in node1:2")),
        })?;
        Ok(Self { name: name.to_owned(), slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_host_names_are_refused() {
        let read = |text| Named::parse(text).map(|host| (host.name, host.slots));
        let is = |name: &str, slots| Ok((name.to_owned(), slots));
        assert_eq!(read("a"), is("a", 1));
        assert_eq!(read("me@node-1.x:4"), is("me@node-1.x", 4));
        assert_eq!(read("[fe80::1%eth0]:2"), is("fe80::1%eth0", 2));
        assert_eq!(read("[::1]"), is("::1", 1));
        for wrong in ",:2,-oProxyCommand=x,a b,a;b,$(a),a:0,a:65,a:x,::1,[::1]2x".split(',') {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
