//! Plans of NICs that are opened, on the same machines; and what a host picks that is offered all
//! of them.

use ofi::topology::Distance::{Node, Pix, Pxb, Sys};
use ofi::topology::{Decided, Distance, Known, PciAddress, Plan, choose};

use super::tree::Tree;
use super::{MACHINES, known};

/// What hosts do with NICs that are offered to them: each PE gets its part of their number at most,
/// all from the best class it has a NIC of, and moves to another NIC of that class which two PEs
/// fewer share. One switch and several are one class to them.
struct Host<'a> {
    tree: &'a Tree,
    nics: &'a [Option<PciAddress>],
    gpus: &'a [Option<PciAddress>],
}

impl Host<'_> {
    fn class(&self, pe: usize, nic: usize) -> Distance {
        let distance = self.tree.topology.distance(self.gpus[pe].unwrap(), self.nics[nic].unwrap());
        distance.map_or(Sys, |distance| distance.max(Pxb))
    }

    fn picks(&self) -> Vec<Vec<usize>> {
        let most = (self.nics.len() / self.gpus.len()).max(1);
        let mut users = vec![0; self.nics.len()];
        let mut picks: Vec<Vec<usize>> = Vec::new();
        for pe in 0..self.gpus.len() {
            let best = (0..self.nics.len()).map(|nic| self.class(pe, nic)).min().unwrap();
            let near = (0..self.nics.len()).filter(|nic| self.class(pe, *nic) == best);
            picks.push(near.take(most).collect());
            picks[pe].iter().for_each(|nic| users[*nic] += 1);
        }
        for (pe, mine) in picks.iter_mut().enumerate() {
            for pick in mine {
                for nic in 0..users.len() {
                    let as_near = self.class(pe, nic) <= self.class(pe, *pick);
                    if as_near && users[*pick] >= users[nic] + 2 {
                        users[*pick] -= 1;
                        users[nic] += 1;
                        *pick = nic;
                    }
                }
            }
        }
        picks
    }
}

fn plan(tree: &Tree, known: &Known<'_>) -> Plan {
    Plan::make(&tree.topology, known, 16)
}

fn nics_of(plan: &Plan) -> Vec<usize> {
    plan.nics.iter().map(|(nic, _)| *nic).collect()
}

/// On every machine, for any number of PEs on its first GPUs: what a host picks is as near as what
/// is picked here, and no NIC has more PEs.
#[test]
fn the_host_s_own_choice_agrees() {
    for machine in MACHINES {
        let tree = Tree::of(machine);
        let (nics, all) = (known(tree.all("nic")), known(tree.all("gpu")));
        if nics.is_empty() {
            continue;
        }
        for count in 1..=all.len() {
            let gpus = &all[..count];
            let picks = Host { tree: &tree, nics: &nics, gpus }.picks();
            let mut users = [vec![0; nics.len()], vec![0; nics.len()]];
            for (me, picked) in picks.iter().enumerate() {
                let what = format!("{machine}, PE {me} of {count}");
                let alone = Known { nics: &nics, gpus, me, named: false, picked: &[] };
                let own = plan(&tree, &alone);
                assert_eq!(own.decided, Decided::Near, "{what}");
                let picked = plan(&tree, &Known { picked, ..alone });
                assert_eq!(picked.decided, Decided::Host, "{what}");
                assert_eq!((&own.passed_over, &picked.passed_over), (&None, &None), "{what}");
                let distances = |plan: &Plan| -> Vec<_> {
                    let mut all: Vec<_> = plan.nics.iter().map(|(_, distance)| *distance).collect();
                    all.dedup();
                    all
                };
                assert_eq!(distances(&own), distances(&picked), "{what}");
                nics_of(&own).iter().for_each(|nic| users[0][*nic] += 1);
                nics_of(&picked).iter().for_each(|nic| users[1][*nic] += 1);
            }
            let most = users.each_ref().map(|users| *users.iter().max().unwrap());
            assert!(most[0] <= most[1], "{machine}, {count} PEs: {users:?}");
            if count == all.len() {
                assert_eq!(most[0], most[1], "{machine}: {users:?}");
            }
        }
    }
}

#[test]
fn with_a_pe_for_each_gpu_the_host_picks_the_same_nics() {
    for machine in ["h100-8-nics", "p5-32-nics", "p4d-4-nics", "slingshot-4-nics"] {
        let tree = Tree::of(machine);
        let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
        let picks = Host { tree: &tree, nics: &nics, gpus: &gpus }.picks();
        for (me, picked) in picks.iter().enumerate() {
            let alone = Known { nics: &nics, gpus: &gpus, me, named: false, picked: &[] };
            assert_eq!(nics_of(&plan(&tree, &alone)), *picked, "{machine}, PE {me}");
        }
    }
}

#[test]
fn what_the_user_names_is_taken_in_that_order() {
    let tree = Tree::of("p5-32-nics");
    let gpus = known(tree.all("gpu"));
    let all = tree.all("nic");
    let nics = known(vec![all[31], all[0], all[0]]);
    let known = Known { nics: &nics, gpus: &gpus, me: 0, named: true, picked: &[1] };
    let plan = plan(&tree, &known);
    assert_eq!(plan.decided, Decided::Named);
    assert_eq!(plan.nics, [(0, Some(Sys)), (1, Some(Pix)), (2, Some(Pix))]);
    let one = Plan::make(&tree.topology, &known, 1);
    assert_eq!((nics_of(&one), one.passed_over), (vec![0], Some((1, Pix))));
    assert!(one.spare.is_empty(), "nothing in place of what the user has named");
}

#[test]
fn spare_nics_are_all_others_and_the_nearest_come_first() {
    let tree = Tree::of("p5-32-nics");
    let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
    for picked in [&[][..], &[3, 0]] {
        let known = Known { nics: &nics, gpus: &gpus, me: 1, named: false, picked };
        let plan = plan(&tree, &known);
        let mut all = [nics_of(&plan), plan.spare.clone()].concat();
        let of = |nic: usize| tree.topology.distance(gpus[1]?, nics[nic]?);
        assert!(plan.spare.is_sorted_by_key(|nic| of(*nic)), "{:?}", plan.spare);
        all.sort_unstable();
        assert_eq!(all, (0..nics.len()).collect::<Vec<_>>());
    }
}

#[test]
fn picked_nics_come_nearest_first_and_nearer_ones_are_told() {
    let tree = Tree::of("p5-32-nics");
    let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
    let known = Known { nics: &nics, gpus: &gpus, me: 0, named: false, picked: &[31, 5, 2] };
    let near = plan(&tree, &known);
    assert_eq!(near.nics, [(2, Some(Pix)), (5, Some(Node)), (31, Some(Sys))]);
    assert_eq!(near.passed_over, None);
    let far = plan(&tree, &Known { picked: &[31], ..known });
    assert_eq!(far.passed_over, Some((0, Pix)));
    // What does not exist is for the fabric to refuse.
    assert_eq!(nics_of(&plan(&tree, &Known { picked: &[40, 1], ..known })), [40, 1]);
}

#[test]
fn where_nothing_is_known_all_are_opened() {
    let tree = Tree::of("laptop");
    let gpu = Some(tree.device("gpu0"));
    for gpus in [[gpu, gpu], [None, None]] {
        for me in 0..2 {
            let nics = [None, None, None];
            let known = Known { nics: &nics, gpus: &gpus, me, named: false, picked: &[] };
            let plan = plan(&tree, &known);
            assert_eq!((plan.decided, nics_of(&plan)), (Decided::Unknown, vec![0, 1, 2]));
        }
    }
    // A host without GPUs has picked: that order is kept.
    let nics = known(vec![tree.device("wireless"), tree.device("wireless")]);
    let known = Known { nics: &nics, gpus: &[None], me: 0, named: false, picked: &[1, 0] };
    assert_eq!(nics_of(&plan(&tree, &known)), [1, 0]);
    assert_eq!(choose(&tree.topology, &nics, &[None], 0).len(), 2);
}
