//! Reads what valgrind's callgrind writes.
//!
//! The format is in valgrind's manual, "Callgrind Format Specification". Of it, this understands
//! what callgrind itself writes: compressed names, relative positions, inlined code, calls and
//! jumps. The sum of what was read is compared with the file's own total, so that a misread file
//! is an error and not a wrong figure.

use std::collections::HashMap;
use std::rc::Rc;

/// A file that cannot be understood.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub(crate) struct ParseError {
    line: usize,
    what: String,
}

/// Where instructions were executed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Place {
    /// Path of the executable or library.
    pub(crate) object: Rc<str>,
    /// The function, with everything inlined into it.
    pub(crate) function: Rc<str>,
    /// The source file, that of inlined code included.
    pub(crate) file: Rc<str>,
    /// The line in it; 0 when not known.
    pub(crate) line: u64,
}

/// Calls from one object to a function, in another object or the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Call {
    pub(crate) from: Rc<str>,
    pub(crate) to: Rc<str>,
    pub(crate) function: Rc<str>,
}

/// Instructions executed, and calls made, in one dump.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    /// Instructions executed at a place itself, not in what it calls.
    pub(crate) costs: HashMap<Place, u64>,
    pub(crate) calls: HashMap<Call, u64>,
}

impl Profile {
    /// Reads one dump.
    ///
    /// # Errors
    /// The line that was not understood, or sums that do not agree.
    pub(crate) fn parse(text: &str) -> Result<Self, ParseError> {
        let mut reader = Reader::default();
        for (at, line) in text.lines().enumerate() {
            reader.line(line.trim()).map_err(|what| ParseError { line: at + 1, what })?;
        }
        reader.end().map_err(|what| ParseError { line: text.lines().count(), what })
    }

    /// Instructions of an object, by whichever part of the place is asked for, most first.
    pub(crate) fn by<K: Ord>(
        &self,
        object: impl Fn(&str) -> bool,
        key: impl Fn(&Place) -> K,
    ) -> std::collections::BTreeMap<K, u64> {
        let mut sums = std::collections::BTreeMap::new();
        for (place, cost) in self.costs.iter().filter(|(place, _)| object(&place.object)) {
            *sums.entry(key(place)).or_default() += cost;
        }
        sums
    }
}

/// Names that are written once and then referred to by number.
#[derive(Default)]
struct Names(HashMap<u64, Rc<str>>);

impl Names {
    /// The name in `(7) name`, `(7)` or `name`.
    fn read(&mut self, text: &str) -> Result<Rc<str>, String> {
        let Some((number, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')'))
        else {
            return Ok(text.into());
        };
        // A C++ function may begin with a parenthesis: then it is no number.
        let Ok(number) = number.parse::<u64>() else { return Ok(text.into()) };
        let name = name.trim();
        if name.is_empty() {
            let known = self.0.get(&number).cloned();
            return known.ok_or_else(|| format!("name ({number}) is used before it is given"));
        }
        let name: Rc<str> = name.into();
        self.0.insert(number, name.clone());
        Ok(name)
    }
}

/// What the next line of numbers means.
#[derive(Default)]
enum Next {
    /// Cost of the current place itself.
    #[default]
    Own,
    /// Cost of a call, everything below it included.
    Inclusive,
    /// The position of a jump.
    Jump,
}

#[derive(Default)]
struct Reader {
    profile: Profile,
    objects: Names,
    files: Names,
    functions: Names,
    object: Option<Rc<str>>,
    file: Option<Rc<str>>,
    function: Option<Rc<str>>,
    callee_object: Option<Rc<str>>,
    callee: Option<Rc<str>>,
    /// Columns of a position; the last is the line.
    positions: Option<Vec<u64>>,
    /// Which column of the costs counts instructions.
    instructions: Option<usize>,
    next: Next,
    sum: u64,
    total: Option<u64>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            return self.numbers(line);
        }
        let equals = line.find('=');
        let colon = line.find(':');
        match (equals, colon) {
            // `fn=(1) a::b` has a colon too, but behind the equals sign.
            (Some(equals), colon) if colon.is_none_or(|colon| equals < colon) => {
                self.name(&line[..equals], line[equals + 1..].trim())
            }
            (_, Some(colon)) => self.header(&line[..colon], line[colon + 1..].trim()),
            _ => Err(format!("not understood: {line}")),
        }
    }

    fn header(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "positions" => {
                let columns = value.split_whitespace().count();
                if value.split_whitespace().last() != Some("line") {
                    return Err(format!("positions are {value}, not lines"));
                }
                self.positions = Some(vec![0; columns]);
            }
            "events" => {
                let column = value.split_whitespace().position(|event| event == "Ir");
                self.instructions = Some(column.ok_or("instructions (Ir) were not counted")?);
            }
            "totals" => {
                let column = self.instructions.ok_or("totals before events")?;
                let total = value.split_whitespace().nth(column).unwrap_or("0");
                self.total = Some(total.parse().map_err(|e| format!("total {total}: {e}"))?);
            }
            _ => {}
        }
        Ok(())
    }

    fn name(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "ob" => self.object = Some(self.objects.read(value)?),
            "fl" | "fi" | "fe" => self.file = Some(self.files.read(value)?),
            "fn" => self.function = Some(self.functions.read(value)?),
            "cob" => self.callee_object = Some(self.objects.read(value)?),
            // Names must be read even if nobody wants them: later lines may refer to them.
            "cfi" | "cfl" => drop(self.files.read(value)?),
            "cfn" => self.callee = Some(self.functions.read(value)?),
            "calls" => {
                let count = value.split_whitespace().next().unwrap_or_default();
                let count: u64 = count.parse().map_err(|e| format!("calls {count}: {e}"))?;
                let from = self.object.clone().ok_or("a call before an object")?;
                let to = self.callee_object.take().unwrap_or_else(|| from.clone());
                let function = self.callee.take().ok_or("a call without a function")?;
                *self.profile.calls.entry(Call { from, to, function }).or_default() += count;
                self.next = Next::Inclusive;
            }
            "jump" | "jcnd" => self.next = Next::Jump,
            // Files and functions of jumps.
            "jfi" => drop(self.files.read(value)?),
            "jfn" => drop(self.functions.read(value)?),
            _ => return Err(format!("unknown key {key}")),
        }
        Ok(())
    }

    fn numbers(&mut self, line: &str) -> Result<(), String> {
        let positions = self.positions.as_mut().ok_or("costs before positions")?;
        let mut words = line.split_whitespace();
        for position in positions.iter_mut() {
            let word = words.next().ok_or("too few positions")?;
            *position = relative(word, *position)?;
        }
        let line = positions.last().copied().unwrap_or_default();
        let column = self.instructions.ok_or("costs before events")?;
        // Zeros at the end are left out.
        let word = words.nth(column).unwrap_or("0");
        let cost: u64 = word.parse().map_err(|e| format!("cost {word}: {e}"))?;
        if let Next::Own = std::mem::take(&mut self.next) {
            let unknown = || Rc::from("???");
            let place = Place {
                object: self.object.clone().unwrap_or_else(unknown),
                function: self.function.clone().ok_or("costs before a function")?,
                file: self.file.clone().unwrap_or_else(unknown),
                line,
            };
            *self.profile.costs.entry(place).or_default() += cost;
            self.sum += cost;
        }
        Ok(())
    }

    fn end(self) -> Result<Profile, String> {
        match self.total {
            Some(total) if total == self.sum => Ok(self.profile),
            Some(total) => Err(format!("the costs add up to {}, not to {total}", self.sum)),
            None => Err(String::from("no totals: the file is not complete")),
        }
    }
}

/// A position: absolute, decimal or hexadecimal, or relative to the last one.
fn relative(word: &str, last: u64) -> Result<u64, String> {
    let wrong = |e: std::num::ParseIntError| format!("position {word}: {e}");
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(text) => u64::from_str_radix(text, 16).map_err(wrong),
        None => text.parse().map_err(wrong),
    };
    if word == "*" {
        Ok(last)
    } else if let Some(more) = word.strip_prefix('+') {
        Ok(last.wrapping_add(number(more)?))
    } else if let Some(less) = word.strip_prefix('-') {
        Ok(last.wrapping_sub(number(less)?))
    } else {
        number(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
# callgrind format
version: 1
creator: callgrind-3.19.0
cmd:  program a=b
desc: Trigger: --dump-before=mark

positions: line
events: Ir

ob=(1) /lib/plugin.so
fl=(1) lane.rs
fn=(1) lane::start
10 100
+2 20
fi=(2) segment.rs
5 7
fe=(1)
13 3
cob=(2) /lib/libfabric.so.1
cfi=(3) prov.c
cfn=(2) write
calls=4 99
* 4000
cfn=(3) lane::turn
calls=1 30
-3 60

fn=(3)
30 60

ob=(2)
fl=(3)
fn=(2)
99 4000

totals: 4190
";

    fn plugin(object: &str) -> bool {
        object.ends_with("plugin.so")
    }

    #[test]
    fn only_own_costs_count_and_inlined_code_counts_for_its_function() {
        let profile = Profile::parse(SAMPLE).unwrap();
        let by_function = profile.by(plugin, |place| place.function.to_string());
        assert_eq!(by_function["lane::start"], 130);
        assert_eq!(by_function["lane::turn"], 60);
        assert_eq!(by_function.len(), 2, "libfabric's function is another object's");
        assert_eq!(profile.by(|o| !plugin(o), |_| ())[&()], 4000);
    }

    #[test]
    fn files_and_lines_follow_inlining_and_relative_positions() {
        let profile = Profile::parse(SAMPLE).unwrap();
        let by_line = profile.by(plugin, |place| (place.file.to_string(), place.line));
        let at = |file: &str, line| by_line[&(file.to_string(), line)];
        assert_eq!((at("lane.rs", 10), at("lane.rs", 12), at("lane.rs", 13)), (100, 20, 3));
        assert_eq!(at("segment.rs", 5), 7);
    }

    #[test]
    fn calls_know_their_object_which_is_the_callers_unless_named() {
        let profile = Profile::parse(SAMPLE).unwrap();
        let calls = |to: &str, function: &str| {
            let call =
                Call { from: "/lib/plugin.so".into(), to: to.into(), function: function.into() };
            profile.calls[&call]
        };
        assert_eq!(calls("/lib/libfabric.so.1", "write"), 4);
        assert_eq!(calls("/lib/plugin.so", "lane::turn"), 1);
    }

    #[test]
    fn instructions_are_found_among_other_events_and_positions() {
        let text = "positions: instr line\nevents: Bc Ir\nob=a\nfl=f\nfn=g\n0x10 5 1 9\n+2 * 3\n\
                    jcnd=1/2 0x20 7\n+3 *\n+1 +1 0 4\ntotals: 4 13\n";
        let profile = Profile::parse(text).unwrap();
        let by_line = profile.by(|_| true, |place| place.line);
        assert_eq!(by_line, [(5, 9), (6, 4)].into());
    }

    #[test]
    fn functions_may_look_like_numbers_and_hold_colons() {
        let text = "positions: line\nevents: Ir\nfn=(1) (anonymous)::f=g\n1 2\nfn=(below main)\n\
                    1 3\ntotals: 5\n";
        let by = Profile::parse(text).unwrap().by(|_| true, |place| place.function.to_string());
        assert_eq!(by["(anonymous)::f=g"], 2);
        assert_eq!(by["(below main)"], 3);
    }

    #[test]
    fn what_is_misread_is_an_error() {
        let fails = |text: &str| Profile::parse(text).unwrap_err().to_string();
        let wrong = SAMPLE.replace("totals: 4190", "totals: 4191");
        assert!(fails(&wrong).contains("add up to 4190"), "{}", fails(&wrong));
        let cut = SAMPLE.split("totals").next().unwrap();
        assert!(fails(cut).contains("not complete"));
        assert!(fails(&SAMPLE.replace("fe=(1)", "fe=(9)")).contains("before it is given"));
        assert!(fails("positions: line\nevents: Dr\n").contains("not counted"));
        assert!(fails("what is this\n").contains("not understood"));
    }
}
