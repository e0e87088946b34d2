//! Requests of peers that name memory which was released, and whose place in the table another
//! region has since.

use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::SignalEngine;
use engine::port::Access;
use sim_fabric::Script;

use super::What;
use crate::job::{Job, Shape};
use crate::signals::Targets;

const LEN: usize = 4096;

/// Each kind of message that names a region of its receiver, with a handle that has outlived its
/// region: the sender is told, and the region that came after it is not touched, nor read.
#[test]
fn released_memory_is_not_reached() {
    for what in What::ALL {
        let staged = if what.is_staged() { 0b0100 } else { 0 };
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
            let text = failed.unwrap_err().to_string();
            let whys = ["not registered", "the key is not of the rail"];
            assert!(text.contains("PE 1") && whys.iter().any(|why| text.contains(why)), "{at}");
            let names = match what {
                What::Put(_) => "put",
                What::Get(_) => "get",
                _ => "",
            };
            assert!(text.contains(names), "{at}");
            assert_eq!(job.heap(1, 0, LEN), [0x33; LEN], "{at}");
            let scratch = fabric.load(Pe(0), job.members[0].scratch, LEN);
            assert_eq!(scratch, [0x77; LEN], "{at}");
        }
    }
}

fn ask(job: &mut Job, targets: &Targets, what: What) -> Result<(), EngineError> {
    what.begin(job, targets)?;
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
