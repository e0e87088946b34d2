//! Distances, and the choice of NICs, on machines described in `tests/data/topology`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod plan;
mod tree;

use ofi::topology::Distance::{self, Loc, Node, Phb, Pix, Pxb, Sys};
use ofi::topology::{PciAddress, RankedNic, choose};

use self::tree::Tree;

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

type Between = (&'static str, &'static str, Distance);

const DISTANCES: [(&str, &[Between]); 6] = [
    (
        "h100-8-nics",
        &[
            // Two switches.
            ("gpu0", "nic0", Pxb),
            ("gpu7", "nic7", Pxb),
            ("gpu0", "nic3", Node),
            ("gpu4", "nic3", Sys),
            ("storage0", "storage1", Loc),
            // Two ports of one switch.
            ("disk0", "nic0", Pix),
            ("gpu5", "storage2", Node),
        ],
    ),
    // NICs behind the GPU's switch.
    ("p5-32-nics", &[("gpu0", "nic3", Pix), ("gpu0", "nic4", Node), ("gpu0", "nic31", Sys)]),
    // Switches are hidden.
    ("p4d-4-nics", &[("gpu0", "nic0", Phb), ("gpu1", "gpu0", Phb), ("gpu1", "nic1", Node)]),
    // One root complex each.
    ("slingshot-4-nics", &[("gpu2", "nic2", Phb), ("gpu2", "nic1", Sys)]),
    (
        "server-2-ports",
        &[
            ("nic0", "nic1", Loc),
            // 5e:01.1 is another device number than 5e:00.1, of which it is a virtual function.
            ("nic0", "vf1", Loc),
            ("vf0", "vf1", Loc),
            ("gpu1", "vf1", Phb),
            ("gpu0", "vf1", Node),
            // The kernel names no node for the virtual function, but one for its physical one.
            ("gpu2", "vf0", Sys),
        ],
    ),
    (
        // Without NUMA, all is one node.
        "laptop",
        &[
            ("gpu0", "wireless", Phb),
            ("gpu0", "disk", Phb),
            ("gpu0", "gpu0", Loc),
            // Behind a device that makes up a domain of its own, and still on this root complex.
            ("gpu0", "vmd", Phb),
        ],
    ),
];

#[test]
fn distances_of_described_machines() {
    for (machine, rows) in DISTANCES {
        let tree = Tree::of(machine);
        for (one, other, expected) in rows {
            assert_eq!(distance(&tree, one, other), *expected, "{machine}: {one} to {other}");
        }
    }
    for (machine, shown) in [("p4d-4-nics", false), ("laptop", true)] {
        let tree = Tree::of(machine);
        assert_eq!(tree.topology.shows_bridges(tree.device("gpu0")), shown, "{machine}");
    }
}

#[test]
fn every_gpu_has_its_nics() {
    type Own = fn(usize) -> Vec<usize>;
    let all: [(&str, usize, Own); 5] = [
        ("h100-8-nics", 8, |gpu| vec![gpu]),
        ("p5-32-nics", 8, |gpu| (4 * gpu..4 * gpu + 4).collect()),
        // Two GPUs to a NIC: each NIC is somebody's.
        ("p4d-4-nics", 8, |gpu| vec![gpu / 2]),
        ("slingshot-4-nics", 4, |gpu| vec![gpu]),
        // Both ports are on the first socket, but they are the nearest from the other one as well.
        ("server-2-ports", 4, |gpu| vec![gpu % 2]),
    ];
    for (machine, gpus, expected) in all {
        let tree = Tree::of(machine);
        let own = own(&tree, &known(tree.all("nic")), &known(tree.all("gpu")));
        assert_eq!(own, (0..gpus).map(expected).collect::<Vec<_>>(), "{machine}");
    }
}

#[test]
fn nics_of_shared_gpus_are_shared() {
    let tree = Tree::of("p5-32-nics");
    let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
    // Two PEs on each of the first two GPUs share its NICs, and nobody else's.
    let shared = own(&tree, &nics, &[gpus[0], gpus[1], gpus[0], gpus[1]]);
    assert_eq!(shared, [vec![0, 1], vec![4, 5], vec![2, 3], vec![6, 7]]);
    // Of ports that are as near, the other one comes second.
    let tree = Tree::of("server-2-ports");
    let ranking = choose(&tree.topology, &known(tree.all("nic")), &known(tree.all("gpu")), 3);
    let expected = [
        RankedNic { nic: 1, distance: Some(Sys), own: true },
        RankedNic { nic: 0, distance: Some(Sys), own: false },
    ];
    assert_eq!(ranking, expected);
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
    // The NICs after the own one follow in order.
    let ranking = choose(&tree.topology, &[None; 4], &[None; 4], 1).into_iter();
    assert_eq!(ranking.map(|choice| choice.nic).collect::<Vec<_>>(), [1, 2, 3, 0]);
    // One that is known comes before those that are not.
    let mixed = choose(&tree.topology, &[None, Some(tree.device("wireless"))], &[gpu], 0);
    let expected = [
        RankedNic { nic: 1, distance: Some(Phb), own: true },
        RankedNic { nic: 0, distance: None, own: false },
    ];
    assert_eq!(mixed, expected);
}
