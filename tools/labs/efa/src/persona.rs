//! Personas: the EFA NICs of kinds of machines, as data.

use crate::verbs::{
    EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID, EFADV_DEVICE_ATTR_CAPS_RDMA_READ,
    EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, EFADV_DEVICE_ATTR_CAPS_RNR_RETRY,
    EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV,
};

/// A kind of machine: how many NICs it has, where, and what they can do.
#[derive(Debug)]
pub(crate) struct Persona {
    pub(crate) name: &'static str,
    pub(crate) part_id: u32,
    pub(crate) caps: u32,
    pub(crate) max_sq_wr: u32,
    pub(crate) max_rq_wr: u32,
    pub(crate) inline_bytes: u16,
    pub(crate) max_rdma: u32,
    pub(crate) max_cqe: u32,
    /// Pages of 4 KiB that can be registered, of all processes together.
    pub(crate) max_pages: u64,
    pub(crate) mtu: u32,
    /// NICs behind one PCIe root.
    nics_per_root: u16,
    /// The bus of the first NIC behind each root. The others follow, one a bus.
    first_bus: &'static [u8],
    device: u8,
}

const MESSAGES: u32 = EFADV_DEVICE_ATTR_CAPS_RNR_RETRY | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
const READS: u32 = MESSAGES | EFADV_DEVICE_ATTR_CAPS_RDMA_READ;
const WRITES: u32 = READS | EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;
const UNSOLICITED: u32 = WRITES | EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;

const P5: Persona = Persona {
    name: "p5",
    part_id: 0xefa2,
    caps: WRITES,
    max_sq_wr: 4096,
    max_rq_wr: 32768,
    inline_bytes: 32,
    max_rdma: 1 << 30,
    max_cqe: 1 << 16,
    max_pages: 384 << 18,
    mtu: 8928,
    nics_per_root: 4,
    first_bus: &[0x4f, 0x60, 0x71, 0x82, 0x93, 0xa4, 0xb5, 0xc6],
    device: 0,
};

const PERSONAS: [Persona; 4] = [
    Persona {
        name: "p4d",
        part_id: 0xefa1,
        caps: READS,
        max_sq_wr: 2048,
        max_rq_wr: 16384,
        max_cqe: 1 << 15,
        max_pages: 96 << 18,
        nics_per_root: 1,
        first_bus: &[0x10, 0x20, 0x90, 0xa0],
        device: 0x1b,
        ..P5
    },
    P5,
    Persona { name: "p5en", part_id: 0xefa3, caps: UNSOLICITED, nics_per_root: 2, ..P5 },
    Persona { name: "p6", part_id: 0xefa3, caps: UNSOLICITED, nics_per_root: 1, ..P5 },
];

impl Persona {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PERSONAS.iter().find(|persona| persona.name == name)
    }

    pub(crate) fn names() -> String {
        PERSONAS.map(|persona| persona.name).join(", ")
    }

    pub(crate) fn nics(&self) -> u16 {
        self.nics_per_root * self.first_bus.len() as u16
    }

    pub(crate) fn can(&self, caps: u32) -> bool {
        self.caps & caps == caps
    }

    pub(crate) fn place(&self, nic: u16) -> (u8, u8) {
        let root = self.first_bus[usize::from(nic / self.nics_per_root)];
        (root + (nic % self.nics_per_root) as u8, self.device)
    }
}
