//! Connections of PEs that are threads of this process.

use super::*;
use crate::job::tests::{self as threads, settings};
use crate::logging::heard::heard;

struct Claims(u32);

impl Collectives for Claims {
    fn shape(&self) -> Result<Shape, JobError> {
        Ok(Shape { n_pes: self.0, me: Pe(0), here: self.0 })
    }

    fn allgather(&self, _: &[u8]) -> Result<Vec<u8>, JobError> {
        Err(JobError::Collectives { what: String::from("nobody is there") })
    }
}

#[test]
fn too_many_pes_are_refused() {
    let settings = settings(1, &[]);
    let discovery = Discovery::run(&settings.ofi(), true, memory_kinds()).unwrap();
    for (n_pes, why) in [
        (MAX_PES, "nobody is there"),
        (MAX_PES + 1, "connects at most"),
        (MAX_PES + 2, "connects at most"),
    ] {
        let refused = connect(&settings, &discovery, &Claims(n_pes), &[]).unwrap_err().to_string();
        assert!(refused.contains(why), "{n_pes} PEs: {refused}");
    }
}

#[test]
fn unreachable_pe_fails_every_pe() {
    threads::connect(2, &settings(1, &[]), Some((1, 3)), |pe| {
        let why = pe.job.expect_err("no job without PE 1").to_string();
        assert!(why.contains("PE 1: ") && why.contains("connection record"), "{why}");
    });
}

#[test]
fn open_failure_is_sent_to_peers() {
    let failed = Err(JobError::NotConnected);
    let hello = first_hello(&failed, &Addresses(Vec::new()));
    assert_eq!(hello.failure, Some(JobError::NotConnected.to_string()));
    let Hello { step, rails, immediate_data, longest_message, .. } = hello;
    assert_eq!((step, rails, immediate_data), (SetupStep::Open, 0, 0));
    assert_eq!(usize::from(longest_message), MAX_MESSAGE);
    let other = first_hello(&failed, &Addresses(Vec::new()));
    assert!(other.share != hello.share, "no two have the same share");
}

/// A job of one host stays on loopback, and leaves nothing behind.
#[test]
fn sole_host_uses_loopback_rails() {
    let (named, none) = (settings(1, &[]), settings(2, &[]));
    let any = Settings { devices: ofi::Devices::Any, ..none };
    for (settings, rails) in [(named, &["127.0.0.1"][..]), (any, &["127.0.0.1", "127.0.0.2"])] {
        threads::connect(2, &settings, None, |pe| {
            let job = pe.job.unwrap();
            let connected = job.connected().unwrap();
            let names: Vec<&str> =
                connected.report.rails.iter().map(|rail| rail.name.as_str()).collect();
            assert_eq!(names, rails);
            // SAFETY: this thread has the lanes.
            let said = heard(|| unsafe { job.drain_before_close() }).1;
            assert_eq!(said, "", "nothing was under way");
            for (fails, is_in_use, calls, done) in
                [(0, true, 1, Ok(())), (3, true, 4, Ok(())), (1, false, 1, Err(false))]
            {
                let mut called = 0;
                let release = || {
                    called += 1;
                    if called > fails { Ok(()) } else { Err(false) }
                };
                let released = connected.release_patiently(release, |_| is_in_use);
                assert_eq!((released, called), (done, calls));
            }
        });
    }
}
