//! Instructions by object and function, out of what valgrind's callgrind writes.
//!
//! The format is in valgrind's manual, "Callgrind Format Specification"; callgrind is asked for
//! names and positions in full. The sum of what was read is compared with the file's own total, so
//! that a misread file is an error and not a wrong figure.

use std::collections::BTreeMap;

/// Instructions executed in one dump: in a function of an object itself, with everything inlined
/// into it, and not in what it calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile(BTreeMap<(String, String), u64>);

impl Profile {
    /// Reads one dump.
    ///
    /// # Errors
    /// What was not understood, or sums that do not agree.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut costs = BTreeMap::new();
        let (mut object, mut function) = (String::from("???"), None);
        let (mut inclusive, mut sum, mut total) = (false, 0, None);
        for line in text.lines() {
            let wrong = || format!("not understood: {line}");
            if line.starts_with(|c: char| c.is_ascii_digit()) {
                // A line and a cost; no cost is zero.
                let cost = line.split_whitespace().nth(1).unwrap_or("0");
                let cost: u64 = cost.parse().map_err(|_| wrong())?;
                if !std::mem::take(&mut inclusive) {
                    let function: &String = function.as_ref().ok_or_else(wrong)?;
                    *costs.entry((object.clone(), function.clone())).or_default() += cost;
                    sum += cost;
                }
            } else if let Some(name) = line.strip_prefix("ob=") {
                name.clone_into(&mut object);
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = Some(name.to_owned());
            } else if line.starts_with("calls=") {
                inclusive = true;
            } else if let Some(columns) = line.strip_prefix("positions: ") {
                (columns == "line").then_some(()).ok_or_else(wrong)?;
            } else if let Some(columns) = line.strip_prefix("events: ") {
                (columns == "Ir").then_some(()).ok_or_else(wrong)?;
            } else if let Some(number) = line.strip_prefix("totals: ") {
                total = Some(number.parse::<u64>().map_err(|_| wrong())?);
            }
        }
        match total {
            Some(total) if total == sum => Ok(Self(costs)),
            Some(total) => Err(format!("the costs add up to {sum}, not to {total}")),
            None => Err(String::from("no totals: the file is not complete")),
        }
    }

    /// Instructions of some objects, by function.
    pub(crate) fn by_function(&self, object: impl Fn(&str) -> bool) -> BTreeMap<&str, u64> {
        let mut sums = BTreeMap::new();
        for ((_, function), cost) in self.0.iter().filter(|((of, _), _)| object(of)) {
            *sums.entry(function.as_str()).or_default() += cost;
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
# callgrind format
version: 1
cmd:  program a=b
desc: Trigger: --dump-before=mark

positions: line
events: Ir

ob=/lib/plugin.so
fl=lane.rs
fn=lane::start
10 100
12 20
fi=segment.rs
5 7
fe=lane.rs
13 3
cob=/lib/libfabric.so.1
cfi=prov.c
cfn=write
calls=4 99
13 4000
cfn=lane::progress
calls=1 30
10 60

fn=lane::progress
30 60

ob=/lib/libfabric.so.1
fl=prov.c
fn=write
99 4000

totals: 4190
";

    #[test]
    fn only_own_costs_count_and_inlined_code_counts_for_its_function() {
        let profile = Profile::parse(SAMPLE).unwrap();
        let by_function = profile.by_function(|object| object.ends_with("plugin.so"));
        assert_eq!(by_function, [("lane::start", 130), ("lane::progress", 60)].into());
    }

    #[test]
    fn what_is_misread_is_an_error() {
        let fails = |text: &str| Profile::parse(text).unwrap_err();
        let wrong = SAMPLE.replace("totals: 4190", "totals: 4191");
        assert!(fails(&wrong).contains("add up to 4190"), "{}", fails(&wrong));
        assert!(fails(SAMPLE.split("totals").next().unwrap()).contains("not complete"));
        assert!(fails("positions: line\nevents: Dr\n").contains("not understood"));
    }
}
