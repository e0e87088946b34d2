//! A sysfs made from a table.

use std::collections::HashMap;

use ofi::topology::{PciAddress, Topology};
use test_support::scratch::Scratch;
use test_support::topology::lay_out;

pub(crate) struct Tree {
    devices: HashMap<String, PciAddress>,
    pub(crate) topology: Topology,
    _root: Scratch,
}

impl Tree {
    pub(crate) fn of(machine: &str) -> Self {
        let root = Scratch::new();
        let address = |text: String| text.parse().expect("the way ends in an address");
        let devices = lay_out(machine, &root).into_iter();
        let devices = devices.map(|(name, text)| (name, address(text))).collect();
        Self { topology: Topology::at(&*root), devices, _root: root }
    }

    pub(crate) fn device(&self, name: &str) -> PciAddress {
        *self.devices.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// The devices `kind0`, `kind1` and so on.
    pub(crate) fn all(&self, kind: &str) -> Vec<PciAddress> {
        (0..).map_while(|at| self.devices.get(&format!("{kind}{at}")).copied()).collect()
    }
}
