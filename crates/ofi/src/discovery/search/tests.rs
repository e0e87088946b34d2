//! What a search tells of what it has passed over, and what it asks for.

use std::sync::Arc;

use libfabric_sys::FI_HMEM;
use test_support::scratch::Scratch;

use super::*;
use crate::objects::info::tests::{edit, empty};
use crate::options::tests::options;

pub(crate) fn found(options: Options) -> Discovery {
    let tcp = Options { provider: Provider::Tcp, ..crate::options::tests::options() };
    let found = Discovery::run(&tcp, true, MemoryKinds::Host).expect("loopback");
    Discovery { options, ..found }
}

pub(crate) fn found_of(provider: Provider, options: Options) -> Discovery {
    Discovery { profile: profile(provider), ..found(options) }
}

/// A discovery whose provider has answered with `FI_HMEM`.
pub(crate) fn reaching_devices(provider: Provider, options: Options) -> Discovery {
    let mut found = found_of(provider, options);
    let mut info = found.found.devices[0].info.for_any_thread().expect("memory");
    edit(&mut info, |raw| raw.caps |= FI_HMEM);
    found.found.devices[0].info = Arc::new(info);
    found
}

pub(crate) fn profile(provider: Provider) -> &'static Profile {
    candidates(provider)[0]
}

fn list_nic(sysfs: &Scratch, nic: &str, driver: &str) {
    let link = format!("class/infiniband/{nic}/device/driver");
    sysfs.link(&link, &format!("../../../../bus/pci/drivers/{driver}"));
}

#[test]
fn devices_depend_on_hosts_over_interfaces() {
    let named = Options { devices: Devices::Include(vec![String::from("lo")]), ..options() };
    assert!(found(options()).depends_on_hosts() && !found(named).depends_on_hosts());
    assert!(!found_of(Provider::Verbs, options()).depends_on_hosts());
    let of_one_host = [Provider::Shm, Provider::Tcp].map(|of| found_of(of, options()));
    assert_eq!(of_one_host.map(|found| found.is_for_one_host()), [true, false]);
    assert_eq!(found(options()).devices()[0].link_speed(), None, "loopback has none");
}

#[test]
fn unused_provider_with_nics_is_told() {
    let (sysfs, without) = (Scratch::new(), Scratch::new());
    list_nic(&sysfs, "rdmap0", "efa");
    list_nic(&sysfs, "mlx5_0", "mlx5_core");
    list_nic(&without, "mlx5_0", "mlx5_core");
    let mut found = found(Options { provider: Provider::Auto, ..options() });
    let refused = |provider, reason: &str| Refusal::new(profile(provider), None, reason.to_owned());
    found.refusals =
        vec![refused(Provider::Efa, "no handles"), refused(Provider::Verbs, "no ports")];
    let told = found.unused(&sysfs);
    let is_of_efa = |told: &String| told.contains("NICs of efa (rdmap0)");
    let efa = told.iter().find(|told| is_of_efa(told)).expect("efa");
    let used = format!("provider {} is used in its place: no handles;", found.profile.name);
    assert!(efa.contains(&used), "{efa}");
    assert!(efa.contains("NVSHMEM_LIBFABRIC_PROVIDER=efa"), "{efa}");
    assert!(!found.unused(&without).iter().any(is_of_efa), "it has none");
    assert_eq!(found.unused_of(profile(Provider::Shm), &sysfs), None, "nobody misses it");
    let own = Discovery { profile: profile(Provider::Efa), ..found };
    assert!(own.unused(&sysfs).is_empty(), "it is used");
    let devices = Devices::Include(vec![String::from("lo")]);
    let named = Options { provider: Provider::Auto, devices, ..options() };
    let named = Discovery { options: named, profile: profile(Provider::Tcp), ..own };
    assert!(named.unused(&sysfs).is_empty(), "who names devices has chosen");
}

#[test]
fn refused_device_memory_names_remedy() {
    let mut found = found(options());
    assert_eq!(found.hmem_refused(), None);
    found.found.hmem_refused = Some(String::from("no such thing"));
    assert_eq!(found.hmem_refused().as_deref(), Some("no such thing"));
    found.profile = profile(Provider::Efa);
    let told = found.hmem_refused().expect("it was refused");
    assert_eq!(told, format!("no such thing; {}", *found.profile.device_memory_takes));
    found.profile = profile(Provider::Verbs);
    for device in &mut found.found.devices {
        device.domain = String::from("rocep1s0");
    }
    let told = found.hmem_refused().expect("it was refused");
    let named = "which rocep1s0 lack";
    let is_named = found.library.version() < libfabric_sys::Version::new(2, 7);
    assert_eq!(told.contains(named), is_named, "each NIC once: {told}");
}

#[test]
fn idle_nics_are_told() {
    let mut found = found(options());
    assert_eq!(found.idle_nics(), None);
    found.found.unlisted = vec![String::from("mlx5_1"), String::from("mlx5_2")];
    let told = found.idle_nics().expect("there are some");
    assert!(told.contains("carry nothing: mlx5_1, mlx5_2."), "{told}");
    let provider = found.profile.name;
    assert!(told.contains(&format!("provider {provider}; an address of the port")), "{told}");
    assert!(told.contains(&format!("libfabric {}", found.library.version())), "{told}");
    assert!(!found.reaches_devices());
    let sysfs = Scratch::new();
    list_nic(&sysfs, "rdmap0", "efa");
    let nic = profile(Provider::Efa).nic.expect("it has a class");
    for (state, active) in [("4: ACTIVE\n", 1), ("1: DOWN\n", 0)] {
        sysfs.write("class/infiniband/rdmap0/ports/1/state", state);
        assert_eq!(nic.active(&sysfs).len(), active, "{state}");
    }
}

#[test]
fn device_memory_is_requested_if_useful() {
    let ask = |provider, gpu_direct, kinds, answer: Result<(), &str>| {
        let options = Options { gpu_direct, ..options() };
        let mut asked = false;
        let offered = offers_devices(profile(provider), &options, kinds, || {
            asked = true;
            answer.map_err(str::to_owned)
        });
        (offered, asked)
    };
    let (host, both) = (MemoryKinds::Host, MemoryKinds::HostAndDevices);
    let (auto, always, never) = (GpuDirect::Auto, GpuDirect::Always, GpuDirect::Never);
    for (provider, gpu_direct, kinds) in
        [(Provider::Efa, always, host), (Provider::Efa, never, both), (Provider::Tcp, auto, both)]
    {
        assert_eq!(ask(provider, gpu_direct, kinds, Ok(())), (Err(None), false), "{provider}");
    }
    for (provider, gpu_direct) in [(Provider::Efa, auto), (Provider::Tcp, always)] {
        assert_eq!(ask(provider, gpu_direct, both, Ok(())), (Ok(()), true));
        let refused = Err(Some(String::from("no dma-bufs")));
        assert_eq!(ask(provider, gpu_direct, both, Err("no dma-bufs")), (refused, true));
    }
}

#[test]
fn address_needs_a_usable_answer() {
    let found = found(Options { max_nic_per_pe: 7, ..options() });
    assert_eq!(found.options.max_nic_per_pe, 7);
    let (library, profile) = (found.library, found.profile);
    let query = ProviderQuery { library, profile, fabric: None };
    let at = |demand, ip: [u8; 4]| at_address(query, demand, false, ip.into()).map(drop);
    let model = found.found.model;
    assert_eq!(at(Demand::Full(model), [127, 0, 0, 9]), Ok(()));
    let why = |demand, ip| at(demand, ip).expect_err("no rail");
    assert!(why(Demand::Rma, [127, 0, 0, 9]).contains("no endpoint"), "none that delivers");
    assert!(why(Demand::Full(model), [203, 0, 113, 7]).contains("not an address of this host"));
}

#[test]
fn answer_needs_delivery_and_room() {
    let mut info = empty();
    let reason = |info: &Info| reason_against(info).unwrap_or_default();
    let set = |info: &mut Info, flags, size, longest| {
        // SAFETY: the attributes of an empty info exist.
        edit(info, |raw| unsafe {
            ((*raw.tx_attr).op_flags, (*raw.tx_attr).size) = (flags, size);
            (*raw.ep_attr).max_msg_size = longest;
        });
    };
    for (flags, size, longest, why) in [
        (0, 1, 1, "FI_DELIVERY_COMPLETE"),
        (FI_DELIVERY_COMPLETE, 0, 1, "no room"),
        (FI_DELIVERY_COMPLETE, 1, 0, "no room"),
    ] {
        set(&mut info, flags, size, longest);
        assert!(reason(&info).contains(why), "{flags} {size} {longest}");
    }
    set(&mut info, FI_DELIVERY_COMPLETE, 1, 1);
    assert_eq!(reason_against(&info), None);
}
