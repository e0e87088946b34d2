//! The decision whether NICs reach device memory by themselves, and by which ways of registering
//! it.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::objects::cuda_calls::CudaCalls;
use crate::objects::memory_region::Way;
use crate::options::GpuDirect;
use crate::topology::{Distance, PciAddress, Topology};

/// A range of device memory.
#[derive(Clone, Copy)]
pub struct DeviceMemory<'a> {
    /// Virtual address of the first byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// CUDA's number of the device.
    pub ordinal: i32,
    /// Where the device is, if known.
    pub pci: Option<PciAddress>,
    /// Whether the device keeps the writes of NICs before what follows them by other ways
    /// (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`).
    pub keeps_order: bool,
    /// It lies in one allocation.
    pub is_whole: bool,
    /// The memory as a part of a dma-buf, or why there is none.
    pub dma_buf: Result<DmaBufPart<'a>, &'a str>,
    /// Runs what it is given with the memory's context bound on the thread that calls it: libfabric
    /// may ask CUDA about the memory. It is called from several threads at once. Where the context
    /// cannot be bound it runs nothing.
    pub with_context: &'a (dyn Fn(&mut dyn FnMut()) + Sync),
}

/// A part of a dma-buf.
#[derive(Clone, Copy, Debug)]
pub struct DmaBufPart<'a> {
    /// The descriptor. It may be closed after the registration.
    pub fd: BorrowedFd<'a>,
    /// Where the part starts, in bytes.
    pub offset: usize,
}

impl fmt::Debug for DeviceMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, len, ordinal, .. } = self;
        write!(f, "{len} bytes at {addr:#x} of device {ordinal}")
    }
}

/// What decides whether NICs are to reach device memory by themselves.
#[derive(Clone, Debug)]
pub(crate) struct DirectPolicy {
    pub(crate) choice: GpuDirect,
    /// How far a NIC may be.
    pub(crate) level: Distance,
    pub(crate) topology: Topology,
    pub(crate) dma_bufs: bool,
    /// The provider maps the allocation that a region begins in, and no more.
    pub(crate) one_allocation: bool,
    /// Why the provider would reach the wrong bytes.
    pub(crate) switched_off: Option<String>,
    /// Why the provider does not reach device memory, if it was asked and said so.
    pub(crate) hmem_refused: Option<String>,
    /// What it takes that NICs of this provider reach device memory. Empty where there are none
    /// that could.
    pub(crate) takes: &'static str,
}

/// What matters of a rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RailTraits<'a> {
    /// It was opened with `FI_HMEM`.
    pub(crate) reaches_devices: bool,
    pub(crate) pci: Option<PciAddress>,
    pub(crate) cuda_calls: &'a CudaCalls,
}

impl DirectPolicy {
    pub(super) fn obstacle(
        &self,
        rail: RailTraits<'_>,
        memory: &DeviceMemory<'_>,
    ) -> Option<String> {
        // A provider without it takes device memory for host memory, and faults when it transfers.
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
        if let CudaCalls::Needed(said) = rail.cuda_calls {
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
        // Where no switches are shown, being on one root complex says nothing.
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

    pub(super) fn ways(&self, memory: &DeviceMemory<'_>) -> (Vec<Way>, Option<String>) {
        let device = memory.ordinal;
        let plain = Way::Cuda { device };
        match memory.dma_buf {
            // Needs no module of the kernel beside the drivers, and no knowledge of CUDA in the
            // provider.
            Ok(DmaBufPart { fd, offset }) if self.dma_bufs => {
                (vec![Way::DmaBuf { device, fd: fd.as_raw_fd(), offset }, plain], None)
            }
            Ok(_) => {
                (vec![plain], Some(String::from("dma-buf: not with this provider and version")))
            }
            Err(reason) => (vec![plain], Some(format!("dma-buf: {reason}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::path::PathBuf;

    use super::*;

    fn policy(choice: GpuDirect) -> DirectPolicy {
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

    fn memory<'a>(dma_buf: Result<DmaBufPart<'a>, &'a str>) -> DeviceMemory<'a> {
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
    fn a_dma_buf_comes_first_where_it_is_known() {
        let file = fs::File::open("/dev/null").expect("some descriptor");
        let part = DmaBufPart { fd: file.as_fd(), offset: 64 };
        let (dma_buf, plain) =
            (Way::DmaBuf { device: 5, fd: file.as_raw_fd(), offset: 64 }, Way::Cuda { device: 5 });
        let policy = policy(GpuDirect::Auto);
        assert_eq!(policy.ways(&memory(Ok(part))), (vec![dma_buf, plain], None));
        let (ways, missing) = policy.ways(&memory(Err("cuMemGetHandle failed")));
        assert_eq!(ways, [plain]);
        assert_eq!(missing.as_deref(), Some("dma-buf: cuMemGetHandle failed"));
        let older = DirectPolicy { dma_bufs: false, ..policy };
        let (ways, missing) = older.ways(&memory(Ok(part)));
        assert_eq!(ways, [plain], "an older library would read the structure as vectors");
        assert!(missing.is_some());
    }

    struct Machine(PathBuf);

    const GPU: &str = "0000:03:00.0";
    const NEAR: &str = "0000:04:00.0";
    const FAR: &str = "0000:81:00.0";

    impl Machine {
        fn new() -> Self {
            let name = format!("nvshmem-device-memory-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            let links = root.join("bus/pci/devices");
            fs::create_dir_all(&links).expect("a directory");
            let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
            for (way, device) in [
                (format!("{switch}/0000:02:00.0"), GPU),
                (format!("{switch}/0000:02:01.0"), NEAR),
                (String::from("pci0000:80/0000:80:01.0"), FAR),
            ] {
                let directory = root.join("devices").join(way).join(device);
                fs::create_dir_all(&directory).expect("a directory");
                std::os::unix::fs::symlink(directory, links.join(device)).expect("a link");
            }
            Self(root)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn obstacles_are_found_before_libfabric_is_asked() {
        let machine = Machine::new();
        let address = |text: &str| Some(text.parse::<PciAddress>().expect("an address"));
        let policy = DirectPolicy { topology: Topology::at(&machine.0), ..policy(GpuDirect::Auto) };
        let rail = |pci| RailTraits { reaches_devices: true, pci, cuda_calls: &CudaCalls::None };
        let gpu = DeviceMemory { pci: address(GPU), ..memory(Err("none")) };
        assert_eq!(policy.obstacle(rail(address(NEAR)), &gpu), None);
        let far = policy.obstacle(rail(address(FAR)), &gpu).expect("it is too far");
        for word in [FAR, GPU, "NODE", "GDR_LEVEL is PXB"] {
            assert!(far.contains(word), "{far}");
        }
        // The user may say that it is not, or that it does not matter.
        let wide = DirectPolicy { level: Distance::Node, ..policy.clone() };
        assert_eq!(wide.obstacle(rail(address(FAR)), &gpu), None);
        let always = DirectPolicy { choice: GpuDirect::Always, ..policy.clone() };
        assert_eq!(always.obstacle(rail(address(FAR)), &gpu), None);
        // What is not known stands in nobody's way.
        let somewhere = DeviceMemory { pci: None, ..gpu };
        assert_eq!(policy.obstacle(rail(None), &gpu), None);
        assert_eq!(policy.obstacle(rail(address(FAR)), &somewhere), None);
        assert_eq!(policy.obstacle(rail(address("0000:99:00.0")), &gpu), None);

        let needed = CudaCalls::Needed(String::from("not supported"));
        let copies = RailTraits { cuda_calls: &needed, ..rail(address(NEAR)) };
        let said = policy.obstacle(copies, &gpu).expect("it copies");
        assert!(said.contains("running kernels (not supported)"), "{said}");
        assert_eq!(always.obstacle(copies, &gpu), None);
        let unknown = CudaCalls::Unknown(String::from("older"));
        let older = RailTraits { cuda_calls: &unknown, ..rail(None) };
        assert_eq!(policy.obstacle(older, &gpu), None);

        let late = DeviceMemory { keeps_order: false, ..gpu };
        let said = policy.obstacle(rail(address(NEAR)), &late).expect("signals would overtake");
        assert!(said.contains("does not keep"), "{said}");
        assert_eq!(always.obstacle(rail(address(NEAR)), &late), None);

        // What would reach other bytes is nobody's wish.
        let pieces = DeviceMemory { is_whole: false, ..gpu };
        assert_eq!(policy.obstacle(rail(address(NEAR)), &pieces), None);
        let first = DirectPolicy { one_allocation: true, ..always.clone() };
        assert_eq!(first.obstacle(rail(address(NEAR)), &gpu), None);
        let said = first.obstacle(rail(address(NEAR)), &pieces).expect("it maps the first");
        assert!(said.contains("several allocations"), "{said}");
        let off = DirectPolicy { switched_off: Some(String::from("X=0")), ..always.clone() };
        assert_eq!(off.obstacle(rail(address(NEAR)), &gpu).as_deref(), Some("X=0"));

        let blind = RailTraits { reaches_devices: false, ..rail(address(NEAR)) };
        for policy in [policy, always] {
            let said = policy.obstacle(blind, &gpu).expect("it reaches no device");
            assert!(said.contains("FI_HMEM"), "{said}");
        }
    }

    #[test]
    fn switches_that_a_virtual_machine_hides_are_not_held_against_a_nic() {
        let root = std::env::temp_dir().join(format!("nvshmem-flat-{}", std::process::id()));
        let links = root.join("bus/pci/devices");
        fs::create_dir_all(&links).expect("a directory");
        for device in [GPU, NEAR] {
            let directory = root.join("devices/pci0000:00").join(device);
            fs::create_dir_all(&directory).expect("a directory");
            std::os::unix::fs::symlink(directory, links.join(device)).expect("a link");
        }
        let policy = DirectPolicy { topology: Topology::at(&root), ..policy(GpuDirect::Auto) };
        let (gpu, nic) = (GPU.parse().ok(), NEAR.parse().ok());
        let distance = gpu.zip(nic).and_then(|(gpu, nic)| policy.topology.distance(gpu, nic));
        let rail = RailTraits { reaches_devices: true, pci: nic, cuda_calls: &CudaCalls::None };
        let memory = DeviceMemory { pci: gpu, ..memory(Err("none")) };
        let obstacle = policy.obstacle(rail, &memory);
        let _ = fs::remove_dir_all(&root);
        assert_eq!((distance, obstacle), (Some(Distance::Phb), None));
    }
}
