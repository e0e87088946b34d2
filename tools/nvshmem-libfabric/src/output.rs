//! Standard output of a program whose reader may have seen enough, and close it.
//!
//! The macros here stand in for the standard library's of the same names, which panic where nothing
//! can be written.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

const UNSAID: i32 = 2;

/// Prints. Without anybody to read it, this program ends, quietly if the reader has gone.
pub(crate) fn print(text: Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
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
    let _ = io::stderr().write_fmt(text);
}

macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($format:literal $($rest:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($format $($rest)*)))
    };
}

macro_rules! eprintln {
    ($format:literal $($rest:tt)*) => {
        $crate::output::complain(format_args!("{}\n", format_args!($format $($rest)*)))
    };
}
