//! A race: one program per PE, as threads that the fake gives the baton by a seed.

use std::sync::atomic::{AtomicUsize, Ordering};

use engine::error::EngineError;
use sim_fabric::FakeFabric;

use super::Targets;
use crate::job::{Job, Member};

struct Over<'a>(&'a AtomicUsize);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn race(
    job: Job,
    seed: u64,
    program: impl Fn(u32, &mut Member, &Targets) -> Result<(), EngineError> + Sync,
) -> (FakeFabric, Vec<Member>) {
    let iterate = |member: &mut Member| {
        member.lane.progress().unwrap();
    };
    let program = |pe: u32, member: &mut Member, targets: &Targets| {
        program(pe, member, targets).unwrap();
    };
    let (fabric, members) = race_with(job, seed, program, iterate);
    (fabric, members.into_iter().map(|(member, ())| member).collect())
}

pub(crate) fn race_with<R: Send>(
    job: Job,
    seed: u64,
    program: impl Fn(u32, &mut Member, &Targets) -> R + Sync,
    iterate: impl Fn(&mut Member) + Sync,
) -> (FakeFabric, Vec<(Member, R)>) {
    let targets = Targets::of(&job);
    let (fabric, heap) = (job.fabric.clone(), job.heap);
    let left = AtomicUsize::new(job.members.len());
    let runners = job.members.into_iter().enumerate().map(|(pe, mut member)| {
        let (targets, fabric, left) = (&targets, &fabric, &left);
        let (program, iterate) = (&program, &iterate);
        let run = move || {
            // Also when it panics, or the others would wait for it for ever.
            let over = Over(left);
            let told = program(pe as u32, &mut member, targets);
            drop(over);
            while left.load(Ordering::SeqCst) > 0 {
                iterate(&mut member);
                fabric.step();
            }
            (member, told)
        };
        Box::new(run) as Box<dyn FnOnce() -> (Member, R) + Send + '_>
    });
    let runners = runners.collect();
    let members = fabric.race(seed, runners).into_iter().map(|result| match result {
        Ok(member) => member,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    let members: Vec<(Member, R)> = members.collect();
    members.iter().for_each(|(member, _)| member.check_canaries(&fabric, heap));
    (fabric, members)
}
