//! Transports that begin and end one after the other in one process, which holds no more of
//! anything afterwards.

use nvshmem_sim::{BoxError, Job, Pattern};
use test_support::held::Cycles;

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe, job.n_pes());
    let mut cycles = Cycles::new(4, format!("plugin {:?}", job.settings.layout), me == 0);
    for round in 0..cycles.count {
        let host = job.init()?;
        host.show_info()?;
        let target = host.alloc(1 << 16, 8)?;
        let source = host.register(job.settings.memory.of_buffers(), 1 << 16, 0)?;
        host.local(source.at(0), 1 << 16)?.fill(Pattern::of(&[round, me.into()]), 0)?;
        host.barrier()?;
        host.proxy.put((me + 1) % n, target, source.at(0), 1 << 16)?;
        host.barrier()?;
        let sender = (me + n - 1) % n;
        host.local(target, 1 << 16)?.verify(Pattern::of(&[round, sender.into()]), 0)?;
        host.barrier()?;
        host.finalize()?;
        cycles.over(round + 1)?;
    }
    Ok(())
}
