//! Standard output of a program whose reader may have seen enough, and close it; and lines as a
//! terminal has room for them.
//!
//! The macros here stand in for the standard library's of the same names, which panic where nothing
//! can be written.

use std::borrow::Cow;
use std::env;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::exit;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

const UNSAID: i32 = 2;

const USUAL: (usize, usize) = (80, 24);

const VERDICTS: [(&str, AnsiColor); 7] = [
    ("ok", AnsiColor::Green),
    ("note", AnsiColor::Cyan),
    ("warning", AnsiColor::Yellow),
    ("slow", AnsiColor::Yellow),
    ("skipped", AnsiColor::Yellow),
    ("error", AnsiColor::Red),
    ("FAILED", AnsiColor::Red),
];

/// Prints for people: on a terminal, in lines that fit, with verdicts in colour. Without anybody to
/// read it, this program ends, quietly if the reader has gone.
pub(crate) fn print(text: Arguments<'_>) {
    put(shown(&text.to_string(), &io::stdout()).as_bytes());
}

pub(crate) fn print_whole(text: Arguments<'_>) {
    put(text.to_string().as_bytes());
}

fn put(text: &[u8]) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text).and_then(|()| out.flush()) {
        unsaid(&error);
    }
}

pub(crate) fn unsaid(error: &io::Error) -> ! {
    if error.kind() != ErrorKind::BrokenPipe {
        complain(format_args!("standard output cannot be written: {error}\n"));
    }
    exit(UNSAID);
}

pub(crate) fn complain(text: Arguments<'_>) {
    let text = text.to_string();
    let _ = io::stderr().lock().write_all(shown(&text, &io::stderr()).as_bytes());
}

pub(crate) fn size(stream: &(impl IsTerminal + AsFd)) -> Option<(usize, usize)> {
    let size = || terminal_size::terminal_size_of(stream);
    let known = |(width, height): (terminal_size::Width, terminal_size::Height)| {
        (width.0.into(), height.0.into())
    };
    stream.is_terminal().then(|| size().map_or(USUAL, known))
}

fn shown<'a>(text: &'a str, stream: &(impl IsTerminal + AsFd + RawStream)) -> Cow<'a, str> {
    let Some((width, _)) = size(stream) else { return Cow::Borrowed(text) };
    // Not where NO_COLOR is set, or TERM=dumb: AutoStream forgets the latter where CI is set.
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    let coloured = !dumb && AutoStream::choice(stream) != ColorChoice::Never;
    let line = |line: &str| -> String {
        let wrapped = wrapped(line, width);
        if coloured { painted(&wrapped) } else { wrapped }
    };
    Cow::Owned(text.split_inclusive('\n').map(line).collect())
}

/// A line cut between words, where it is longer than that; what follows stands below the last
/// column that it begins. A word is never cut.
fn wrapped(line: &str, width: usize) -> String {
    // What moves the cursor knows what it does.
    if line.trim_end().chars().count() <= width || line.contains(['\r', '\x1b']) {
        return line.to_owned();
    }
    let begin = match line.starts_with("# ") {
        true => String::from("# "),
        false => " ".repeat(column(line).min(width / 2)),
    };
    let mut text = String::new();
    let mut left = width;
    for (at, word) in line.trim_end().split(' ').enumerate() {
        let letters = word.chars().count();
        if at == 0 {
            text.push_str(word);
            left = left.saturating_sub(letters);
        } else if letters < left {
            text.push(' ');
            text.push_str(word);
            left -= letters + 1;
        } else if letters == 0 {
            left = 0;
        } else {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(&begin);
            text.push_str(word);
            left = width.saturating_sub(begin.len() + letters);
        }
    }
    if line.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Where the last column of a line begins: behind the first gap of two spaces or more that follows
/// a word, or where the line itself begins.
fn column(line: &str) -> usize {
    let first = line.len() - line.trim_start().len();
    let gap = line[first..].find("  ").map(|at| first + at);
    gap.map_or(first, |at| line.len() - line[at..].trim_start().len())
}

fn painted(line: &str) -> String {
    let word = line.split(' ').next().unwrap_or_default();
    let known = VERDICTS.iter().find(|(verdict, _)| *verdict == word && line != word);
    known.map_or_else(
        || line.to_owned(),
        |(verdict, colour)| {
            let style = Style::new().fg_color(Some((*colour).into())).bold();
            format!("{style}{verdict}{style:#}{}", &line[verdict.len()..])
        },
    )
}

/// As the standard library's, but for an output that is closed.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// As the standard library's, but for an output that is closed.
macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($format:literal $($rest:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($format $($rest)*)))
    };
}

/// As the standard library's, but for an error stream that is closed.
macro_rules! eprintln {
    ($format:literal $($rest:tt)*) => {
        $crate::output::complain(format_args!("{}\n", format_args!($format $($rest)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_between_words_and_go_on_below_their_last_column() {
        let cut = |line: &str| wrapped(line, 20);
        for whole in ["", "\n", "twenty letters, this\n", "\rmoves the cursor further on"] {
            assert_eq!(cut(whole), whole);
        }
        assert_eq!(cut("one two three four five\n"), "one two three four\nfive\n");
        assert_eq!(
            cut("  row   a value of some words\n"),
            "  row   a value of\n        some words\n"
        );
        assert_eq!(cut("    deep and so is the rest"), "    deep and so is\n    the rest");
        assert_eq!(cut("# a comment of some words"), "# a comment of some\n# words");
        let path = "a /path/that/is/longer/than/a/line b";
        assert_eq!(cut(path), "a\n/path/that/is/longer/than/a/line\nb");
        // Half of the line is for what goes on.
        assert_eq!(cut("a                 b c d e"), "a                 b\n          c d e");
    }

    #[test]
    fn a_verdict_is_coloured_where_a_line_begins_with_it() {
        assert_eq!(painted("FAILED shm\n"), "\x1b[1m\x1b[31mFAILED\x1b[0m shm\n");
        for plain in ["okay it is", " ok", "ok", "it FAILED"] {
            assert_eq!(painted(plain), plain);
        }
    }
}
