//! What is decided before anything is opened.

use super::*;
use crate::discovery::search::tests::{found, found_of, reaching_devices};
use crate::options::tests::options;
use crate::options::{BulkChoice, Options};
use crate::provider::Provider;

#[test]
fn bulk_connections_follow_settings_and_devices() {
    let with = |bulk| found(Options { bulk, ..options() });
    let three = with(BulkChoice::Each(3));
    assert_eq!(three.bulk_connections(&[0, 1], 2), [3, 3]);
    assert_eq!(three.bulk_connections(&[1, 7], 2), [3], "there is no device 7");
    assert_eq!(with(BulkChoice::Each(0)).bulk_connections(&[0, 1], 2), [0, 0]);
    let shm = found_of(Provider::Shm, Options { bulk: BulkChoice::Each(3), ..options() });
    assert_eq!(shm.bulk_connections(&[0, 1], 2), [0, 0], "it has none");

    let segments = |rails: &[usize]| found(options()).segments(rails);
    assert!(segments(&[0]) > 0 && segments(&[0, 1]) > segments(&[0]));
    assert_eq!(segments(&[0, 7]), segments(&[0]));
}

#[test]
fn rails_are_limited_per_lane() {
    let found = found(options());
    let contexts = Arc::new(Contexts::new(found.segments(&[0])));
    let (mut failures, fabrics) = (Vec::new(), &mut Fabrics::default());
    let opened = found.open_rails(fabrics, &[0; 3], &contexts, (2, 2), &mut failures);
    assert_eq!(opened.len(), 2);
    assert!(failures.len() == 1 && failures[0].contains("more than 2 rails"), "{failures:?}");
}

#[test]
fn device_memory_follows_the_profile() {
    for (provider, one_allocation, is_taken) in
        [(Provider::Efa, false, true), (Provider::Cxi, true, true), (Provider::Tcp, false, false)]
    {
        let found = found_of(provider, options());
        let policy = found.direct([].iter());
        assert_eq!(policy.one_allocation, one_allocation, "{provider}");
        assert_eq!(!policy.takes.is_empty(), is_taken, "{provider}");
        assert!(policy.switched_off.is_none() && policy.hmem_refused.is_none());
        let since = *found.profile.dma_bufs;
        let takes = since.is_some_and(|since| found.library.version() >= since);
        assert_eq!(policy.dma_bufs, takes, "{provider}");
    }
}

#[test]
fn wrong_mapping_rules_out_nics() {
    let said = [("nic0", "MR caching disabled"), ("nic1", "again")];
    for (choice, value, is_off, is_wrong) in [
        (GpuDirect::Auto, Some("False"), true, true),
        (GpuDirect::Always, Some("off"), true, true),
        (GpuDirect::Auto, Some("1"), false, true),
        (GpuDirect::Auto, None, false, true),
        (GpuDirect::Never, Some("0"), false, false),
    ] {
        let found = reaching_devices(Provider::Cxi, Options { gpu_direct: choice, ..options() });
        let off = |found: &Discovery| found.switched_off(|_| value.map(str::to_owned));
        assert_eq!(off(&found).is_some(), is_off, "{choice:?} {value:?}");
        assert_eq!(off(&found_of(Provider::Cxi, options())), None, "host memory alone");
        let wrong = found.mapped_wrongly(said.into_iter());
        assert_eq!(wrong.as_ref().map(|wrong| wrong.contains("nic0")), is_wrong.then_some(true));
        assert_eq!(found.mapped_wrongly([].into_iter()), None);
    }
    assert_eq!(found_of(Provider::Efa, options()).mapped_wrongly(said.into_iter()), None);
}
