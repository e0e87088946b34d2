//! Every execution of a case, by replay: depth first over every choice that the fabric and the
//! scheduler have.
//!
//! A choice is taken where nothing has been said yet by the path being replayed. Before it, the
//! state is looked up among those seen: a lane's state is what the history of all it was told says,
//! so executions that differ only in the order of things that do not touch one another meet there,
//! and the second goes no further.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use engine::Watchdog;
use engine::lane::LaneConfig;
use engine::regions::RegionTable;

use super::port::{ModelMemory, ModelPort};
use super::program::{Case, OPS, Op, ProgramOp};
use super::search::{Choice, Fork, Search};
use super::world::{Done, HEAP, Mail, World, flag, heap, operand, place, result, source};
use crate::prelude::*;
use sim_fabric::lane_config;

const LONGEST: usize = 500;

struct Pruned;

pub(crate) struct Model {
    pub(crate) world: RefCell<World>,
    search: RefCell<Search>,
    lanes: [RefCell<Option<Lane<ModelPort>>>; 2],
    targets: Targets,
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Explored {
    pub(crate) executions: u64,
    pub(crate) ended: u64,
    pub(crate) states: usize,
    pub(crate) longest: usize,
}

/// Runs all executions of a case, or `most`; with a seed, so many whose choices follow from it. A
/// broken rule is a panic, after the path to it was printed.
pub(crate) fn explore(case: &Case, most: u64, seed: Option<u64>) -> Explored {
    let mut search = Search { random: seed.map(Random::new), ..Search::default() };
    let case = Rc::new(case.clone());
    let mut explored = Explored::default();
    loop {
        // What a failure leaves under way is known to the memory that it touches.
        let tables =
            [0, 1].map(|pe| RegionTable::new(ModelMemory { pe, rails: case.rails }, Pe(pe as u32)));
        let register = |pe: usize| tables[pe].register(heap(pe), HEAP, Access::LocalAndRemote);
        let targets = Targets::of(&[0, 1].map(|pe| (heap(pe), register(pe).unwrap())));
        search.at = 0;
        let model = Rc::new(Model {
            world: RefCell::new(World::new(Rc::clone(&case))),
            search: RefCell::new(search),
            lanes: [RefCell::new(None), RefCell::new(None)],
            targets,
        });
        for (pe, table) in tables.iter().enumerate() {
            let lane = lane(&model, &case, pe, table.directory());
            *model.lanes[pe].borrow_mut() = Some(lane);
        }
        let ran = catch_unwind(AssertUnwindSafe(|| model.run()));
        for lane in &model.lanes {
            lane.take();
        }
        search = model.search.take();
        match ran {
            Ok(ended) => explored.ended += u64::from(ended),
            Err(panic) if panic.is::<Pruned>() => {}
            Err(panic) => {
                eprintln!("case {}: the path to the broken rule", case.name);
                for fork in &search.path[..search.at] {
                    eprintln!("    {:?}", fork.taken);
                }
                resume_unwind(panic);
            }
        }
        explored.executions += 1;
        explored.longest = explored.longest.max(search.path.len());
        explored.states = search.seen.len();
        // On from the deepest fork with something left to try; a random execution leaves nothing.
        while let Some(fork) = search.path.last_mut() {
            if let Some(next) = fork.left.pop() {
                fork.taken = next;
                break;
            }
            search.path.pop();
        }
        if explored.executions == most || seed.is_none() && search.path.is_empty() {
            return explored;
        }
    }
}

fn lane(
    model: &Rc<Model>,
    case: &Case,
    pe: usize,
    regions: std::sync::Arc<engine::regions::RegionDirectory>,
) -> Lane<ModelPort> {
    let shape =
        Shape { rails: case.rails, depth: case.depth, max_segment: 8, needs_desc: false, ..PLAIN };
    // As for all operations of the model: a segment is a word.
    let balanced = Spread { balanced_from: 9, striped_from: 9, segment: 64 };
    let config = LaneConfig {
        watchdog: Watchdog::new(None, None),
        signals: case.signals,
        counted: case.counted,
        spread: if case.balanced { balanced } else { Spread::ROUND_ROBIN },
        ..lane_config(Pe(pe as u32), shape.paths(pe as u32), regions)
    };
    let port = ModelPort { model: Rc::clone(model), pe, limits: shape.limits() };
    Lane::new(port, config)
}

impl Model {
    fn run(&self) -> bool {
        loop {
            match self.choose() {
                Some(Choice::Resume | Choice::Again(_) | Choice::Early(_)) => {
                    unreachable!("nobody waits")
                }
                Some(choice) => self.act(choice),
                None => {
                    let world = self.world.borrow();
                    let ended = self.enabled(&world).is_empty();
                    if ended {
                        world.check_end();
                        for (pe, lane) in self.lanes.iter().enumerate() {
                            let lane = lane.borrow();
                            let has_work = lane.as_ref().is_some_and(Lane::has_work);
                            let failed = world.sides.iter().any(|side| side.failed);
                            assert!(!has_work || failed, "PE {pe} has work left");
                        }
                    }
                    return ended;
                }
            }
        }
    }

    pub(crate) fn run_others(&self, pe: usize) {
        let before = self.world.borrow_mut().blocked.replace(pe);
        assert_eq!(before, None, "an iteration does not wait");
        loop {
            match self.choose() {
                Some(Choice::Resume) => break,
                Some(choice) => self.act(choice),
                None => {
                    let world = self.world.borrow();
                    // Waits for a failed PE end by its watchdog.
                    let stuck = self.enabled(&world).is_empty() && !world.sides[1 - pe].failed;
                    assert!(!stuck, "PE {pe} waits inside a call and nothing can move");
                    resume_unwind(Box::new(Pruned));
                }
            }
        }
        let mut world = self.world.borrow_mut();
        (world.blocked, world.fed) = (None, None);
    }

    fn choose(&self) -> Option<Choice> {
        {
            let mut search = self.search.borrow_mut();
            let at = search.at;
            if let Some(fork) = search.path.get(at) {
                let taken = fork.taken;
                search.at += 1;
                return Some(taken);
            }
            let longest = if search.random.is_some() { 20 * LONGEST } else { LONGEST };
            assert!(at < longest, "an execution that does not end");
        }
        let world = self.world.borrow();
        let mut left = self.enabled(&world);
        let mut search = self.search.borrow_mut();
        let mut taken = *left.last()?;
        if let Some(random) = &mut search.random {
            taken = left.swap_remove(random.below(left.len()));
            left.clear();
        } else if !search.seen.insert(world.hash()) {
            return None;
        } else {
            left.pop();
        }
        search.path.push(Fork { taken, left });
        search.at += 1;
        Some(taken)
    }

    pub(crate) fn choose_again(&self) -> bool {
        self.choose_within_call(Choice::Again, |world| &mut world.again)
    }

    pub(crate) fn choose_early(&self) -> bool {
        self.choose_within_call(Choice::Early, |world| &mut world.early)
    }

    /// Chooses within a call whether something happens that may happen so often still.
    fn choose_within_call(&self, of: fn(bool) -> Choice, left: fn(&mut World) -> &mut u32) -> bool {
        let mut world = self.world.borrow_mut();
        let left = left(&mut world);
        if *left == 0 {
            return false;
        }
        let mut search = self.search.borrow_mut();
        let at = search.at;
        if search.path.len() == at {
            let fork = match &mut search.random {
                Some(random) => Fork { taken: of(random.below(4) == 0), left: Vec::new() },
                None => Fork { taken: of(false), left: vec![of(true)] },
            };
            search.path.push(fork);
        }
        search.at += 1;
        let taken = search.path[at].taken;
        assert!([of(false), of(true)].contains(&taken), "a replay differs");
        *left -= u32::from(taken == of(true));
        taken == of(true)
    }

    /// Everything that can happen next.
    ///
    /// What a lane will be told waits until right before the lane looks: then come all that the
    /// turn will find, in the order in which an iteration looks at them, and then the turn.
    fn enabled(&self, world: &World) -> Vec<Choice> {
        let search = self.search.borrow();
        let mut choices = Vec::new();
        let fed = world.fed.map(|fed| fed.pe);
        for (pe, side) in world.sides.iter().enumerate() {
            if fed.is_some_and(|fed| fed != pe) {
                continue;
            }
            // An error is reported by a poll of its own, so an iteration may leave some.
            let told = fed.is_some() || side.done.iter().any(|done| !done.is_empty());
            if world.blocked == Some(pe) {
                if told {
                    choices.push(Choice::Resume);
                }
                continue;
            }
            if told || !search.idle.contains(&side.history) {
                choices.push(Choice::Turn(pe));
            }
            let may_issue = world.blocked.is_none() && !side.quieting && !side.failed;
            if fed.is_none() && may_issue && side.next < world.case.programs[pe].len() {
                choices.push(Choice::Issue(pe));
            }
        }
        for flight in &world.flights {
            if world.may_feed(flight.from, flight.rail, false) {
                choices.push(Choice::Complete(flight.id));
                if world.failures > 0 && !flight.delivered {
                    choices.push(Choice::LoseWrite(flight.id));
                }
            }
        }
        for notice in &world.notices {
            if world.may_feed(notice.to, notice.to_rail, true) {
                choices.push(Choice::Land(notice.id));
            }
        }
        for letter in &world.letters {
            if world.may_feed(letter.to, letter.to_rail, true) {
                choices.push(Choice::Arrive(letter.id));
                if world.duplicates > 0 && !letter.again {
                    choices.push(Choice::ArriveTwice(letter.id));
                }
            }
            // The loss of a control message is known only to who waits for it.
            let losable = letter.wr_id.0 != u32::MAX && !letter.again;
            if world.failures > 0 && losable && world.may_feed(letter.from, letter.rail, false) {
                choices.push(Choice::LoseMessage(letter.id));
            }
        }
        if world.rail_failures > 0 {
            let rails = || (0..world.case.rails).map(RailId);
            for (pe, rail) in (0..2).flat_map(|pe| rails().map(move |rail| (pe, rail))) {
                let flies = world.flights.iter().any(|it| (it.from, it.rail) == (pe, rail));
                let goes = world.letters.iter().any(|it| (it.from, it.rail) == (pe, rail));
                let whole = world.dead_rails[pe].is_none();
                if whole && (flies || goes) && world.may_feed(pe, rail, false) {
                    choices.push(Choice::LoseRail(pe, rail));
                }
            }
        }
        choices
    }

    fn act(&self, choice: Choice) {
        let letter = |world: &World, id| world.letters.iter().position(|letter| letter.id == id);
        match choice {
            Choice::Issue(pe) => return self.issue(pe),
            Choice::Turn(pe) => return self.iterate(pe),
            _ => {}
        }
        let mut world = self.world.borrow_mut();
        match choice {
            Choice::Issue(_) | Choice::Turn(_) => {}
            Choice::Resume | Choice::Again(_) | Choice::Early(_) => {}
            Choice::Complete(id) | Choice::LoseWrite(id) => {
                let is_lost = matches!(choice, Choice::LoseWrite(_));
                if is_lost {
                    world.notices.retain(|notice| notice.id != id);
                } else {
                    world.deliver(id);
                }
                let at = world.flights.iter().position(|flight| flight.id == id).unwrap();
                let gone = world.flights.remove(at);
                let done = if is_lost { Done::Failed } else { Done::Completed };
                world.report(gone.from, gone.rail, done(gone.wr_id));
            }
            Choice::Land(id) => {
                world.deliver(id);
                let at = world.notices.iter().position(|notice| notice.id == id).unwrap();
                let told = world.notices.remove(at);
                world.feed(told.to, told.to_rail, true);
                let inbox = &mut world.sides[told.to].inbox[told.to_rail.index()];
                inbox.push_back(Mail::ImmediateData(told.data));
            }
            Choice::Arrive(id) | Choice::ArriveTwice(id) => {
                let at = letter(&world, id).unwrap();
                let arrived = if matches!(choice, Choice::Arrive(_)) {
                    world.letters.remove(at)
                } else {
                    world.duplicates -= 1;
                    world.letters[at].again = true;
                    world.letters[at].clone()
                };
                world.feed(arrived.to, arrived.to_rail, true);
                let inbox = &mut world.sides[arrived.to].inbox[arrived.to_rail.index()];
                inbox.push_back(Mail::Message(arrived.bytes));
            }
            Choice::LoseRail(pe, rail) => world.fail_rail(pe, rail),
            Choice::LoseMessage(id) => {
                let at = letter(&world, id).unwrap();
                let gone = world.letters.remove(at);
                world.report(gone.from, gone.rail, Done::MessageFailed(gone.wr_id));
            }
        }
    }

    fn iterate(&self, pe: usize) {
        let (before, begun) = {
            let mut world = self.world.borrow_mut();
            world.fed = None;
            let before = world.sides[pe].history;
            world.told(pe, "iteration");
            (before, world.sides[pe].history)
        };
        let turned = self.with_lane(pe, Lane::progress);
        let told = self.world.borrow().sides[pe].history != begun;
        if !told {
            self.world.borrow_mut().sides[pe].history = before;
            self.search.borrow_mut().idle.insert(before);
        }
        if self.went_well(pe, turned.map(drop).map_err(EngineError::from))
            && self.world.borrow().sides[pe].quieting
        {
            self.look_whether_quiet(pe);
        }
    }

    fn issue(&self, pe: usize) {
        let (number, op) = {
            let mut world = self.world.borrow_mut();
            let number = pe * OPS + world.sides[pe].next;
            world.told(pe, "issue");
            world.sides[pe].next += 1;
            (number, world.case.op(number))
        };
        let issued = match op.what {
            ProgramOp::Quiet => {
                self.world.borrow_mut().sides[pe].quieting = true;
                return self.look_whether_quiet(pe);
            }
            ProgramOp::Fence => self.with_lane(pe, |lane| {
                lane.fence(Pe(0))?;
                lane.fence(Pe(1))
            }),
            ProgramOp::Put(words) => {
                self.with_lane(pe, |lane| lane.start(&self.part(number, op, words)))
            }
            ProgramOp::Signal(words) => {
                let parts = [self.part(number, op, words)];
                let parts = &parts[..usize::from(words > 0)];
                let signal = self.atomic(number, op);
                self.with_lane(pe, |lane| lane.put_signal(&PutSignalRequest { parts, signal }))
            }
            ProgramOp::SignalBehind | ProgramOp::Add | ProgramOp::FetchAdd => {
                self.with_lane(pe, |lane| lane.atomic(&self.atomic(number, op)))
            }
        };
        self.went_well(pe, issued);
    }

    fn look_whether_quiet(&self, pe: usize) {
        let quiet = self.with_lane(pe, |lane| Ok(lane.is_quiet(Pe(0))? & lane.is_quiet(Pe(1))?));
        match quiet {
            Ok(false) => {}
            Ok(true) => {
                let mut world = self.world.borrow_mut();
                world.sides[pe].quieting = false;
                world.quiet_returned(pe);
            }
            Err(error) => {
                self.went_well(pe, Err(error));
            }
        }
    }

    /// An error ends the PE's program, and is one only if something was lost.
    fn went_well(&self, pe: usize, outcome: Result<(), EngineError>) -> bool {
        if let Err(error) = &outcome {
            let mut world = self.world.borrow_mut();
            assert!(world.lost() > 0, "PE {pe}: {error}");
            world.sides[pe].failed = true;
            world.sides[pe].quieting = false;
        }
        outcome.is_ok()
    }

    fn with_lane<T>(&self, pe: usize, with: impl FnOnce(&mut Lane<ModelPort>) -> T) -> T {
        let mut lane = self.lanes[pe].borrow_mut();
        with(lane.as_mut().expect("a lane"))
    }

    fn part(&self, number: usize, op: Op, words: usize) -> Request<'_> {
        let (local, at) = (source(op.from, number), place(number) + 8);
        self.targets.part(local, op.to as u32, at, 8 * words)
    }

    fn atomic(&self, number: usize, op: Op) -> AtomicRequest<'_> {
        let (code, offset) = match op.what {
            ProgramOp::Signal(_) | ProgramOp::SignalBehind => (AtomicOp::SignalAdd, place(number)),
            ProgramOp::FetchAdd => (AtomicOp::FetchAdd, 0),
            _ => (AtomicOp::Add, 0),
        };
        let place = FetchTarget { addr: result(op.from, number), flag: Some(flag(number)) };
        let result = (op.what == ProgramOp::FetchAdd).then_some(place);
        let atomic = self.targets.atomic(op.to as u32, offset, code, operand(number));
        AtomicRequest { result, ..atomic }
    }
}
