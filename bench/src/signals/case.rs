//! What is measured: which jobs, which cases in them, which sides of each, and the figures' names.

use std::fmt;

/// A side of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Raw libfabric: messages of the same size, without a signal.
    Raw,
    /// The plugin's put_signal; in the case of fences, its fence and atomic.
    Plugin,
    /// Put, quiet for every PE, signal.
    Reference,
    /// An atomic that fetches, answered by the plugin of the peer.
    FetchAdd,
}

impl Side {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Side::Raw => "raw",
            Side::Plugin => "plugin",
            Side::Reference => "reference",
            Side::FetchAdd => "fetch_add",
        }
    }
}

/// A kind of job: PE 0, its peers, and their rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) peers: u32,
    pub(crate) rails: usize,
}

impl Shape {
    /// All that are run.
    pub(crate) const ALL: [Shape; 3] =
        [Shape { peers: 1, rails: 1 }, Shape { peers: 1, rails: 2 }, Shape { peers: 7, rails: 2 }];

    /// The cases measured in such a job.
    pub(crate) fn cases(self) -> Vec<Case> {
        let of = |what| move |bytes| Case { shape: self, what, bytes };
        let mut cases: Vec<Case> = SIZES.into_iter().map(of(What::Rate)).collect();
        // With one peer as raw libfabric does it, over one endpoint; with many as a job would.
        if self.peers > 1 || self.rails == 1 {
            cases.extend(SIZES.into_iter().map(of(What::Latency)));
        }
        if self.peers > 1 {
            cases.push(Case { shape: self, what: What::Fence, bytes: BUSY_BYTES });
        }
        cases
    }
}

/// Sizes of a put.
const SIZES: [u64; 3] = [8, 4 << 10, LARGEST];

/// The largest put.
pub(crate) const LARGEST: u64 = 64 << 10;

/// Size of the puts that keep every peer busy.
const BUSY_BYTES: u64 = 4 << 10;

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// Windows of operations, round robin over the peers.
    Rate,
    /// A message to every peer, and its answer.
    Latency,
    /// A fence and a signal behind it, while puts to every peer are under way.
    Fence,
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) what: What,
    /// Bytes of a put.
    pub(crate) bytes: u64,
}

/// A figure: two sides of a case, and how they are compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Measure {
    pub(crate) name: String,
    /// Time of this side ...
    pub(crate) of: Side,
    /// ... over that of this one.
    pub(crate) over: Side,
    /// Whether it is the time of whole rounds, not only what is counted of them.
    pub(crate) whole: bool,
}

impl Case {
    /// Slots in each peer's memory that a window fills.
    pub(crate) fn slots(self) -> u64 {
        match (self.what, self.shape.peers, self.bytes) {
            (What::Latency, ..) => 1,
            (What::Fence, ..) => 4,
            (What::Rate, 1, LARGEST) => 16,
            (What::Rate, 1, _) => 64,
            // About as many in all.
            (What::Rate, _, LARGEST) => 2,
            (What::Rate, ..) => 9,
        }
    }

    /// What an operation is, in the times reported: a put with signal, a round trip, a fence with a
    /// signal.
    pub(crate) fn ops_per_repeat(self) -> u64 {
        match self.what {
            What::Rate => self.slots() * u64::from(self.shape.peers),
            What::Latency => 1,
            // One signal to each peer in turn.
            What::Fence => u64::from(self.shape.peers),
        }
    }

    /// Who is compared, in the order of the [`crate::rounds::Rounds`].
    pub(crate) fn sides(self) -> &'static [Side] {
        match (self.what, self.shape.peers, self.bytes) {
            (What::Latency, 1, 8) => &[Side::Raw, Side::Plugin, Side::Reference, Side::FetchAdd],
            (What::Latency, ..) => &[Side::Raw, Side::Plugin, Side::Reference],
            (What::Rate | What::Fence, ..) => &[Side::Plugin, Side::Reference],
        }
    }

    /// The figures for one provider.
    pub(crate) fn measures(self, provider: &str) -> Vec<Measure> {
        let size = match self.bytes {
            bytes if bytes >= 1 << 10 => format!("{}KiB", bytes >> 10),
            bytes => format!("{bytes}B"),
        };
        // What the figures are about, where a name does not say it: one peer, and two rails for
        // rates, one for latency.
        let suffix = match (self.what, self.shape) {
            (What::Rate, Shape { peers: 1, rails: 1 }) => String::from("_1_rail"),
            (What::Rate | What::Latency, Shape { peers, .. }) if peers > 1 => {
                format!("_{peers}_peers")
            }
            _ => String::new(),
        };
        let measure = |what: &str, of, over: Side| {
            let against = over.name();
            Measure {
                name: format!("{what}_over_{against}_{provider}{suffix}"),
                of,
                over,
                whole: false,
            }
        };
        match self.what {
            // Rates: the other way round than times.
            What::Rate => vec![Measure {
                of: Side::Reference,
                over: Side::Plugin,
                ..measure(&format!("put_signal_{size}_rate"), Side::Plugin, Side::Reference)
            }],
            What::Latency => {
                let what = format!("put_signal_{size}_latency");
                let mut list = vec![
                    measure(&what, Side::Plugin, Side::Raw),
                    measure(&what, Side::Plugin, Side::Reference),
                ];
                if self.sides().contains(&Side::FetchAdd) {
                    list.push(measure("fetch_add", Side::FetchAdd, Side::Raw));
                }
                list
            }
            What::Fence => {
                let (of, over) = (Side::Plugin, Side::Reference);
                let whole = measure("fence_signal_delivered", of, over);
                let cost = measure("fence_signal_cost", of, over);
                vec![cost, Measure { whole: true, ..whole }]
            }
        }
    }

    /// A time as people read it.
    pub(crate) fn show(self, seconds: f64) -> String {
        match self.what {
            What::Rate => format!("{:.1} kop/s", 1e-3 / seconds),
            // One way, for one peer; there and back for several, which no half belongs to.
            What::Latency if self.shape.peers == 1 => format!("{:.2} us", seconds / 2.0 * 1e6),
            What::Latency | What::Fence => format!("{:.2} us", seconds * 1e6),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::Rate => "rate",
            What::Latency => "latency",
            What::Fence => "fence",
        };
        let Shape { peers, rails } = self.shape;
        write!(f, "{what} {} B, {peers} peer(s), {rails} rail(s)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let names: Vec<String> = Shape::ALL
            .into_iter()
            .flat_map(Shape::cases)
            .flat_map(|case| case.measures("tcp"))
            .map(|measure| measure.name)
            .collect();
        let different: BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
        for name in [
            "put_signal_8B_rate_over_reference_tcp",
            "put_signal_64KiB_rate_over_reference_tcp_1_rail",
            "put_signal_4KiB_rate_over_reference_tcp_7_peers",
            "put_signal_8B_latency_over_raw_tcp",
            "put_signal_8B_latency_over_reference_tcp_7_peers",
            "fence_signal_cost_over_reference_tcp",
            "fetch_add_over_raw_tcp",
        ] {
            assert!(different.contains(&name.to_owned()), "{name}: {names:?}");
        }
    }

    #[test]
    fn figures_compare_sides_that_are_measured() {
        for case in Shape::ALL.into_iter().flat_map(Shape::cases) {
            for measure in case.measures("shm") {
                let sides = case.sides();
                assert!(sides.contains(&measure.of) && sides.contains(&measure.over), "{case}");
            }
        }
    }

    #[test]
    fn a_higher_rate_is_a_higher_figure_and_a_higher_latency_too() {
        let case = |what| Case { shape: Shape { peers: 1, rails: 1 }, what, bytes: 8 };
        assert_eq!(case(What::Rate).measures("tcp")[0].over, Side::Plugin);
        assert_eq!(case(What::Latency).measures("tcp")[0].of, Side::Plugin);
    }
}
