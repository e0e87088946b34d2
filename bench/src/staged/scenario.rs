//! A job that measures: every PE's part.

use nvshmem_sim::{BoxError, Job};

use super::case::Case;
use super::places::{CHUNK_BYTES, Places};
use super::source::Source;
use super::target::Target;
use crate::rounds::Rounds;
use crate::{cores, options, serve, setup};

/// Name of the scenario.
pub(crate) const SCENARIO: &str = "staged";

/// One PE. Parameters: `host`, whether the heap has a chunk of host memory; `cases`, names with commas
/// between; and those of [`setup`].
///
/// Only the proxy threads are bound to cores. The threads of a stand-in's streams, which copy, begin
/// before that and run where there is room.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (schedule, control) = (setup::schedule(job)?, setup::control(job)?);
    let with_host = job.param("host")?;
    let cases = options::cases(&job.param::<String>("cases")?)?;
    let host = job.init()?;
    let places = Places::alloc(&host, with_host)?;
    if job.pe() == 0 {
        job.report("device", host.device().ok_or("the heap is not on a device")?)?;
        let copies = host.plain_copies(CHUNK_BYTES)?.ok_or("there is no device to copy from")?;
        // A stand-in tells how many copies it has made.
        let counter = host.faults().filter(|faults| faults.offered());
        let rounds = host.proxy().run(move |ops| -> Result<Vec<(Case, Rounds)>, String> {
            cores::bind(0, 2).map_err(|e| e.to_string())?;
            let mut source = Source::new(ops, control, places, copies, counter);
            let rounds = cases
                .into_iter()
                .map(|case| Ok((case, source.measure(case, &case.sides(with_host), schedule)?)));
            let rounds = rounds.collect::<Result<_, String>>()?;
            source.stop()?;
            Ok(rounds)
        })??;
        for (case, rounds) in rounds {
            job.report(&case.to_string(), rounds.encode())?;
        }
    } else {
        host.proxy().run(move |ops| {
            cores::bind(1, 2).map_err(|e| e.to_string())?;
            serve::serve(&mut Target { ops, places }, control)
        })??;
    }
    host.finalize()?;
    Ok(())
}
