//! The rows: what is tried, each by a job of its own, so that one that fails says nothing of the
//! others.

/// A row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// For `--only`, messages and programs.
    pub(super) name: &'static str,
    /// What is tried, for people.
    pub(super) what: &'static str,
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
    /// Bytes of the longest put with signal, and of plain puts beside each.
    pub(super) most: u64,
    pub(super) load: u64,
    /// All send to PE 0 alone.
    pub(super) to_first: bool,
}

/// How many PEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pes {
    /// One on each host, or two on one.
    Few,
    /// Two on each host, or four on one.
    More,
    /// As many as the processors of the hosts serve.
    Many,
}

/// How many rails each PE uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rails {
    One,
    All,
}

/// Longest put with signal, unless a row has another.
const MOST: u64 = 300_000;

const fn of(scenario: &'static str, only: &'static str) -> Traffic {
    Traffic {
        scenario,
        only,
        pes: Pes::Few,
        signals: None,
        times: None,
        most: MOST,
        load: 0,
        to_first: false,
    }
}

const FENCES: Traffic = Traffic { times: Some(("rounds", 100)), ..of("order", "fence") };
const SIGNALS: Traffic = Traffic { times: Some(("rounds", 300)), ..of("signals", "") };
const STORM: Traffic = Traffic { times: Some(("operations", 8_000)), ..of("storm", "") };

const fn by(signals: &'static str) -> Traffic {
    Traffic { signals: Some(signals), ..SIGNALS }
}

/// Signals between more PEs, with all rails kept busy by long puts that nobody waits for.
const UNDER_LOAD: Traffic =
    Traffic { pes: Pes::More, times: Some(("rounds", 2_000)), load: 1 << 20, ..SIGNALS };

const MANY_TO_ONE: Traffic = Traffic {
    pes: Pes::Many,
    times: Some(("rounds", 2_000)),
    load: 256 << 10,
    to_first: true,
    ..SIGNALS
};

const fn host(name: &'static str, what: &'static str, traffic: Traffic) -> Row {
    Row { name, what, on: On::Host, tries: Tries::Traffic(traffic) }
}

const fn gpu(name: &'static str, what: &'static str, on: On, traffic: Traffic) -> Row {
    Row { name, what, on, tries: Tries::Traffic(traffic) }
}

const fn figures(name: &'static str, what: &'static str, on: On, rails: Rails) -> Row {
    Row { name, what, on, tries: Tries::Figures(rails) }
}

/// All of them, in the order in which they are tried: what others depend on first, and then what is
/// most worth knowing, should the time not be enough.
pub(super) const ROWS: &[Row] = &[
    host(
        "put",
        "put and put_nbi of all sizes, from both kinds of threads",
        of("operations", "put"),
    ),
    host("get", "get, get_nbi and g of all sizes", of("operations", "get")),
    host("p", "p of every width at every alignment", of("operations", "p")),
    host("put-signal", "put with signal, the signal by the way that jobs get", SIGNALS),
    host("atomics-add", "add and inc of every width, under contention", of("atomics", "sums")),
    host("atomics-bits", "and, or, xor and set", of("atomics", "bits")),
    host("atomics-fetch", "fetch, and fetching add, inc, and, or, xor", of("atomics", "fetches")),
    host("atomics-swap", "swap and compare_swap", of("atomics", "swaps")),
    host("fence", "flags behind fences, and signals sent apart from their data", FENCES),
    host("quiet", "quiet and barrier: what they end is visible", of("order", "quiet")),
    host("storm", "very many small operations of all kinds at once", STORM),
    host("signals-eager", "signals in one message with small data", by("eager")),
    host("signals-counted", "signals that wait for immediate data to be counted", by("counted")),
    host("signals-chained", "signals sent once the data is delivered", by("chained")),
    figures("one-rail", "figures of one NIC", On::Host, Rails::One),
    figures("all-rails", "figures of all NICs", On::Host, Rails::All),
    host("order-under-load", "no signal ahead of its data, all rails busy", UNDER_LOAD),
    host("many-to-one", "put with signal and puts of many PEs to one", MANY_TO_ONE),
    gpu("gpu", "put with signal on GPU memory, as jobs get it", On::Gpu, SIGNALS),
    figures("gpu-figures", "figures of GPU memory, as jobs get it", On::Gpu, Rails::All),
    gpu("staged-operations", "put, get, g and p, staged", On::Staged, of("operations", "")),
    gpu("staged-signal", "put with signal, staged", On::Staged, SIGNALS),
    gpu("staged-atomics", "every atomic on GPU memory", On::Staged, of("atomics", "")),
    gpu("staged-fence", "flags behind fences, staged", On::Staged, FENCES),
    figures("staged-figures", "figures of all NICs, staged", On::Staged, Rails::All),
    gpu(
        "direct-operations",
        "put, get, g and p by NICs at GPU memory",
        On::Direct,
        of("operations", ""),
    ),
    gpu("direct-signal", "put with signal, the data by NICs", On::Direct, SIGNALS),
    gpu("direct-atomics", "every atomic on memory that NICs reach", On::Direct, of("atomics", "")),
    gpu("direct-fence", "flags behind fences, the data by NICs", On::Direct, FENCES),
    gpu("direct-under-load", "no signal ahead of its data, all rails busy", On::Direct, UNDER_LOAD),
    figures("direct-figures", "figures of all NICs at GPU memory", On::Direct, Rails::All),
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
