//! Random programs of all PEs at once, over every shape and every misbehaviour: operations as users
//! mix them, between PEs that differ in their memory and their limits, with regions, overlapping
//! ones too, that come and go beside the traffic.
//!
//! Whichever operations go together, what comes behind a fence is seen behind all before it, and a
//! signal behind the puts before it. What a quiet or the end of a batch has promised is there. What
//! was not promised, since something has failed, is there, or is not, or in part, and nothing else.

mod check;
mod program;

pub(crate) use self::program::Link;
use self::program::{Program, Region};
use crate::faults::Fault;
use crate::prelude::*;
use crate::race::random_words;
use crate::staged::{ALL, patterned};

/// The part of a heap that one sender has for itself: what is put once, what is put again and
/// again, and words that are changed once, behind those that are changed again and again.
const PART: usize = 1 << 17;
const AGAIN: usize = PART - 5120;
const MAX_AGAIN: usize = 1024;
const LAST: usize = PART - 4096;
const ONCE: usize = LAST + 64;

/// Behind the parts of four senders: words that all of them add to, and bytes that never change.
pub(crate) const SUMS: usize = 4 * PART;
const STEADY: usize = SUMS + 64;
const STEADY_LEN: usize = 10_000;
pub(crate) const HEAP: usize = STEADY + STEADY_LEN;

const CHANGED: u64 = 0x77;

/// Local memory: places that bytes are put from, and behind them places for bytes that are fetched.
const SOURCES: usize = 4;
const APART: usize = 25 << 10;
const LANDING: usize = SOURCES * APART;
const AREA: usize = LANDING + (64 << 10);

/// Whatever waits for a bounce buffer or for room behind others may wait for minutes.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(3600));

/// No run has as many faults that are waited for one after the other.
pub(crate) const LONGEST_RUN: Duration = Duration::from_secs(1000);

/// Draws a shape for each PE, which agree in what PEs of a job agree on; or the same for all.
pub(crate) fn draw_shapes(random: &mut Random) -> Vec<Shape> {
    let agreed = random_shape(random);
    let staged = [ALL, ALL, agreed.staged, 0][random.below(4)];
    let (words, differ) = (random_words(random), random.below(2) == 0);
    let late = agreed.late && !differ;
    let agreed = Shape { staged, words, late, heap: HEAP, deadline: PATIENCE, ..agreed };
    let mut of_pe = |_| {
        let drawn = random_shape(random);
        let bounces = [drawn.bounce, (256, 4, 3), (4096, 3, 2), (65_536, 4, 4), (1 << 17, 8, 8)];
        Shape {
            depth: [64, drawn.depth][random.below(2)],
            max_segment: [3, drawn.max_segment][random.below(6).min(1)],
            bounce: bounces[random.below(5)],
            needs_desc: drawn.needs_desc,
            fast: drawn.fast,
            signals: drawn.signals,
            counted: drawn.counted,
            spread: drawn.spread,
            ..agreed.clone()
        }
    };
    let n = agreed.n_pes;
    if differ { (0..n).map(of_pe).collect() } else { vec![of_pe(0); n as usize] }
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) steps: usize,
    pub(crate) longest: usize,
    pub(crate) has_batches: bool,
    /// Who comes to which step, and the fault that begins or ends then.
    pub(crate) faults: Vec<(u32, usize, Fault, bool)>,
}

impl Plan {
    fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    fn befall(&self, me: u32, step: usize, fabric: &FakeFabric) {
        let due = self.faults.iter().filter(|(who, at, ..)| (*who, *at) == (me, step));
        due.for_each(|(.., fault, begins)| fault.set(fabric, *begins));
    }
}

/// Programs that have been run, and what is left of their job.
pub(crate) struct Ran {
    pub(crate) fabric: FakeFabric,
    pub(crate) members: Vec<Member>,
    pub(crate) targets: Targets,
    /// By sender and target.
    pub(crate) links: Vec<Vec<Link>>,
    /// Regions that each PE has registered beside the traffic and not released.
    pub(crate) extra: Vec<Vec<Region>>,
    ordered: bool,
}

pub(crate) fn run(plan: &Plan, random: &mut Random, script: Script) -> Ran {
    let (seed, shapes) = (plan.seed, &plan.shapes);
    let mut job = Job::of(seed, shapes, script);
    let (fabric, targets, n) = (job.fabric.clone(), job.targets.clone(), shapes.len());
    for pe in (0..n as u32).filter(|_| random.below(6) == 0) {
        fabric.world().blind.insert(Pe(pe));
    }
    let ordered = random.below(3) == 0;
    if ordered {
        job = job.with_ordered_signals();
    }
    let (mut known, mut loose) = (Vec::new(), Vec::new());
    for (pe, member) in (0..).zip(&job.members) {
        let steady = patterned(pe, 0..STEADY_LEN);
        fabric.store(Pe(pe), member.base + STEADY, &steady);
        let of = |set: u32| set.checked_shr(2 * pe).unwrap_or(0) & 3;
        let has_devices = of(shapes[0].staged) != 0 || of(shapes[0].words) > 1;
        let device = [Reach::Staged, Reach::Fabric][random.below(2)];
        let kinds = [Some(Reach::Direct), Some(device).filter(|_| has_devices)];
        let alloc = |reach| fabric.alloc_reached(Pe(pe), AREA, reach);
        loose.push(kinds.into_iter().flatten().map(alloc).collect::<Vec<usize>>());
        let mut regions =
            vec![(member.base, HEAP, member.handle), (member.words, HEAP, member.words_handle)];
        for _ in 0..random.below(4) {
            let base = [member.base, member.words][random.below(2)];
            let at = random.below(HEAP) * random.below(2);
            let len = [HEAP - at, 1 + random.below(HEAP - at)][random.below(2)];
            let handle = member.regions.register(base + at, len, Access::LocalAndRemote);
            regions.push((base + at, len, handle.unwrap()));
        }
        known.push(regions);
    }
    let distance = [1, 1, 0, 2][random.below(4)];
    let (fabric, members) = race(job, seed, |me, member, targets| {
        let bases = std::iter::once(member.scratch).chain(loose[me as usize].iter().copied());
        Program {
            me,
            areas: bases.map(|base| (base, LANDING)).collect(),
            batch: member.lane.begin_batch().unwrap(),
            member,
            targets,
            known: &known,
            fabric: &fabric,
            random: Random::new(seed ^ u64::from(me + 1) << 40),
            extra: Vec::new(),
            plan,
            favourite: (me as usize + distance) % n,
            to: 0,
            links: (0..n).map(|_| Link::default()).collect(),
        }
        .run()
    });
    let (members, (links, extra)) = members.into_iter().unzip();
    Ran { fabric, members, targets, links, extra, ordered }
}

#[test]
fn mixed_operations_keep_their_order() {
    for_seeds("mixed_operations_keep_their_order", &[], 70, |seed| {
        let mut random = Random::new(seed * 0x9e37_79b9 + 5);
        let shapes = draw_shapes(&mut random);
        let drawn = random_script(&mut random);
        let again_percent = drawn.again_percent.min(50);
        let script = Script { slow_rails: Vec::new(), again_percent, ..drawn };
        let is_slow = |shape: &Shape| shape.bounce.0 < 4096 || shape.max_segment < 1000;
        let plan = Plan {
            seed,
            longest: if shapes.iter().any(is_slow) { 2000 } else { HEAP },
            shapes,
            steps: 20 + random.below(100),
            has_batches: random.below(3) == 0,
            faults: Vec::new(),
        };
        let ran = run(&plan, &mut random, script);
        assert!(ran.members.iter().all(|member| member.lane.failure().is_none()));
        assert!(ran.links.iter().flatten().all(Link::all_promised));
        ran.check(|_| false);
    });
}
