//! Plans of NICs that are opened, on the same machines.

use ofi::topology::Distance::{Node, Pix, Sys};
use ofi::topology::{Decided, NicInputs, NicPlan};

use super::known;
use super::tree::Tree;

fn plan(tree: &Tree, known: &NicInputs<'_>) -> NicPlan {
    NicPlan::make(&tree.topology, known, 16)
}

fn nics_of(plan: &NicPlan) -> Vec<usize> {
    plan.nics.iter().map(|(nic, _)| *nic).collect()
}

#[test]
fn named_nics_keep_their_order() {
    let tree = Tree::of("p5-32-nics");
    let gpus = known(tree.all("gpu"));
    let all = tree.all("nic");
    let nics = known(vec![all[31], all[0], all[0]]);
    let known = NicInputs { nics: &nics, gpus: &gpus, me: 0, named: true, picked: &[1] };
    let plan = plan(&tree, &known);
    assert_eq!(plan.decided, Decided::Named);
    assert_eq!(plan.nics, [(0, Some(Sys)), (1, Some(Pix)), (2, Some(Pix))]);
    let one = NicPlan::make(&tree.topology, &known, 1);
    assert_eq!((nics_of(&one), one.passed_over), (vec![0], Some((1, Pix))));
    assert!(one.spare.is_empty(), "nothing in place of what the user has named");
}

#[test]
fn spare_nics_come_nearest_first() {
    let tree = Tree::of("p5-32-nics");
    let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
    for picked in [&[][..], &[3, 0]] {
        let known = NicInputs { nics: &nics, gpus: &gpus, me: 1, named: false, picked };
        let plan = plan(&tree, &known);
        let decided = if picked.is_empty() { Decided::Near } else { Decided::Host };
        assert_eq!(plan.decided, decided);
        let mut all = [nics_of(&plan), plan.spare.clone()].concat();
        let of = |nic: usize| tree.topology.distance(gpus[1]?, nics[nic]?);
        assert!(plan.spare.is_sorted_by_key(|nic| of(*nic)), "{:?}", plan.spare);
        all.sort_unstable();
        assert_eq!(all, (0..nics.len()).collect::<Vec<_>>());
    }
}

#[test]
fn nearer_unpicked_nics_are_told() {
    let tree = Tree::of("p5-32-nics");
    let (nics, gpus) = (known(tree.all("nic")), known(tree.all("gpu")));
    let known = NicInputs { nics: &nics, gpus: &gpus, me: 0, named: false, picked: &[31, 5, 2] };
    let near = plan(&tree, &known);
    assert_eq!(near.nics, [(2, Some(Pix)), (5, Some(Node)), (31, Some(Sys))]);
    assert_eq!(near.passed_over, None);
    let far = plan(&tree, &NicInputs { picked: &[31], ..known });
    assert_eq!(far.passed_over, Some((0, Pix)));
    // What does not exist is for the fabric to refuse.
    assert_eq!(nics_of(&plan(&tree, &NicInputs { picked: &[40, 1], ..known })), [40, 1]);
}
