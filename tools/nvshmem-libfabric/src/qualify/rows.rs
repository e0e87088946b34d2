//! The rows: what is tried, each by a job of its own, so that one that fails says nothing of the
//! others.

/// A row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// For `--only`, messages and programs.
    pub(super) name: &'static str,
    pub(super) on: On,
    pub(super) tries: Tries,
}

/// What memory the symmetric heap is, and how NICs are to reach it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    /// Memory of the host.
    Host,
    /// Of a GPU, as jobs get it.
    Gpu,
    /// Of a GPU, through host memory on purpose.
    Staged,
    /// Of a GPU, by NICs themselves on purpose.
    Direct,
}

/// What a row's job does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tries {
    /// Moves data in this way, and checks every byte.
    Traffic(Traffic),
    /// Measures what `perf` does.
    Figures(Rails),
}

/// Which traffic: a scenario of the simulator's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) scenario: &'static str,
    /// The one step of the scenario that is done, if not all.
    pub(super) only: &'static str,
    pub(super) pes: Pes,
    /// The way of signals, by the name that the debug key `signals` has for it.
    pub(super) signals: Option<&'static str>,
    /// How often, by the scenario's parameter for it; a tenth of it where rows are short. With a
    /// load, as often as the rate that was measured allows, and no more than this.
    pub(super) times: Option<(&'static str, u64)>,
}

/// How many PEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pes {
    /// One on each host, or two on one.
    Few,
    /// Two on each host, or four on one, whose rails are all kept busy.
    More,
    /// As many as the processors of the hosts serve, and all send to the first.
    Many,
}

impl Pes {
    /// Bytes of the plain puts beside each put with signal, that nobody waits for.
    pub(super) fn load(self) -> u64 {
        match self {
            Pes::Few => 0,
            Pes::More => 1 << 20,
            Pes::Many => 256 << 10,
        }
    }
}

/// How many rails each PE uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rails {
    One,
    All,
}

const fn traffic(scenario: &'static str, only: &'static str) -> Traffic {
    Traffic { scenario, only, pes: Pes::Few, signals: None, times: None }
}

const fn of(scenario: &'static str, only: &'static str) -> Tries {
    Tries::Traffic(traffic(scenario, only))
}

/// Puts with signal, of so many PEs and by one way of signals.
const fn signals(pes: Pes, signals: Option<&'static str>) -> Tries {
    let times = Some(("rounds", if matches!(pes, Pes::Few) { 300 } else { 2_000 }));
    Tries::Traffic(Traffic { pes, signals, times, ..traffic("signals", "") })
}

const SIGNALS: Tries = signals(Pes::Few, None);
const UNDER_LOAD: Tries = signals(Pes::More, None);
const FENCES: Tries =
    Tries::Traffic(Traffic { times: Some(("rounds", 100)), ..traffic("order", "fence") });
const STORM: Tries =
    Tries::Traffic(Traffic { times: Some(("operations", 8_000)), ..traffic("storm", "") });
const FIGURES: Tries = Tries::Figures(Rails::All);

const fn row(on: On, name: &'static str, tries: Tries) -> Row {
    Row { name, on, tries }
}

/// All of them, in the order in which they are tried: what others depend on first, and then what is
/// most worth knowing, should the time not be enough.
pub(super) const ROWS: &[Row] = &[
    row(On::Host, "put", of("operations", "put")),
    row(On::Host, "get", of("operations", "get")),
    row(On::Host, "p", of("operations", "p")),
    row(On::Host, "put-signal", SIGNALS),
    row(On::Host, "atomics-add", of("atomics", "sums")),
    row(On::Host, "atomics-bits", of("atomics", "bits")),
    row(On::Host, "atomics-fetch", of("atomics", "fetches")),
    row(On::Host, "atomics-swap", of("atomics", "swaps")),
    row(On::Host, "fence", FENCES),
    row(On::Host, "quiet", of("order", "quiet")),
    row(On::Host, "storm", STORM),
    row(On::Host, "signals-eager", signals(Pes::Few, Some("eager"))),
    row(On::Host, "signals-counted", signals(Pes::Few, Some("counted"))),
    row(On::Host, "signals-chained", signals(Pes::Few, Some("chained"))),
    row(On::Host, "one-rail", Tries::Figures(Rails::One)),
    row(On::Host, "all-rails", FIGURES),
    row(On::Host, "order-under-load", UNDER_LOAD),
    row(On::Host, "many-to-one", signals(Pes::Many, None)),
    row(On::Gpu, "gpu", SIGNALS),
    row(On::Gpu, "gpu-figures", FIGURES),
    row(On::Staged, "staged-operations", of("operations", "")),
    row(On::Staged, "staged-signal", SIGNALS),
    row(On::Staged, "staged-atomics", of("atomics", "")),
    row(On::Staged, "staged-fence", FENCES),
    row(On::Staged, "staged-figures", FIGURES),
    row(On::Direct, "direct-operations", of("operations", "")),
    row(On::Direct, "direct-signal", SIGNALS),
    row(On::Direct, "direct-atomics", of("atomics", "")),
    row(On::Direct, "direct-fence", FENCES),
    row(On::Direct, "direct-under-load", UNDER_LOAD),
    row(On::Direct, "direct-figures", FIGURES),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nvshmem_sim::traffic::SCENARIOS;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_scenarios_that_are_there() {
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        for row in ROWS {
            assert!(row.name.len() <= 18, "{} does not fit its column", row.name);
            let Tries::Traffic(traffic) = row.tries else { continue };
            let known = SCENARIOS.iter().any(|(name, _)| *name == traffic.scenario);
            assert!(known, "{}: {}", row.name, traffic.scenario);
        }
    }
}
