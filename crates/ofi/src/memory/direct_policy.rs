//! Policy of direct access by NICs to device memory, and the registration methods to try.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::objects::memory_region::Method;
use crate::options::GpuDirect;
use crate::topology::{Distance, PciAddress, Topology};

#[derive(Clone, Copy)]
pub struct DeviceMemory<'a> {
    /// Virtual address of the first byte.
    pub addr: usize,
    pub len: usize,
    /// CUDA's number of the device.
    pub ordinal: i32,
    /// PCI address of the device, if known.
    pub pci: Option<PciAddress>,
    /// Whether the device orders NICs' writes before later accesses by others
    /// (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`).
    pub keeps_order: bool,
    /// Whether it is inside one allocation.
    pub is_whole: bool,
    /// The memory as a part of a dma-buf, or the reason why there is none.
    pub dma_buf: Result<DmaBufPart<'a>, &'a str>,
    /// Runs a function with the memory's context bound on the calling thread, or not at all:
    /// libfabric may query CUDA about the memory. Several threads call it at once.
    pub with_context: &'a (dyn Fn(&mut dyn FnMut()) + Sync),
}

#[derive(Clone, Copy, Debug)]
pub struct DmaBufPart<'a> {
    /// The descriptor, which may be closed after the registration.
    pub fd: BorrowedFd<'a>,
    /// Offset of the part, in bytes.
    pub offset: usize,
}

impl fmt::Debug for DeviceMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, len, ordinal, .. } = self;
        write!(f, "{len} bytes at {addr:#x} of device {ordinal}")
    }
}

/// Policy that decides whether NICs access device memory directly.
#[derive(Clone, Debug)]
pub(crate) struct DirectPolicy {
    pub(crate) choice: GpuDirect,
    /// Maximum distance of a NIC.
    pub(crate) level: Distance,
    pub(crate) topology: Topology,
    pub(crate) dma_bufs: bool,
    /// Whether the provider maps only the allocation in which a region begins.
    pub(crate) one_allocation: bool,
    /// Reason why the provider would reach the wrong bytes.
    pub(crate) switched_off: Option<String>,
    /// The provider's reason for refusing device memory, if it was asked.
    pub(crate) hmem_refused: Option<String>,
    /// Requirements for NICs of this provider to reach device memory; empty if none can.
    pub(crate) takes: &'static str,
}

#[derive(Clone, Debug)]
pub(crate) struct RailTraits {
    /// Whether it was opened with `FI_HMEM`.
    pub(crate) reaches_devices: bool,
    /// The NIC, if known.
    pub(crate) pci: Option<PciAddress>,
    /// The endpoint's [`needs_cuda`](crate::objects::endpoint::Endpoint::needs_cuda).
    pub(crate) needs_cuda: Option<String>,
}

impl DirectPolicy {
    pub(super) fn obstacle(&self, rail: &RailTraits, memory: &DeviceMemory<'_>) -> Option<String> {
        // Without it, a provider takes device memory for host memory, and faults in a transfer.
        if !rail.reaches_devices {
            let why = self.hmem_refused.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            return Some(format!("it was opened without FI_HMEM{why}"));
        }
        if let Some(reason) = &self.switched_off {
            return Some(reason.clone());
        }
        if self.one_allocation && !memory.is_whole {
            return Some(String::from(
                "it is of several allocations, and the provider would map the first one alone",
            ));
        }
        if self.choice == GpuDirect::Always {
            return None;
        }
        if let Some(said) = &rail.needs_cuda {
            return Some(format!(
                "its transfers would call CUDA, which may wait for running kernels ({said})"
            ));
        }
        if !memory.keeps_order {
            return Some(String::from(
                "the device does not keep NICs' writes before what follows them, and the signals behind \
                 them are the CPU's (NVSHMEM_LIBFABRIC_GPU_DIRECT=always is for programs without such)",
            ));
        }
        let (nic, device) = (rail.pci?, memory.pci?);
        let distance = self.topology.distance(device, nic)?;
        // If no switches are shown, a common root complex says nothing.
        let hidden = distance == Distance::Phb
            && !self.topology.shows_bridges(device)
            && !self.topology.shows_bridges(nic);
        (distance > self.level && !hidden).then(|| {
            format!(
                "its NIC {nic} is {distance} from the device {device}, and \
                 NVSHMEM_LIBFABRIC_GDR_LEVEL is {}",
                self.level
            )
        })
    }

    pub(super) fn methods(&self, memory: &DeviceMemory<'_>) -> (Vec<Method>, Option<String>) {
        let device = memory.ordinal;
        // Always tried, if last: what has granted FI_HMEM refuses addresses that it cannot map.
        let plain = Method::Cuda { device };
        match memory.dma_buf {
            // Needs neither a kernel module besides the drivers nor CUDA in the provider.
            Ok(DmaBufPart { fd, offset }) if self.dma_bufs => {
                (vec![Method::DmaBuf { device, fd: fd.as_raw_fd(), offset }, plain], None)
            }
            Ok(_) => {
                (vec![plain], Some(String::from("dma-buf: not with this provider and version")))
            }
            Err(reason) => (vec![plain], Some(format!("dma-buf: {reason}"))),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use test_support::scratch::Scratch;
    use test_support::topology::lay_out;

    use super::*;

    pub(in crate::memory) fn policy(choice: GpuDirect) -> DirectPolicy {
        DirectPolicy {
            choice,
            level: Distance::Pxb,
            topology: Topology::at("/nowhere"),
            dma_bufs: true,
            one_allocation: false,
            switched_off: None,
            hmem_refused: None,
            takes: "",
        }
    }

    pub(in crate::memory) fn memory<'a>(
        dma_buf: Result<DmaBufPart<'a>, &'a str>,
    ) -> DeviceMemory<'a> {
        let with_context = &|run: &mut dyn FnMut()| run();
        DeviceMemory {
            addr: 1 << 20,
            len: 4096,
            ordinal: 5,
            pci: None,
            keeps_order: true,
            is_whole: true,
            dma_buf,
            with_context,
        }
    }

    #[test]
    fn dma_buf_comes_first_where_known() {
        let file = fs::File::open("/dev/null").expect("some descriptor");
        let part = DmaBufPart { fd: file.as_fd(), offset: 64 };
        let (dma_buf, plain) = (
            Method::DmaBuf { device: 5, fd: file.as_raw_fd(), offset: 64 },
            Method::Cuda { device: 5 },
        );
        let policy = policy(GpuDirect::Auto);
        assert_eq!(policy.methods(&memory(Ok(part))), (vec![dma_buf, plain], None));
        let (methods, missing) = policy.methods(&memory(Err("cuMemGetHandle failed")));
        assert_eq!(methods, [plain]);
        assert_eq!(missing.as_deref(), Some("dma-buf: cuMemGetHandle failed"));
        let older = DirectPolicy { dma_bufs: false, ..policy };
        let (methods, missing) = older.methods(&memory(Ok(part)));
        assert_eq!(methods, [plain], "an older library would read the structure as vectors");
        assert!(missing.is_some());
    }

    fn laid_out(machine: &str) -> (Scratch, impl Fn(&str) -> Option<PciAddress>) {
        let root = Scratch::new();
        let devices = lay_out(machine, &root);
        let address = move |name: &str| {
            let found = devices.iter().find(|(device, _)| device == name);
            found.and_then(|(_, address)| address.parse().ok())
        };
        (root, address)
    }

    #[test]
    fn obstacles_precede_libfabric_calls() {
        let (machine, address) = laid_out("p5-32-nics");
        let policy = DirectPolicy { topology: Topology::at(&*machine), ..policy(GpuDirect::Auto) };
        let always = DirectPolicy { choice: GpuDirect::Always, ..policy.clone() };
        let wide = DirectPolicy { level: Distance::Node, ..policy.clone() };
        let first = DirectPolicy { one_allocation: true, ..always.clone() };
        let off = DirectPolicy { switched_off: Some(String::from("X=0")), ..always.clone() };

        let gpu = DeviceMemory { pci: address("gpu0"), ..memory(Err("none")) };
        let somewhere = DeviceMemory { pci: None, ..gpu };
        let late = DeviceMemory { keeps_order: false, ..gpu };
        let pieces = DeviceMemory { is_whole: false, ..gpu };

        let rail = |pci| RailTraits { reaches_devices: true, pci, needs_cuda: None };
        let (near, far, unknown) = (rail(address("nic0")), rail(address("nic4")), rail(None));
        let gone = rail("0000:99:00.0".parse().ok());
        let blind = RailTraits { reaches_devices: false, ..near.clone() };
        let copies = RailTraits { needs_cuda: Some(String::from("no")), ..near.clone() };

        let too_far = "its NIC 0000:60:00.0 is NODE from the device 0000:53:00.0, and \
                       NVSHMEM_LIBFABRIC_GDR_LEVEL is PXB";
        for (policy, rail, memory, said) in [
            (&policy, &near, &gpu, None),
            (&policy, &far, &gpu, Some(too_far)),
            // The user may say that it is not, or that it does not matter.
            (&wide, &far, &gpu, None),
            (&always, &far, &gpu, None),
            // Unknown distances are no obstacle.
            (&policy, &unknown, &gpu, None),
            (&policy, &far, &somewhere, None),
            (&policy, &gone, &gpu, None),
            (&policy, &copies, &gpu, Some("running kernels (no)")),
            (&always, &copies, &gpu, None),
            (&policy, &near, &late, Some("does not keep")),
            (&always, &near, &late, None),
            // A registration of other bytes is never used.
            (&policy, &near, &pieces, None),
            (&first, &near, &gpu, None),
            (&first, &near, &pieces, Some("several allocations")),
            (&off, &near, &gpu, Some("X=0")),
            (&policy, &blind, &gpu, Some("FI_HMEM")),
            (&always, &blind, &gpu, Some("FI_HMEM")),
        ] {
            let found = policy.obstacle(rail, memory);
            match said {
                None => assert_eq!(found, None),
                Some(said) => {
                    assert!(found.as_ref().is_some_and(|found| found.contains(said)), "{found:?}")
                }
            }
        }
    }

    #[test]
    fn hidden_switches_do_not_exclude_nics() {
        let (machine, address) = laid_out("p4d-4-nics");
        let policy = DirectPolicy { topology: Topology::at(&*machine), ..policy(GpuDirect::Auto) };
        let (gpu, nic) = (address("gpu0"), address("nic0"));
        let distance = gpu.zip(nic).and_then(|(gpu, nic)| policy.topology.distance(gpu, nic));
        let rail = RailTraits { reaches_devices: true, pci: nic, needs_cuda: None };
        let memory = DeviceMemory { pci: gpu, ..memory(Err("none")) };
        assert_eq!((distance, policy.obstacle(&rail, &memory)), (Some(Distance::Phb), None));
    }
}
