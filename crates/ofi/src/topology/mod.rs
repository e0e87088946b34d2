//! Distances of NICs from GPUs: PCIe and NUMA distance, from sysfs.
//!
//! The kernel shows each PCI device as a directory below the root complex and the bridges that lead
//! to it. Where the ways to two devices part says what their traffic crosses: a switch, several,
//! the processor's root complex, or the link between processors.
//!
//! Each question reads sysfs anew, which takes some system calls.
#![forbid(unsafe_code)]

mod address;
mod choice;
mod distance;
mod plan;
mod text;

pub use address::PciAddress;
pub use choice::{RankedNic, choose};
pub use distance::{Distance, Topology, sysfs};
pub use plan::{Decided, NicInputs, NicPlan};
pub use text::{cpus, numa_node};
