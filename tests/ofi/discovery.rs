//! Discovery of providers and rails, and what it says of what it cannot use.

use engine::ids::RailId;
use engine::port::DataPath;
use ofi::{Devices, Discovery, MemoryKinds, OfiError, Options, Provider, Report};

use super::process::*;

#[test]
fn limits_follow_the_settings() {
    for provider in PROVIDERS {
        let offered = open(&options(provider));
        for limits in offered.proxy.limits() {
            assert!((64..=4096).contains(&limits.depth), "{provider:?}: {limits:?}");
            assert!(limits.max_segment == 256 << 20, "{provider:?}: {limits:?}");
        }
        let narrow = Options { queue_depth: 1, max_segment: 4096, ..options(provider) };
        let opened = open(&narrow);
        for limits in [opened.proxy.limits(), opened.host.limits()].concat() {
            assert_eq!((limits.depth, limits.max_segment), (1, 4096));
        }
    }
}

#[test]
fn report_is_a_line_in_words() {
    for provider in PROVIDERS {
        let mut report = open(&options(provider)).report;
        let line = |report: &Report| report.to_string();
        let library = options(provider).library;
        assert!(line(&report).starts_with("libfabric "), "{report}");
        assert!(line(&report).contains(&format!(" ({library}), provider ")), "{report}");
        assert!(line(&report).contains("threading COMPLETION, got threading "), "{report}");
        assert!(line(&report).contains("; 2 rail(s): "), "{report}");
        (report.rails[0].bulk, report.rails[1].bulk) = (0, 3);
        let [one, other] = &report.rails[..] else { panic!("{report}") };
        let rails = format!(
            " {} (depth {}) {} (depth {}, 3 thread(s) for bulk)",
            one.name, one.depth, other.name, other.depth
        );
        assert!(line(&report).ends_with(&rails), "{report}");
        for (is_so, offered) in [(true, "yes"), (false, "no")] {
            report.immediate_data.offered = is_so;
            assert!(line(&report).contains(&format!("immediate data: {offered} (")), "{report}");
        }
    }
}

#[test]
fn loopback_rails_have_own_addresses() {
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let opened = open(&options(provider));
        let report: &Report = &opened.report;
        let names: Vec<&str> = report.rails.iter().map(|rail| rail.name.as_str()).collect();
        assert_eq!(names, ["127.0.0.1", "127.0.0.2"]);
        assert!(report.rails.iter().all(|rail| rail.pci_path.is_none()));
        for (rail, last) in [(RailId(0), 1), (RailId(1), 2)] {
            // One address and its length, then a sockaddr_in: family, port, address.
            let address = opened.proxy.address(rail);
            assert_eq!(address[..2], [1, 16]);
            assert_eq!(address[6..10], [127, 0, 0, last]);
            assert_eq!(opened.proxy.rail_name(rail), format!("127.0.0.{last}"));
        }
        assert_ne!(opened.proxy.address(RailId(0)), opened.host.address(RailId(0)));
        for rail in &report.rails {
            println!("{provider:?} {}: domain {}, fabric {}", rail.name, rail.domain, rail.fabric);
        }
    }
}

#[test]
fn rails_follow_chosen_device_order() {
    let devices = ["127.0.0.3", "lo", "127.0.0.2", "127.0.0.2"].map(String::from).to_vec();
    let chosen = Options { devices: Devices::Include(devices), ..options(Provider::TcpRxm) };
    let discovery = Discovery::run(&chosen, false, MemoryKinds::Host).expect("loopback");
    let names: Vec<&str> = discovery.devices().iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["127.0.0.3", "lo", "127.0.0.2", "127.0.0.2#2"]);
    assert_eq!(discovery.default_rails(), [0, 1, 2, 3]);

    let capped = Options { max_nic_per_pe: 3, ..chosen };
    let discovery = Discovery::run(&capped, false, MemoryKinds::Host).expect("loopback");
    assert_eq!(discovery.default_rails(), [0, 1, 2]);
}

/// Who leaves the provider to us may name what only another one has.
#[test]
fn auto_passes_over_missing_devices() {
    let devices = ["127.0.0.1", "203.0.113.7"].map(String::from).into();
    let auto = Options { devices: Devices::Include(devices), ..options(Provider::Auto) };
    let found = Discovery::run(&auto, true, MemoryKinds::Host).expect("loopback");
    let names: Vec<&str> = found.devices().iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["127.0.0.1"]);
    let told = found.refusals.iter().filter(|refusal| refusal.provider == found.provider());
    let told: Vec<String> = told.map(|refusal| refusal.to_string()).collect();
    let is_told = |said: &String| said.contains("203.0.113.7") && said.contains("not an address");
    assert!(told.iter().any(is_told), "{told:?}");
}

#[test]
fn auto_settles_on_tcp_with_reasons() {
    let test = "auto_settles_on_tcp_with_reasons";
    if !in_a_process_with("FI_PROVIDER", "^efa,cxi,verbs", test) {
        return;
    }
    let automatic = Options { devices: Devices::Any, ..options(Provider::Auto) };
    let discovery = Discovery::run(&automatic, true, MemoryKinds::Host).expect("tcp");
    assert!(discovery.provider().starts_with("tcp"), "{}", discovery.provider());
    for refusal in &discovery.refusals {
        println!("{refusal}");
    }
    let refused: Vec<&str> =
        discovery.refusals.iter().map(|refusal| refusal.provider.as_str()).collect();
    for provider in ["efa", "cxi", "verbs;ofi_rxm"] {
        assert!(refused.contains(&provider), "{refused:?}");
    }
    // The tcp of libfabric 1.17 has no such endpoints.
    let of_tcp = discovery.refusals.iter().find(|refusal| refusal.provider == "tcp");
    assert!(of_tcp.is_none_or(|refusal| refusal.reason.contains("RMA (")), "{of_tcp:?}");
    for (provider, name) in [(Provider::Cxi, "cxi"), (Provider::Efa, "efa")] {
        let error = Discovery::run(&options(provider), true, MemoryKinds::Host);
        let error = error.expect_err("no such NIC here");
        assert!(matches!(error, OfiError::NoDevice { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains(&format!("`{name}`")), "{said}");
        assert!(said.contains(&format!("\n  {name}: ")), "one line per refusal: {said}");
    }
}
