//! The plugin beside raw libfabric: the PEs' part.
//!
//! Both sides run on the proxy thread of the same two processes, on the same memory, in the same
//! loop: post a window, with a poll after every 32 posts as NVSHMEM's proxy does, then wait for
//! all of it. Rounds of the two sides alternate, and who comes first alternates as well, so that
//! each pair of rounds sees the same machine. Each PE's thread stays on a core of its own: where
//! the scheduler puts them is worth more than a factor of two, and is none of our business.

use std::time::{Duration, Instant};

use nvshmem_sim::{BoxError, Job, Ops, Piece};

use crate::area::{AREA_BYTES, Areas, check_stamps, clear, fill, stamp, verify};
use crate::case::{Case, Direction};
use crate::command::{Command, Side};
use crate::control::{Control, PATIENCE};
use crate::cores;
use crate::raw::{Promise, Raw};
use crate::rounds::{Rounds, Schedule, Took};
use crate::setup;
use crate::target;

/// Name of the scenario.
pub(crate) const SCENARIO: &str = "compare";

/// Operations between two polls: what NVSHMEM's proxy takes from its channel at a time.
const BATCH: usize = 32;

/// Largest window of all cases.
const SLOTS: usize = 64;

/// The sides, in the order in which they are reported.
const SIDES: [Side; 2] = [Side::Raw, Side::Plugin];

/// One PE. For its parameters see [`setup`].
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (schedule, control) = (setup::schedule(job)?, setup::control(job)?);
    let host = job.init()?;
    let areas = Areas { from: host.alloc(AREA_BYTES, 4096)?, to: host.alloc(AREA_BYTES, 4096)? };
    // SAFETY: it lives in the closures below, which have ended before `finalize`.
    let raw = unsafe { setup::open_raw(job, &host, Promise::Delivered, SLOTS)? };
    job.report("raw", raw.describe())?;

    if job.pe() == 0 {
        let rounds = host.proxy().run(move |ops| -> Result<Vec<(Case, Rounds)>, String> {
            cores::bind(0, 2).map_err(|e| e.to_string())?;
            let mut source = Source { ops, raw, control, areas, seed: 0 };
            let rounds = Case::all().map(|case| Ok((case, source.measure(case, schedule)?)));
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

/// PE 0.
struct Source<'a> {
    ops: &'a Ops,
    raw: Raw,
    control: Control<Command>,
    areas: Areas,
    /// A new number for every pattern and every round.
    seed: u64,
}

impl Source<'_> {
    fn measure(&mut self, case: Case, schedule: Schedule) -> Result<Rounds, String> {
        let plan = self.plan(case)?;
        for side in SIDES {
            self.prove(side, case, &plan)?;
        }
        schedule.run(&SIDES, case.window, |side, windows| {
            self.round(side, case, &plan, windows).map(Took::from)
        })
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
