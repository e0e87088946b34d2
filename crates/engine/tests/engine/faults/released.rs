//! Requests of peers that name memory which was released, and whose place in the table another
//! region has since.

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::SignalEngine;
use engine::port::{Access, Direction};
use engine::request::{PutSignalRequest, Request, ResultPlace};
use sim_fabric::Script;

use crate::job::{Job, Shape};
use crate::signals::Targets;

const LEN: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum What {
    Add,
    Fetch,
    Signal,
    SmallPutSignal,
    PutSignal,
    StagedPut,
    StagedGet,
}

/// Each kind of message that names a region of its receiver, with a handle that has outlived its
/// region: the sender is told, and the region that came after it is not touched, nor read.
#[test]
fn a_message_about_released_memory_does_not_reach_what_came_after_it() {
    use What::{Add, Fetch, PutSignal, Signal, SmallPutSignal, StagedGet, StagedPut};
    for what in [Add, Fetch, Signal, SmallPutSignal, PutSignal, StagedPut, StagedGet] {
        let staged = if matches!(what, StagedPut | StagedGet) { 0b0100 } else { 0 };
        for signals in [SignalEngine::Eager, SignalEngine::Chained, SignalEngine::Counted] {
            let shape = Shape { staged, signals, ..Shape::default() };
            let mut job = Job::new(3, &shape, Script::default());
            let targets = Targets::of(&job);
            let second = &mut job.members[1];
            second.regions.release(&second.handle).unwrap();
            let (heap, fabric) = (second.base, job.fabric.clone());
            // The same memory, so that nothing but the region tells one from the other.
            fabric.store(Pe(1), heap, &[0x33; LEN]);
            second.handle =
                second.regions.register(heap, job.heap, Access::LocalAndRemote).unwrap();
            job.fill_scratch(0, &[0x77; LEN]);
            let failed = ask(&mut job, &targets, what);
            let at = format!("{what:?}, {signals:?}: {failed:?}");
            assert!(failed.is_err(), "{at}");
            assert_eq!(job.heap(1, 0, LEN), [0x33; LEN], "{at}");
            let scratch = fabric.load(Pe(0), job.members[0].scratch, LEN);
            assert_eq!(scratch, [0x77; LEN], "{at}");
        }
    }
}

fn ask(job: &mut Job, targets: &Targets, what: What) -> Result<(), EngineError> {
    let scratch = job.members[0].scratch;
    let part = |len| targets.part(scratch, 1, 0, len);
    let atomic = |op| targets.atomic(1, 2048, op, 1);
    let lane = &mut job.members[0].lane;
    match what {
        What::Add => lane.atomic(&atomic(AtomicOp::Add))?,
        What::Fetch => {
            let mut fetch = atomic(AtomicOp::FetchAdd);
            fetch.result = Some(ResultPlace { addr: scratch + 1024, flag: None });
            lane.atomic(&fetch)?;
        }
        What::Signal => lane.atomic(&atomic(AtomicOp::SignalSet))?,
        What::SmallPutSignal | What::PutSignal => {
            let len = if matches!(what, What::PutSignal) { 1000 } else { 16 };
            let (parts, signal) = (&[part(len)][..], atomic(AtomicOp::SignalAdd));
            lane.put_signal(&PutSignalRequest { parts, signal })?;
        }
        What::StagedPut => lane.start(&part(700)).map(drop)?,
        What::StagedGet => {
            let get = Request { direction: Direction::Read, ..part(700) };
            lane.start(&get).map(drop)?;
        }
    }
    for _ in 0..20_000 {
        if job.members[0].lane.is_quiet(Pe(1))? {
            return Ok(());
        }
        for member in &mut job.members {
            let _ = member.lane.progress();
        }
        job.fabric.pass_time(10_000);
    }
    panic!("{what:?}: neither an error nor an end");
}
