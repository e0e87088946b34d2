//! Whether data moves while nobody calls libfabric.
//!
//! `FI_PROGRESS_AUTO` in an answer proves nothing: tcp 2.5 and 2.6 give it and start no thread,
//! tcp;ofi_rxm 1.17 starts one that only connects. A table says which providers keep the promise,
//! and a probe checks those, and the ones that the table does not know, before anybody relies on
//! it. A wrong "no" costs a lane's progress calls; a wrong "yes" hangs the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libfabric_sys::{FI_PROGRESS_AUTO, Version, fi_progress};

use crate::engine::ids::{RailId, Token};
use crate::engine::port::{
    Access, Addressing, Direction, Local, POLL_BATCH, Polled, Port, PortError, Posted, Transfer,
};
use crate::ofi::data_path::port::OfiPort;
use crate::ofi::data_path::rail::{Rail, Receives};
use crate::ofi::discovery::device::Device;
use crate::ofi::memory::registration::Registrar;
use crate::ofi::objects::contexts::Contexts;
use crate::ofi::objects::fabric::Fabrics;
use crate::settings::Settings;

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

/// What is known of a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// It has a thread that moves data.
    Kept(&'static str),
    /// It has none.
    Broken(&'static str),
    /// Never seen.
    Unknown,
}

impl Verdict {
    /// Judges the provider of `device`, by the table, and by a probe where that could say yes.
    pub(in crate::ofi) fn reach(
        fabrics: &mut Fabrics,
        device: &Device,
        settings: &Settings,
        library: Version,
    ) -> Self {
        let provider = device.info.provider();
        let no = |reason: String| Self { truly_automatic: false, reason };
        let promise = match known(&provider, library, device.info.data_progress()) {
            Known::Broken(reason) => return no(format!("{provider}: {reason}")),
            Known::Kept(reason) => reason,
            Known::Unknown => "FI_PROGRESS_AUTO is what it answers",
        };
        match probe(fabrics, device, settings) {
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

/// The table. Sources: the progress threads in the providers' code up to libfabric 2.6, checked by
/// runs against targets that never poll for those that need no hardware.
fn known(provider: &str, library: Version, got: fi_progress) -> Known {
    if got != FI_PROGRESS_AUTO {
        return Known::Broken("progress is manual");
    }
    match provider {
        "tcp" | "net" => Known::Broken("answers FI_PROGRESS_AUTO but has no progress thread"),
        "tcp;ofi_rxm" | "verbs;ofi_rxm" if library >= Version::new(2, 2) => {
            Known::Kept("its data progress thread came with libfabric 2.2")
        }
        "tcp;ofi_rxm" | "verbs;ofi_rxm" => {
            Known::Broken("before libfabric 2.2 its progress thread only makes connections")
        }
        "sockets" => Known::Kept("it has a progress thread"),
        "shm" | "efa" | "cxi" => Known::Broken("it has no progress thread"),
        _ if provider.starts_with("udp") => Known::Broken("it has no progress thread"),
        _ => Known::Unknown,
    }
}

/// Writes a word from one endpoint to another of this process, which never polls, and watches the
/// memory. The endpoints are the probe's own, so that nothing of it is left in a lane's queues.
fn probe(fabrics: &mut Fabrics, device: &Device, settings: &Settings) -> Result<bool, PortError> {
    const RAIL: RailId = RailId(0);
    const VALUE: u64 = 0x5eed_0fda_7a00_0001;
    // Declared before the rails: it must outlive them, because they may write to it until closed.
    let word = AtomicU64::new(0);

    let contexts = Arc::new(Contexts::new(1));
    let nothing = Arc::new(Contexts::new(0));
    let target = Arc::new(Rail::open(fabrics, device, settings, &nothing, 1, Receives::Nothing)?);
    let source = Arc::new(Rail::open(fabrics, device, settings, &contexts, 1, Receives::Nothing)?);
    let addr = word.as_ptr() as usize;
    let region =
        Registrar::new(&target).register(addr, size_of::<u64>(), Access::LocalAndRemote)?;
    let transfer = Transfer {
        direction: Direction::Write,
        local: Local::Inline(VALUE),
        len: size_of::<u64>(),
        remote: match target.domain().addressing() {
            Addressing::Virtual => addr as u64,
            Addressing::Offset => 0,
        },
        key: region.key(),
    };

    let mut port = OfiPort::new(&[source], contexts)?;
    let peer = port.insert(RAIL, &[target.endpoint().address()])?[0];
    let mut done = [Token(0); POLL_BATCH];
    let mut posted = false;
    let start = Instant::now();
    while start.elapsed() < PROBE_DEADLINE {
        if !posted {
            posted = port.post(RAIL, peer, Token(0), &transfer)? == Posted::Yes;
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
    use crate::ofi::{Discovery, MemoryKinds};
    use crate::settings::Provider;

    #[test]
    fn the_probe_says_no_where_nobody_polls_the_target() {
        let settings = Settings {
            provider: Provider::TcpRxm,
            ..crate::ofi::discovery::search::tests::settings()
        };
        let found = Discovery::run(&settings, true, MemoryKinds::Host)
            .unwrap_or_else(|error| panic!("{error}"));
        let reached = probe(&mut Fabrics::default(), &found.devices()[0], &settings);
        assert_eq!(reached, Ok(false), "progress is manual here");
    }

    #[test]
    fn the_table_believes_no_answer() {
        let old = Version::new(1, 17);
        let new = Version::new(2, 5);
        for version in [old, new] {
            for provider in ["tcp", "net", "shm", "efa", "cxi", "udp;ofi_rxd"] {
                let answer = known(provider, version, FI_PROGRESS_AUTO);
                assert!(matches!(answer, Known::Broken(_)), "{provider} {version}: {answer:?}");
            }
            let answer = known("sockets", version, FI_PROGRESS_AUTO);
            assert!(matches!(answer, Known::Kept(_)));
        }
        for provider in ["tcp;ofi_rxm", "verbs;ofi_rxm"] {
            assert!(matches!(known(provider, old, FI_PROGRESS_AUTO), Known::Broken(_)));
            assert!(matches!(known(provider, new, FI_PROGRESS_AUTO), Known::Kept(_)));
            assert!(matches!(known(provider, new, FI_PROGRESS_MANUAL), Known::Broken(_)));
        }
        assert_eq!(known("psm3", new, FI_PROGRESS_AUTO), Known::Unknown);
    }
}
