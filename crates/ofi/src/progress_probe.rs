//! The probe of automatic progress: whether data moves while nobody calls libfabric.
//!
//! `FI_PROGRESS_AUTO` in an answer proves nothing: tcp 2.5 and 2.6 give it and start no thread,
//! tcp;ofi_rxm 1.17 starts one that only connects. A provider's profile says whether it has such a
//! thread, and a probe checks those that have before anybody relies on it. A wrong "no" costs a
//! lane's progress calls; a wrong "yes" hangs the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libfabric_sys::{FI_PROGRESS_AUTO, Version, fi_progress};

use crate::data_path::port::OfiPort;
use crate::data_path::rail::{Rail, Receives};
use crate::discovery::device::Device;
use crate::memory::registration::Registrar;
use crate::objects::contexts::Contexts;
use crate::objects::fabric::Fabrics;
use crate::objects::memory_region::{Rights, Way};
use crate::options::Options;
use crate::provider::Profile;
use engine::ids::{RailId, WrId};
use engine::port::{
    Addressing, Clock, DataPath, Direction, Local, Operation, POLL_BATCH, Polled, PortError,
    Posted, Transfer,
};

/// How long the probe waits for its write to land. A provider with a thread takes milliseconds.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);

/// Whether a target that does not poll receives data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// It does: each lane needs to progress only itself.
    pub truly_automatic: bool,
    /// Why we think so.
    pub reason: String,
}

impl Verdict {
    pub(crate) fn reach(
        fabrics: &mut Fabrics,
        device: &Device,
        options: &Options,
        library: Version,
    ) -> Self {
        let provider = device.info.provider();
        let no = |reason: String| Self { truly_automatic: false, reason };
        let promise =
            match promise(device.profile, library, device.info.domain_attr().data_progress) {
                Ok(reason) => reason,
                Err(reason) => return no(format!("{provider}: {reason}")),
            };
        match probe(fabrics, device, options) {
            Ok(true) => Self {
                truly_automatic: true,
                reason: format!(
                    "{provider}: {promise}, and a probe reached a target that did not poll"
                ),
            },
            Ok(false) => no(format!(
                "{provider}: {promise}, but a probe did not reach a target that did not poll"
            )),
            Err(error) => no(format!("{provider}: {promise}, but the probe failed: {error}")),
        }
    }
}

fn promise(
    profile: &Profile,
    library: Version,
    got: fi_progress,
) -> Result<&'static str, &'static str> {
    let known = &profile.progress_thread;
    match **known {
        _ if got != FI_PROGRESS_AUTO => Err("progress is manual"),
        Some(since) if library >= since => Ok(known.why),
        _ => Err(known.why),
    }
}

/// Writes a word from one endpoint to another of this process, which never polls, and watches the
/// memory. The endpoints are the probe's own, so that nothing of it is left in a lane's queues.
fn probe(fabrics: &mut Fabrics, device: &Device, options: &Options) -> Result<bool, PortError> {
    const RAIL: RailId = RailId(0);
    const VALUE: u64 = 0x5eed_0fda_7a00_0001;
    // Declared before the rails: it must outlive them, because they may write to it until closed.
    let word = AtomicU64::new(0);

    let contexts = Arc::new(Contexts::new(1));
    let nothing = Arc::new(Contexts::new(0));
    let target = Arc::new(Rail::open(fabrics, device, options, &nothing, 1, Receives::Nothing)?);
    let source = Arc::new(Rail::open(fabrics, device, options, &contexts, 1, Receives::Nothing)?);
    let addr = word.as_ptr() as usize;
    let registrar = Registrar::new(&target);
    let region = registrar.register_as(addr, size_of::<u64>(), Rights::ReadAndWrite, Way::Host)?;
    let transfer = Transfer {
        direction: Direction::Write,
        local: Local::Value(VALUE),
        len: size_of::<u64>(),
        remote: match target.domain.addressing() {
            Addressing::Virtual => addr as u64,
            Addressing::Offset => 0,
        },
        key: region.key,
    };

    let mut port = OfiPort::new(&[source], contexts)?;
    let peer = port.insert(RAIL, &[&target.endpoint.address])?[0];
    let mut done = [WrId(0); POLL_BATCH];
    let mut posted = false;
    let start = Instant::now();
    while start.elapsed() < PROBE_DEADLINE {
        if !posted {
            posted = port.post(RAIL, peer, WrId(0), Operation::Transfer(&transfer))? == Posted::Yes;
        }
        if let Polled::Failed(failure) = port.poll(RAIL, &mut done) {
            return Err(failure.error);
        }
        if word.load(Ordering::Acquire) == VALUE.to_le() {
            return Ok(true);
        }
        port.relax();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use libfabric_sys::FI_PROGRESS_MANUAL;

    use super::*;
    use crate::provider::{Provider, candidates};
    use crate::{Discovery, MemoryKinds};

    #[test]
    fn probe_says_no_where_nobody_polls() {
        let options = Options { provider: Provider::TcpRxm, ..crate::options::tests::options() };
        let found = Discovery::run(&options, true, MemoryKinds::Host)
            .unwrap_or_else(|error| panic!("{error}"));
        let reached = probe(&mut Fabrics::default(), &found.devices()[0], &options);
        assert_eq!(reached, Ok(false), "progress is manual here");
    }

    #[test]
    fn answer_needs_a_known_thread() {
        let (old, new) = (Version::new(1, 17), Version::new(2, 5));
        for (provider, library, got, is_promised) in [
            (Provider::Tcp, new, FI_PROGRESS_AUTO, false),
            (Provider::Efa, new, FI_PROGRESS_AUTO, false),
            (Provider::Verbs, old, FI_PROGRESS_AUTO, false),
            (Provider::Verbs, Version::new(2, 2), FI_PROGRESS_AUTO, true),
            (Provider::TcpRxm, new, FI_PROGRESS_AUTO, true),
            (Provider::TcpRxm, new, FI_PROGRESS_MANUAL, false),
        ] {
            let promise = promise(candidates(provider)[0], library, got);
            assert_eq!(promise.is_ok(), is_promised, "{provider} {library}: {promise:?}");
        }
    }
}
