//! The plugin beside raw libfabric: the PEs' part.
//!
//! Both sides run on the proxy thread of the same two processes, on the same memory, in the same
//! loop: post a window, with a poll after every 32 posts as NVSHMEM's proxy does, then wait for
//! all of it. Rounds of the two sides alternate, and who comes first alternates as well, so that
//! each pair of rounds sees the same machine. Each PE's thread stays on a core of its own: where
//! the scheduler puts them is worth more than a factor of two, and is none of our business.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nvshmem_sim::{BoxError, Job, Ops, Piece};

use crate::area::{AREA_BYTES, Areas, check_stamps, clear, fill, stamp, verify};
use crate::case::{Case, Direction};
use crate::control::{Command, Control, PATIENCE, Side};
use crate::cores;
use crate::raw::{RECORD, Raw};
use crate::target;

/// Name of the scenario.
pub(crate) const SCENARIO: &str = "compare";

/// Least time of a round: well above what a scheduler's time slice (a few ms) can distort.
const ROUND: Duration = Duration::from_millis(12);

/// Operations between two polls: what NVSHMEM's proxy takes from its channel at a time.
const BATCH: usize = 32;

/// Largest window of all cases.
const SLOTS: usize = 64;

/// One PE. Parameters: `control`, `provider`, `library`, `source` (may be empty), `pairs`.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let pairs: u32 = job.param("pairs")?;
    let control = Control::open(&job.param::<PathBuf>("control")?)?;
    let host = job.init()?;
    let areas = Areas { from: host.alloc(AREA_BYTES, 4096)?, to: host.alloc(AREA_BYTES, 4096)? };

    let source: String = job.param("source")?;
    let source = (!source.is_empty()).then_some(source.as_str());
    let (library, provider) = (job.param::<String>("library")?, job.param::<String>("provider")?);
    let mut raw = Raw::open(&library, &provider, source, SLOTS)?;
    let heap = host.heap()?;
    // SAFETY: the heap is given back in `finalize` or at the end of the process. The raw side is
    // dropped before: it lives in the closures below, which have ended by then.
    unsafe { raw.register(heap.as_ptr(), heap.len() as usize)? };
    let records = job.bootstrap().allgather(&raw.record()?)?;
    let peer = 1 - job.pe() as usize;
    raw.connect(&records[peer * RECORD..(peer + 1) * RECORD])?;
    job.report("raw", raw.describe())?;

    if job.pe() == 0 {
        let rounds = host.proxy().run(move |ops| -> Result<Vec<(Case, Rounds)>, String> {
            cores::bind(0, 2).map_err(|e| e.to_string())?;
            let mut source = Source { ops, raw, control, areas, seed: 0 };
            let rounds = Case::all().map(|case| Ok((case, source.measure(case, pairs)?)));
            let rounds = rounds.collect::<Result<_, String>>()?;
            source.control.ask(Command::Stop)?;
            Ok(rounds)
        })??;
        for (case, rounds) in rounds {
            job.report(&case.to_string(), rounds.encode())?;
        }
    } else {
        host.proxy().run(move |ops| {
            cores::bind(1, 2).map_err(|e| e.to_string())?;
            target::serve(ops, Some(raw), control, areas)
        })??;
    }
    host.finalize()?;
    Ok(())
}

/// Times of the rounds of one case in one job.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rounds {
    /// Operations in each round.
    pub(crate) ops: u64,
    /// Nanoseconds of each pair of rounds: raw, plugin.
    pub(crate) pairs: Vec<(u64, u64)>,
}

impl Rounds {
    /// How much of raw's rate the plugin has reached, pair by pair.
    pub(crate) fn ratios(&self) -> Vec<f64> {
        self.pairs.iter().map(|&(raw, plugin)| raw as f64 / plugin as f64).collect()
    }

    /// Operations per second of each round of a side.
    pub(crate) fn rates(&self, side: Side) -> Vec<f64> {
        let of = |&(raw, plugin): &(u64, u64)| if side == Side::Raw { raw } else { plugin };
        self.pairs.iter().map(|pair| self.ops as f64 / (of(pair) as f64 / 1e9)).collect()
    }

    /// As text, for the launcher.
    fn encode(&self) -> String {
        let pairs = self.pairs.iter().map(|(raw, plugin)| format!(" {raw}:{plugin}"));
        std::iter::once(self.ops.to_string()).chain(pairs).collect()
    }

    /// From text. None when it is not such a text.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let ops = words.next()?.parse().ok()?;
        let pairs = words.map(|word| {
            let (raw, plugin) = word.split_once(':')?;
            Some((raw.parse().ok()?, plugin.parse().ok()?))
        });
        Some(Self { ops, pairs: pairs.collect::<Option<_>>()? })
    }
}

/// PE 0.
struct Source<'a> {
    ops: &'a Ops,
    raw: Raw,
    control: Control,
    areas: Areas,
    /// A new number for every pattern and every round.
    seed: u64,
}

impl Source<'_> {
    fn measure(&mut self, case: Case, pairs: u32) -> Result<Rounds, String> {
        let plan = self.plan(case)?;
        let mut windows = 1;
        for side in [Side::Raw, Side::Plugin] {
            self.prove(side, case, &plan)?;
        }
        // More windows until the faster side takes long enough.
        loop {
            let raw = self.round(Side::Raw, case, &plan, windows)?;
            let plugin = self.round(Side::Plugin, case, &plan, windows)?;
            let shortest = raw.min(plugin);
            if shortest >= ROUND {
                break;
            }
            // A quarter more than it takes, and at most ten times: the first rounds are slow.
            let factor = 1.25 * ROUND.as_secs_f64() / shortest.as_secs_f64().max(1e-6);
            windows = (windows as f64 * factor.min(10.0)).ceil() as u64;
        }
        let mut times = Vec::with_capacity(pairs as usize);
        for pair in 0..pairs {
            let (raw, plugin) = if pair % 2 == 0 {
                let raw = self.round(Side::Raw, case, &plan, windows)?;
                (raw, self.round(Side::Plugin, case, &plan, windows)?)
            } else {
                let plugin = self.round(Side::Plugin, case, &plan, windows)?;
                (self.round(Side::Raw, case, &plan, windows)?, plugin)
            };
            times.push((raw.as_nanos() as u64, plugin.as_nanos() as u64));
        }
        Ok(Rounds { ops: windows * case.window, pairs: times })
    }

    /// The plugin's operations of a window, ready to be issued.
    fn plan(&self, case: Case) -> Result<Vec<Piece>, String> {
        let Areas { from, to } = self.areas;
        (0..case.window)
            .map(|slot| {
                let at = slot * case.bytes;
                let (remote, local) = match case.direction {
                    Direction::Put => (to, from),
                    Direction::Get => (from, to),
                };
                let pieces = self.ops.plan(1, remote.plus(at), local.plus(at), case.bytes);
                match pieces.map_err(|e| e.to_string())?[..] {
                    [piece] => Ok(piece),
                    ref pieces => Err(format!("{} pieces where one is meant", pieces.len())),
                }
            })
            .collect()
    }

    /// Shows that every byte of a window arrives.
    fn prove(&mut self, side: Side, case: Case, plan: &[Piece]) -> Result<(), String> {
        self.seed += 1;
        let (len, seed) = (case.span(), self.seed);
        self.control.ask(Command::Serve(side))?;
        self.control.ask(Command::Prepare { direction: case.direction, len, seed })?;
        match case.direction {
            Direction::Put => fill(self.ops, self.areas.from, len, seed)?,
            Direction::Get => clear(self.ops, self.areas.to, len)?,
        }
        self.window(side, case, plan)?;
        let proved = match case.direction {
            Direction::Put => self.control.ask(Command::Verify { len, seed }),
            Direction::Get => verify(self.ops, self.areas.to, len, seed),
        };
        proved.map_err(|e| format!("{case}, {side}: {e}"))
    }

    /// One round of one side: what so many windows take.
    fn round(
        &mut self,
        side: Side,
        case: Case,
        plan: &[Piece],
        windows: u64,
    ) -> Result<Duration, String> {
        self.seed += 1;
        let Case { bytes, window, .. } = case;
        let seed = self.seed;
        self.control.ask(Command::Serve(side))?;
        // Untimed: wakes the peer, and brings this side's own state back into the caches.
        self.window(side, case, plan)?;
        match case.direction {
            Direction::Put => stamp(self.ops, self.areas.from, bytes, window, seed)?,
            Direction::Get => self.control.ask(Command::Stamp { bytes, window, seed })?,
        }
        let start = Instant::now();
        for _ in 0..windows {
            self.window(side, case, plan)?;
        }
        let elapsed = start.elapsed();
        let checked = match case.direction {
            Direction::Put => self.control.ask(Command::CheckStamps { bytes, window, seed }),
            Direction::Get => check_stamps(self.ops, self.areas.to, bytes, window, seed),
        };
        checked.map_err(|e| format!("{case}, {side}: {e}"))?;
        Ok(elapsed)
    }

    #[inline]
    fn window(&mut self, side: Side, case: Case, plan: &[Piece]) -> Result<(), String> {
        match side {
            Side::Raw => self.raw_window(case),
            Side::Plugin => plugin_window(self.ops, case.direction, plan),
        }
        .map_err(|e| format!("{case}, {side}: {e}"))
    }

    fn raw_window(&mut self, case: Case) -> Result<(), String> {
        let Areas { from, to } = self.areas;
        let (local, remote) = match case.direction {
            Direction::Put => (from.0, to.0),
            Direction::Get => (to.0, from.0),
        };
        let (direction, len) = (case.direction, case.bytes as usize);
        for slot in 0..case.window {
            let at = slot * case.bytes;
            // SAFETY: the slot is inside the areas, which are inside the heap registered, on both
            // PEs alike. Nothing is in flight when a window begins, and it uses each slot once.
            while !unsafe { self.raw.post(direction, slot as usize, local + at, remote + at, len) }
                .map_err(|e| e.to_string())?
            {
                self.raw.turn().map_err(|e| e.to_string())?;
            }
            if (slot as usize + 1) % BATCH == 0 {
                self.raw.turn().map_err(|e| e.to_string())?;
            }
        }
        let mut turns = 0u32;
        let mut start = None;
        while self.raw.in_flight() > 0 {
            self.raw.turn().map_err(|e| e.to_string())?;
            turns = turns.wrapping_add(1);
            // The plugin has its own watchdog; this is raw's, as rarely.
            if turns % 65536 == 0 && start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("{} operations did not complete", self.raw.in_flight()));
            }
        }
        Ok(())
    }
}

/// A window through the plugin.
pub(crate) fn plugin_window(ops: &Ops, direction: Direction, plan: &[Piece]) -> Result<(), String> {
    for batch in plan.chunks(BATCH) {
        for piece in batch {
            match direction {
                Direction::Put => ops.issue_put(piece),
                Direction::Get => ops.issue_get(piece),
            }
            .map_err(|e| e.to_string())?;
        }
        if batch.len() == BATCH {
            ops.progress().map_err(|e| e.to_string())?;
        }
    }
    ops.quiet_pe(1).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_survive_the_way_to_the_launcher() {
        let rounds = Rounds { ops: 64, pairs: vec![(1000, 2000), (300, 200)] };
        assert_eq!(Rounds::decode(&rounds.encode()), Some(rounds.clone()));
        assert_eq!(rounds.ratios(), [0.5, 1.5]);
        assert_eq!(rounds.rates(Side::Raw)[0], 64e6);
        assert_eq!(rounds.rates(Side::Plugin)[0], 32e6);
        assert_eq!(Rounds::decode("64 1000"), None);
        assert_eq!(Rounds::decode(""), None);
    }
}
