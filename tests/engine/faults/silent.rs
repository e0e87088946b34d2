//! A peer that answers nothing: when it is declared failed, on the fake's clock.

use std::time::Duration;

use engine::error::EngineError;
use engine::ids::Pe;
use sim_fabric::Script;

use super::What;
use crate::job::{Job, Shape};
use crate::signals::Targets;

const DEADLINE: Duration = Duration::from_secs(2);

/// How much later than its deadline a wait may be given up, and how much earlier: the clock of
/// segments goes in quarters of a second, connections are looked at as often, and the clock is read
/// in turns.
const LATER: Duration = Duration::from_secs(1);
const EARLIER: Duration = Duration::from_millis(600);

/// Whatever is under way, over however many rails, and however long a progress iteration takes.
#[test]
fn silent_peer_is_given_up_in_time() {
    let mut broken = Vec::new();
    for rails in [1, 2, 4] {
        for staged in [0, 0b0100, 0b0110] {
            for iteration in [100_000, 3_000_000, 20_000_000, 300_000_000] {
                for what in What::ALL {
                    let deadline = Some(DEADLINE);
                    let shape = Shape { rails, staged, deadline, ..Shape::default() };
                    let mut job = Job::new(7, &shape, Script::default());
                    let took = given_up_after(&mut job, what, Duration::from_nanos(iteration));
                    let right = DEADLINE - EARLIER..=DEADLINE + LATER;
                    if !right.contains(&took) {
                        broken.push(format!(
                            "{what:?}, {rails} rails, staged {staged:#b}, iterations of \
                             {iteration} ns: {took:?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(broken.is_empty(), "{} cases: {broken:#?}", broken.len());
}

/// How long PE 0 waits for PE 1, which has had nothing of it and never says a word.
fn given_up_after(job: &mut Job, what: What, iteration: Duration) -> Duration {
    let (targets, fabric) = (Targets::of(job), job.fabric.clone());
    fabric.stall(Pe(1));
    let iteration = iteration.as_nanos() as u64;
    // It has been there for a while.
    for _ in 0..300 {
        job.members[0].lane.progress().unwrap();
        fabric.pass_time(iteration);
    }
    let began = fabric.now();
    what.begin(job, &targets).unwrap();
    loop {
        let took = Duration::from_nanos(fabric.now() - began);
        assert!(took < 100 * DEADLINE, "it waits for ever");
        match job.members[0].lane.is_quiet(Pe(1)) {
            Err(EngineError::Timeout { pe: Pe(1), .. }) => return took,
            Err(other) => panic!("{what:?}: {other}"),
            Ok(quiet) => assert!(!quiet, "{what:?}: nobody has answered"),
        }
        let _ = job.members[0].lane.progress();
        fabric.pass_time(iteration);
    }
}

#[test]
fn idle_lane_hears_of_an_ended_peer() {
    for lets_peers_end in [false, true] {
        let shape = Shape { n_pes: 3, deadline: Some(DEADLINE), ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        if lets_peers_end {
            job.members[0].lane.let_peers_end();
        }
        let patience = 5 * DEADLINE.as_nanos() as u64;
        let until_failed = |job: &mut Job| {
            let start = job.fabric.now();
            let mut failed = None;
            while failed.is_none() && job.fabric.now() - start < patience {
                failed = job.members[0].lane.progress().err();
                job.fabric.pass_time(1_000_000);
            }
            (failed.map(|error| error.to_string()), job.fabric.now() - start)
        };
        assert_eq!(until_failed(&mut job).0, None, "all are there");
        job.fabric.end_process(Pe(1));
        let (failed, waited) = until_failed(&mut job);
        if lets_peers_end {
            assert_eq!(failed, None);
            continue;
        }
        let error = failed.expect("nobody will ever hear of it");
        assert!(error.contains("PE 1 has ended"), "{error}");
        let waited = Duration::from_nanos(waited);
        assert!((DEADLINE - EARLIER..=DEADLINE + LATER).contains(&waited), "{waited:?}");
    }
}
