//! Distances, and the choice of NICs, on machines described in `tests/data/topology`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod plan;
mod tree;

use ofi::topology::Distance::{self, Loc, Node, Phb, Pix, Pxb, Sys};
use ofi::topology::{PciAddress, RankedNic, choose};

use self::tree::Tree;

const MACHINES: [&str; 6] =
    ["h100-8-nics", "p5-32-nics", "p4d-4-nics", "slingshot-4-nics", "server-2-ports", "laptop"];

fn distance(tree: &Tree, one: &str, other: &str) -> Distance {
    let (one, other) = (tree.device(one), tree.device(other));
    let there = tree.topology.distance(one, other).expect("both are there");
    assert_eq!(tree.topology.distance(other, one), Some(there), "the way back is as long");
    there
}

fn own(tree: &Tree, nics: &[Option<PciAddress>], gpus: &[Option<PciAddress>]) -> Vec<Vec<usize>> {
    let of = |me| {
        let ranking = choose(&tree.topology, nics, gpus, me);
        let mut ranked: Vec<usize> = ranking.iter().map(|choice| choice.nic).collect();
        ranked.sort_unstable();
        assert!(ranked.into_iter().eq(0..nics.len()), "every NIC is ranked once: {ranking:?}");
        ranking.iter().filter(|choice| choice.own).map(|choice| choice.nic).collect()
    };
    (0..gpus.len()).map(of).collect()
}

fn known(devices: Vec<PciAddress>) -> Vec<Option<PciAddress>> {
    devices.into_iter().map(Some).collect()
}

#[test]
fn two_switches_are_pxb() {
    let tree = Tree::of("h100-8-nics");
    for gpu in 0..8 {
        for nic in 0..8 {
            let expected = match (gpu == nic, gpu / 4 == nic / 4) {
                (true, _) => Pxb,
                (_, true) => Node,
                _ => Sys,
            };
            let found = distance(&tree, &format!("gpu{gpu}"), &format!("nic{nic}"));
            assert_eq!(found, expected, "gpu{gpu} to nic{nic}");
        }
    }
    assert_eq!(distance(&tree, "storage0", "storage1"), Loc);
    assert_eq!(distance(&tree, "gpu5", "storage2"), Node);
    assert_eq!(tree.topology.numa_node(tree.device("gpu5")), Some(1));
    let own = own(&tree, &known(tree.all("nic")), &known(tree.all("gpu")));
    assert_eq!(own, (0..8).map(|nic| vec![nic]).collect::<Vec<_>>());
}

#[test]
fn nics_behind_gpu_switch_are_pix() {
    let tree = Tree::of("p5-32-nics");
    assert_eq!(distance(&tree, "gpu0", "nic3"), Pix);
    assert_eq!(distance(&tree, "gpu0", "nic4"), Node);
    assert_eq!(distance(&tree, "gpu0", "nic31"), Sys);
    let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
    let whole = own(&tree, &nics, &gpus);
    assert_eq!(whole, (0..8).map(|gpu| (4 * gpu..4 * gpu + 4).collect()).collect::<Vec<Vec<_>>>());
    // Two PEs on each of the first two GPUs share its NICs, and nobody else's.
    let shared = own(&tree, &nics, &[gpus[0], gpus[1], gpus[0], gpus[1]]);
    assert_eq!(shared, [vec![0, 1], vec![4, 5], vec![2, 3], vec![6, 7]]);
}

#[test]
fn hidden_switches_are_phb() {
    let tree = Tree::of("p4d-4-nics");
    assert_eq!(distance(&tree, "gpu0", "nic0"), Phb);
    assert_eq!(distance(&tree, "gpu1", "gpu0"), Phb);
    assert_eq!(distance(&tree, "gpu1", "nic1"), Node);
    assert!(!tree.topology.shows_bridges(tree.device("gpu0")));
    assert!(Tree::of("laptop").topology.shows_bridges(Tree::of("laptop").device("gpu0")));
    // Two GPUs to a NIC: each NIC is somebody's.
    let own = own(&tree, &known(tree.all("nic")), &known(tree.all("gpu")));
    assert_eq!(own, [[0], [0], [1], [1], [2], [2], [3], [3]]);
}

#[test]
fn one_root_complex_is_phb() {
    let tree = Tree::of("slingshot-4-nics");
    assert_eq!(distance(&tree, "gpu2", "nic2"), Phb);
    assert_eq!(distance(&tree, "gpu2", "nic1"), Sys);
    let own = own(&tree, &known(tree.all("nic")), &known(tree.all("gpu")));
    assert_eq!(own, [[0], [1], [2], [3]]);
}

#[test]
fn virtual_functions_share_physical_location() {
    let tree = Tree::of("server-2-ports");
    assert_eq!(distance(&tree, "nic0", "nic1"), Loc);
    // 5e:01.1 is another device number than 5e:00.1, of which it is a virtual function.
    assert_eq!(distance(&tree, "nic0", "vf1"), Loc);
    assert_eq!(distance(&tree, "vf0", "vf1"), Loc);
    assert_eq!(distance(&tree, "gpu1", "vf1"), Phb);
    assert_eq!(distance(&tree, "gpu0", "vf1"), Node);
    // The kernel names no node for the virtual function, but one for its physical one.
    assert_eq!(distance(&tree, "gpu2", "vf0"), Sys);
    assert_eq!(tree.topology.numa_node(tree.device("vf0")), Some(0));
}

#[test]
fn equidistant_nics_are_shared_evenly() {
    let tree = Tree::of("server-2-ports");
    let gpus = known(tree.all("gpu"));
    // Both ports are on the first socket, but they are the nearest from the other one as well.
    let own = own(&tree, &known(tree.all("nic")), &gpus);
    assert_eq!(own, [[0], [1], [0], [1]]);
    // The other port comes second.
    let ranking = choose(&tree.topology, &known(tree.all("nic")), &gpus, 3);
    let expected = [
        RankedNic { nic: 1, distance: Some(Sys), own: true },
        RankedNic { nic: 0, distance: Some(Sys), own: false },
    ];
    assert_eq!(ranking, expected);
}

#[test]
fn missing_numa_means_one_node() {
    let tree = Tree::of("laptop");
    assert_eq!(distance(&tree, "gpu0", "wireless"), Phb);
    assert_eq!(distance(&tree, "gpu0", "disk"), Phb);
    assert_eq!(distance(&tree, "gpu0", "gpu0"), Loc);
    // Behind a device that makes up a domain of its own, and still on this root complex.
    assert_eq!(distance(&tree, "gpu0", "vmd"), Phb);
    assert_eq!(tree.topology.numa_node(tree.device("gpu0")), None);
}

#[test]
fn absent_devices_have_no_distance() {
    let tree = Tree::of("laptop");
    let gone: PciAddress = "0000:7f:00.0".parse().expect("an address");
    assert_eq!(tree.topology.distance(gone, tree.device("gpu0")), None);
    assert_eq!(tree.topology.distance(gone, gone), None);
    assert!(!tree.topology.shows_bridges(gone));
    let gpu = Some(tree.device("gpu0"));
    assert_eq!(choose(&tree.topology, &[], &[gpu], 0), []);
    // NICs without a PCI device: all are as near, and the PEs share them.
    assert_eq!(own(&tree, &[None, None, None, None], &[gpu, None]), [[0, 1], [2, 3]]);
    // One that is known comes before those that are not.
    let mixed = choose(&tree.topology, &[None, Some(tree.device("wireless"))], &[gpu], 0);
    let expected = [
        RankedNic { nic: 1, distance: Some(Phb), own: true },
        RankedNic { nic: 0, distance: None, own: false },
    ];
    assert_eq!(mixed, expected);
}

#[test]
fn every_pe_and_nic_is_used() {
    for machine in MACHINES {
        let tree = Tree::of(machine);
        let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
        let own = own(&tree, &nics, &gpus);
        assert!(own.iter().all(|own| !own.is_empty() || nics.is_empty()), "{machine}: {own:?}");
        for nic in 0..nics.len() {
            assert!(own.iter().any(|own| own.contains(&nic)), "{machine}: nobody has {nic}");
        }
    }
}
