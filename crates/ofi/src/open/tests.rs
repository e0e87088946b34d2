//! What is decided before anything is opened.

use super::*;
use crate::MemoryKinds;
use crate::discovery::search::tests::{found, found_of, profile};
use crate::options::Options;
use crate::options::tests::options;
use crate::provider::Provider;

#[test]
fn a_version_is_one_since_another() {
    let found = found(options());
    assert!(found.is_since(Some(found.library.version())) && !found.is_since(None));
    assert!(!found.is_since(Some(Version::new(99, 0))));
}

#[test]
fn connections_for_bulk_are_those_of_the_settings_for_the_devices_that_there_are() {
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
fn a_device_that_does_not_exist_is_no_rail_and_is_told() {
    let found = found(options());
    let contexts = Arc::new(Contexts::new(found.segments(&[0, 1])));
    let mut failures = Vec::new();
    let opened = found.open_rails(&mut Fabrics::default(), &[1, 9, 0], &contexts, 2, &mut failures);
    let names: Vec<_> = opened.iter().map(|found| found.rail.name()).collect();
    assert_eq!(names, [&found.devices()[1].name, &found.devices()[0].name]);
    assert_eq!(failures, ["device 9 of 2 does not exist"]);
    let rails = [0; MAX_RAILS + 1];
    let (mut failures, fabrics) = (Vec::new(), &mut Fabrics::default());
    let opened = found.open_rails(fabrics, &rails, &contexts, 2, &mut failures);
    assert_eq!(opened.len(), MAX_RAILS);
    assert!(failures.len() == 1 && failures[0].contains("more than 32 rails"), "{failures:?}");
}

#[test]
fn device_memory_is_decided_by_the_settings_and_the_profile() {
    let of = |provider| found_of(provider, options());
    let policy = of(Provider::Efa).direct([].iter());
    assert_eq!(policy.takes, *profile(Provider::Efa).device_memory_takes);
    assert!(!policy.one_allocation && policy.switched_off.is_none());
    let policy = of(Provider::Cxi).direct([].iter());
    assert!(policy.one_allocation && policy.hmem_refused.is_none());
    assert_eq!(of(Provider::Tcp).direct([].iter()).takes, "");
    let since = profile(Provider::Efa).dma_bufs.expect("it registers them");
    let efa = of(Provider::Efa);
    assert_eq!(efa.direct([].iter()).dma_bufs, efa.library.version() >= since);
    assert!(!of(Provider::Tcp).direct([].iter()).dma_bufs);
}

#[test]
fn rails_of_one_network_share_its_fabric() {
    let of = |provider| {
        let options = Options { provider, ..options() };
        Discovery::run(&options, true, MemoryKinds::Host).expect("devices")
    };
    let (tcp, shm) = (of(Provider::Tcp), of(Provider::Shm));
    let (first, other) = (&tcp.devices()[0], &shm.devices()[0]);
    assert_ne!(first.fabric, other.fabric);
    let mut fabrics = Fabrics::default();
    let opened = [first, other, first, other].map(|device| fabrics.of(&device.info).expect("one"));
    assert!(Arc::ptr_eq(&opened[0], &opened[2]) && Arc::ptr_eq(&opened[1], &opened[3]));
    assert!(!Arc::ptr_eq(&opened[0], &opened[1]));
}
