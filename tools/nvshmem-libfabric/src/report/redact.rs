//! What is taken out of a report: who, where, and what may be a secret.
//!
//! Replaced are the names of this user and host, names of other hosts as far as they are known or
//! are like this one's but for their digits, addresses other than loopback's also inside words,
//! what stands before a host in a URL, values of variables that are not told, and UUIDs.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::told;

/// Variables that have names of hosts, separated by commas, perhaps with numbers in brackets.
const HOSTS: [&str; 8] = [
    "HOSTNAME",
    "SLURMD_NODENAME",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_SUBMIT_HOST",
    "LSB_HOSTS",
    "PMIX_HOSTNAME",
    "MASTER_ADDR",
];

/// Takes out of a text who and where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redactor {
    /// What is replaced as it is, and by what; the longer first.
    words: Vec<(String, &'static str)>,
    /// Names of hosts, with `#` for digits.
    hosts: BTreeSet<String>,
}

impl Redactor {
    pub(crate) fn of_process() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let variable = |name: &str| env::var(name).unwrap_or_default();
        let host = String::from(read("/proc/sys/kernel/hostname").trim());
        let mut redactor = Self::of(vec![
            (variable("HOME"), "~"),
            (host.clone(), "HOST"),
            (variable("USER"), "USER"),
            (variable("LOGNAME"), "USER"),
        ]);
        redactor.learn(&host);
        for line in read("/etc/hosts").lines() {
            let names = line.split('#').next().unwrap_or_default().split_whitespace().skip(1);
            names.for_each(|name| redactor.learn(name));
        }
        for name in HOSTS {
            host_list(&variable(name)).iter().for_each(|name| redactor.learn(name));
        }
        redactor
    }

    fn of(mut words: Vec<(String, &'static str)>) -> Self {
        // Shorter ones would be replaced everywhere; a home of `/` says nothing, and `root` is
        // nobody's name.
        words.retain(|(word, _)| word.len() > 2 && word != "root" && word != "localhost");
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        Self { words, hosts: BTreeSet::new() }
    }

    /// Takes note of a host as the user has named it, perhaps with a login.
    pub(crate) fn learn_named(&mut self, name: &str) {
        if let Some((_, address)) = name.rsplit_once('@') {
            self.words.push((name.to_owned(), "USER@HOST"));
            self.words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
            self.learn(address);
        }
        self.learn(name);
    }

    /// Takes note of a host's name, and of its first part. Digits stand for any, so that its
    /// neighbours are known as well.
    fn learn(&mut self, name: &str) {
        let short = name.split('.').next().unwrap_or(name);
        for name in [name, short] {
            let letters = name.chars().filter(|c| c.is_ascii_alphabetic()).count();
            let known =
                ["localhost", "ip6-localhost", "ip6-loopback", "broadcasthost", "libfabric"];
            let reserved = name.starts_with("ip6-") || name.starts_with("localhost");
            if letters > 1 && name.len() > 2 && !reserved && !known.contains(&name) {
                self.hosts.insert(any_digits(name));
            }
        }
    }

    pub(crate) fn redact(mut self, text: &str) -> String {
        // Logs of NVSHMEM and its like: HOST:PROCESS:THREAD.
        for line in text.lines() {
            for word in line.split_whitespace().take(3) {
                if let [host, process, thread] = word.split(':').collect::<Vec<_>>()[..] {
                    let is_number =
                        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                    if is_number(process) && is_number(thread) {
                        self.learn(host);
                    }
                }
            }
        }
        let mut text = uuids(&logins(&untold(text)));
        for (word, by) in &self.words {
            text = replace_word(&text, word, by);
        }
        addresses(&hosts(&text, &self.hosts))
    }
}

/// A name with `#` for each run of digits.
fn any_digits(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match c {
            c if !c.is_ascii_digit() => out.push(c),
            _ if out.ends_with('#') => {}
            _ => out.push('#'),
        }
    }
    out
}

/// The names of a list as Slurm has it: `node[1-4,7],gpu9`.
fn host_list(list: &str) -> Vec<String> {
    let (mut names, mut name, mut inside) = (Vec::new(), String::new(), false);
    for c in list.chars() {
        match c {
            '[' => {
                inside = true;
                name.push('0');
            }
            ']' => inside = false,
            _ if inside => {}
            ',' | ' ' => names.push(std::mem::take(&mut name)),
            c => name.push(c),
        }
    }
    names.push(name);
    names
}

/// Whether what is before and behind a word makes it part of a longer one.
fn part(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// Replaces a word where it is not part of a longer one.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(word) {
        let (before, behind) = (&rest[..at], &rest[at + word.len()..]);
        let last = before.chars().next_back().or_else(|| out.chars().next_back());
        let longer_before = part(last) && word.starts_with(char::is_alphanumeric);
        let longer = longer_before || part(behind.chars().next());
        out.push_str(before);
        out.push_str(if longer { word } else { by });
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Goes through a text, and replaces what is found where a word may begin. The same gets the same
/// number.
fn numbered(
    text: &str,
    by: &str,
    mut found: impl FnMut(&str, Option<char>) -> Option<usize>,
) -> String {
    let mut known: Vec<String> = Vec::new();
    let (mut out, mut at, mut last) = (String::new(), 0, None);
    while let Some(next) = text[at..].chars().next() {
        match found(&text[at..], last) {
            Some(len) if len > 0 => {
                let of = &text[at..at + len];
                let number = known.iter().position(|one| one == of).unwrap_or_else(|| {
                    known.push(of.to_owned());
                    known.len() - 1
                });
                out.push_str(&format!("{by}{}", number + 1));
                last = of.chars().next_back();
                at += len;
            }
            _ => {
                out.push(next);
                last = Some(next);
                at += next.len_utf8();
            }
        }
    }
    out
}

/// Numbers hosts whose names are known.
fn hosts(text: &str, names: &BTreeSet<String>) -> String {
    numbered(text, "HOST", |rest, last| {
        if part(last) {
            return None;
        }
        let lengths = names.iter().filter_map(|name| begins_with(rest, name));
        lengths.max()
    })
}

/// How long a name is that a text begins with, with any digits for `#`.
fn begins_with(text: &str, name: &str) -> Option<usize> {
    let mut rest = text;
    for c in name.chars() {
        if c == '#' {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            if digits == 0 {
                return None;
            }
            rest = &rest[digits..];
        } else {
            rest = rest.strip_prefix(c)?;
        }
    }
    (!part(rest.chars().next())).then_some(text.len() - rest.len())
}

/// Numbers addresses other than loopback's, also in the middle of a word.
fn addresses(text: &str) -> String {
    numbered(text, "ADDRESS", |rest, last| {
        address_v6(rest, last).or_else(|| address_v4(rest, last))
    })
}

fn address_v4(rest: &str, last: Option<char>) -> Option<usize> {
    if last.is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    // Four numbers; what follows them, as a sentence's end, is none of it.
    let mut dots = rest[..end].match_indices('.').map(|(at, _)| at);
    let end = dots.nth(3).unwrap_or(end);
    let address: Ipv4Addr = rest[..end].trim_end_matches('.').parse().ok()?;
    let of_here = address.is_loopback() || address.is_unspecified();
    (!of_here).then_some(rest[..end].trim_end_matches('.').len())
}

fn address_v6(rest: &str, last: Option<char>) -> Option<usize> {
    if last.is_some_and(char::is_alphanumeric) {
        return None;
    }
    let of_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    let end = rest.find(|c| !of_address(c)).unwrap_or(rest.len());
    if rest[end..].starts_with(char::is_alphanumeric) || rest[..end].matches(':').count() < 2 {
        return None;
    }
    // The longest that is one: a port, a prefix of a log or the end of a sentence may follow it.
    // None is longer than this.
    let most = end.min(45);
    let address = (2..=most).rev().find_map(|len| {
        let cut = rest[len..].chars().next().is_some_and(|c| c.is_ascii_hexdigit());
        let address: Option<Ipv6Addr> = rest[..len].parse().ok().filter(|_| !cut);
        address.map(|address| (address, len))
    });
    let (address, len) = address?;
    let of_here = match address.to_ipv4_mapped() {
        Some(address) => IpAddr::V4(address).is_loopback(),
        None => address.is_loopback() || address.is_unspecified(),
    };
    // What is of here is passed by as a whole, or its end would be looked at as if it were another.
    (!of_here).then_some(len)
}

/// Takes out who logs in to what a URL names: `scheme://user:password@host`.
fn logins(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        out.push_str(before);
        let end = behind.find(|c: char| c.is_whitespace() || "/\"'<>".contains(c));
        let authority = &behind[..end.unwrap_or(behind.len())];
        rest = match authority.rfind('@') {
            Some(login) => {
                out.push_str("LOGIN");
                &behind[login..]
            }
            None => behind,
        };
    }
    out.push_str(rest);
    out
}

/// Takes out values of variables that are not told, where a log has them: `NAME=value`,
/// `NAME: value` or `NAME="value"`.
fn untold(text: &str) -> String {
    let of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let (mut out, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let begin = rest.find(of_name).unwrap_or(rest.len());
        let (before, behind) = rest.split_at(begin);
        out.push_str(before);
        let end = behind.find(|c| !of_name(c)).unwrap_or(behind.len());
        let (name, behind) = behind.split_at(end);
        out.push_str(name);
        rest = behind;
        let Some(value) = behind.strip_prefix('=') else { continue };
        if !told::belongs(name) || told::is_told(name) {
            continue;
        }
        let len = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].find(quote).map_or(value.len(), |at| at + 2),
            _ => value.find(char::is_whitespace).unwrap_or(value.len()),
        };
        out.push_str("=(not told)");
        rest = &value[len..];
    }
    out
}

/// Takes out UUIDs, which some libraries have jobs know one another by.
fn uuids(text: &str) -> String {
    const SHAPE: [usize; 5] = [8, 4, 4, 4, 12];
    let is_one = |rest: &str| {
        let mut at = 0;
        let whole = SHAPE.iter().enumerate().all(|(number, len)| {
            let dash = number == 0 || rest[at..].starts_with('-');
            at += usize::from(number > 0);
            let part = rest.get(at..at + len);
            at += len;
            dash && part.is_some_and(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
        });
        whole.then_some(at)
    };
    numbered(text, "UUID", |rest, last| {
        if last.is_some_and(|c| c.is_ascii_hexdigit())
            || !rest.starts_with(|c: char| c.is_ascii_hexdigit())
        {
            return None;
        }
        is_one(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(hosts: &[&str]) -> Redactor {
        let words = vec![
            (String::from("/home/ada"), "~"),
            (String::from("node7"), "HOST"),
            (String::from("ada"), "USER"),
        ];
        let mut redactor = Redactor::of(words);
        hosts.iter().for_each(|host| redactor.learn(host));
        redactor
    }

    #[test]
    fn who_and_where_are_replaced_and_nothing_else() {
        let text = "/home/ada/lib of ada@node7, adam, mynode77; /home/adam\n";
        assert_eq!(redactor(&[]).redact(text), "~/lib of USER@HOST, adam, mynode77; /home/adam\n");
    }

    #[test]
    fn other_hosts_are_numbered() {
        let text = "node7 node8, log-node12.txt node8:1 node8.example.org anode8 node8b node gpu-03-1/x localhost";
        let said = redactor(&["node7", "gpu-01-2.site.example", "localhost"]).redact(text);
        let expected = "HOST HOST1, log-HOST2.txt HOST1:1 HOST1.example.org anode8 node8b node HOST3/x localhost";
        assert_eq!(said, expected);
        // What a log begins its lines with.
        let said = redactor(&[]).redact("login3:77:78 NVSHMEM INFO from login4\nlibfabric:1:2 x");
        assert_eq!(said, "HOST1:77:78 NVSHMEM INFO from HOST2\nlibfabric:1:2 x");
        assert_eq!(host_list("node[001-004,7],gpu9,a[1-2]b"), ["node0", "gpu9", "a0b"]);
    }

    #[test]
    fn addresses_are_numbered() {
        let text = "192.0.2.7:4711 and 198.51.100.1. 192.0.2.7, [fd00::2] 127.0.0.1 ::1 0.0.0.0 1.17 3.8.0 0000:3b:00.0";
        assert_eq!(
            addresses(text),
            "ADDRESS1:4711 and ADDRESS2. ADDRESS1, [ADDRESS3] 127.0.0.1 ::1 0.0.0.0 1.17 3.8.0 0000:3b:00.0"
        );
    }

    #[test]
    fn addresses_inside_words_are_found() {
        for (text, said) in [
            ("fi_sockaddr_in://192.0.2.7:80", "fi_sockaddr_in://ADDRESS1:80"),
            ("tcp:192.0.2.7:80", "tcp:ADDRESS1:80"),
            ("pe192.0.2.7x", "peADDRESS1x"),
            ("node-192.0.2.7-5", "node-ADDRESS1-5"),
            ("gid:fe80::5:6", "gid:ADDRESS1"),
            ("gid=fe80:0000:0000:0000:0000:0000:0000:0001,", "gid=ADDRESS1,"),
            ("::ffff:192.0.2.7", "ADDRESS1"),
            ("at fd00::2: no", "at ADDRESS1: no"),
            ("std::io::Error 12:34:56 x::b::y", "std::io::Error 12:34:56 x::b::y"),
            ("1.2.3", "1.2.3"),
            ("::1 127.0.0.53 ::ffff:127.0.0.1", "::1 127.0.0.53 ::ffff:127.0.0.1"),
        ] {
            assert_eq!(addresses(text), said);
        }
    }

    #[test]
    fn secrets_in_logs_are_taken_out() {
        let text = "proxy http://ada:pass@word@proxy:3128/x, http://plain/a@b \
                    NVSHMEM_PW=\"of great value\" FI_OPX_UUID=great NVSHMEM_DEBUG=INFO MY_PW=4 \
                    job 0a1b2c3d-0000-1111-2222-0123456789ab!";
        let said = redactor(&[]).redact(text);
        let expected = "proxy http://LOGIN@proxy:3128/x, http://plain/a@b \
                        NVSHMEM_PW=(not told) FI_OPX_UUID=(not told) NVSHMEM_DEBUG=INFO MY_PW=4 \
                        job UUID1!";
        assert_eq!(said, expected);
    }
}
