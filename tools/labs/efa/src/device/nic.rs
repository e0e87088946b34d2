//! A NIC as one process has it open, and the small objects of it.

use std::process;
use std::sync::Arc;

use super::dma_buf::{DmaBuf, heed_flushes};
use crate::config::Config;
use crate::shared::Mapping;
use crate::shared::nic::{Domain, Gid, MAX_AHS, MAX_MRS, MAX_QPS, NicState, Region};
use crate::shared::posted::PostedWrites;
use crate::sysfs;
use crate::verbs::{
    EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_MTU_4096,
    IBV_NODE_UNSPECIFIED, IBV_PORT_ACTIVE, IBV_TRANSPORT_UNSPECIFIED, Zeros as _,
    efadv_device_attr, ibv_ah, ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_mr,
    ibv_pd, ibv_port_attr,
};

const PAGE: u64 = 4 << 10;
const DEVICE_PAGE: u64 = 64 << 10;

/// A NIC that can be opened. The first field is what callers see of it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Device {
    ibv: ibv_device,
    config: &'static Config,
    nic: u16,
}

impl Device {
    pub(crate) fn new(config: &'static Config, nic: u16) -> Self {
        let name = sysfs::name(config, nic);
        let class = config.dir.join("sys/class");
        let mut ibv = ibv_device {
            node_type: IBV_NODE_UNSPECIFIED,
            transport_type: IBV_TRANSPORT_UNSPECIFIED,
            ..ibv_device::zeros()
        };
        let uverbs = format!("uverbs{nic}");
        let at = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        text(&mut ibv.ibdev_path, &at(class.join("infiniband").join(&name)));
        text(&mut ibv.dev_path, &at(class.join("infiniband_verbs").join(&uverbs)));
        text(&mut ibv.name, &name);
        text(&mut ibv.dev_name, &uverbs);
        Self { ibv, config, nic }
    }

    pub(crate) fn into_raw(self) -> *mut ibv_device {
        Box::into_raw(Box::new(self)).cast()
    }
}

fn text(field: &mut [std::ffi::c_char], value: &str) {
    assert!(value.len() < field.len(), "efa-lab: too long for verbs: {value}");
    for (place, byte) in field.iter_mut().zip(value.bytes()) {
        *place = byte as std::ffi::c_char;
    }
}

/// An open NIC. The first field is what callers see of it.
#[repr(C)]
pub(crate) struct Nic {
    context: ibv_context,
    pub(crate) config: &'static Config,
    pub(crate) number: u16,
    pub(crate) gid: Gid,
    pub(crate) state: Arc<Mapping<NicState>>,
}

impl Nic {
    /// Most protection domains, of all processes together.
    pub(crate) const MAX_PDS: u32 = 256;

    /// Opens a device, whose queue pairs are posted to by these calls.
    ///
    /// # Safety
    /// The device is from [`Device::into_raw`].
    pub(crate) unsafe fn open(
        device: *mut ibv_device,
        ops: ibv_context_ops,
    ) -> std::io::Result<*mut ibv_context> {
        // SAFETY: as above.
        let &Device { config, nic, .. } = unsafe { &*device.cast::<Device>() };
        if config.faults.refuses_device(nic) {
            return Err(std::io::Error::from_raw_os_error(libc::ENODEV));
        }
        let gid = Gid::of(config.host, nic);
        let state = Arc::new(Mapping::create(&config.dir.join(gid.file()), 0)?);
        if config.posted > 0 {
            let path = config.dir.join(gid.posted_file());
            let bytes = Mapping::<PostedWrites>::bytes(config.posted);
            Mapping::<PostedWrites>::create(&path, bytes)?;
        }
        let context = ibv_context {
            device,
            ops,
            cmd_fd: -1,
            async_fd: -1,
            // Interrupts of completion queues are not offered.
            num_comp_vectors: 1,
            ..ibv_context::zeros()
        };
        let nic = Self { context, config, number: nic, gid, state };
        Ok(Box::into_raw(Box::new(nic)).cast())
    }

    /// The NIC behind what callers hold.
    ///
    /// # Safety
    /// It is from [`Self::open`] and not closed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: as above; `context` is the first field.
        unsafe { &*context.cast() }
    }

    /// Closes it, and says what went through it.
    ///
    /// # Safety
    /// As for [`Self::of`]; it is not used again.
    pub(crate) unsafe fn close(context: *mut ibv_context) {
        // SAFETY: as above; it came from a box.
        let nic = unsafe { Box::from_raw(context.cast::<Self>()) };
        eprintln!("efa-lab: {}: {}", sysfs::name(nic.config, nic.number), nic.state.counters);
    }

    pub(crate) fn attributes(&self) -> ibv_device_attr {
        let persona = self.config.persona;
        let mut attr = ibv_device_attr {
            vendor_id: 0x1d0f,
            vendor_part_id: persona.part_id,
            hw_ver: persona.part_id,
            phys_port_cnt: 1,
            page_size_cap: 4096,
            max_mr_size: persona.max_pages * PAGE,
            max_qp: MAX_QPS as i32,
            max_qp_wr: persona.max_sq_wr.max(persona.max_rq_wr) as i32,
            max_sge: 2,
            max_sge_rd: 1,
            max_cq: 2 * MAX_QPS as i32,
            max_cqe: persona.max_cqe as i32,
            max_mr: MAX_MRS as i32,
            max_pd: Self::MAX_PDS as i32,
            max_ah: MAX_AHS as i32,
            ..ibv_device_attr::zeros()
        };
        text(&mut attr.fw_ver, "0.0.0.0");
        attr
    }

    pub(crate) fn efa_attributes(&self) -> efadv_device_attr {
        let persona = self.config.persona;
        efadv_device_attr {
            max_sq_wr: persona.max_sq_wr,
            max_rq_wr: persona.max_rq_wr,
            max_sq_sge: 2,
            max_rq_sge: crate::shared::receives::MAX_RECEIVE_BUFFERS as u16,
            inline_buf_size: persona.inline_bytes,
            device_caps: persona.caps,
            max_rdma_size: persona.max_rdma,
            ..efadv_device_attr::zeros()
        }
    }

    pub(crate) fn port(&self) -> ibv_port_attr {
        ibv_port_attr {
            state: if self.state.is_dead() { 1 } else { IBV_PORT_ACTIVE },
            max_mtu: IBV_MTU_4096,
            active_mtu: IBV_MTU_4096,
            gid_tbl_len: 1,
            pkey_tbl_len: 1,
            max_msg_sz: self.config.persona.mtu,
            // Four lanes of 25 Gbit/s.
            active_width: 2,
            active_speed: 32,
            max_vl_num: 1,
            phys_state: 5,
            ..ibv_port_attr::zeros()
        }
    }

    pub(crate) fn register(
        &self,
        pd: &mut Pd,
        memory: Memory,
        length: usize,
        iova: u64,
        access: u32,
    ) -> Result<*mut Mr, i32> {
        let persona = self.config.persona;
        let mut supported = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
        if persona.can(EFADV_DEVICE_ATTR_CAPS_RDMA_READ) {
            supported |= IBV_ACCESS_REMOTE_READ;
        }
        if persona.can(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE) {
            supported |= IBV_ACCESS_REMOTE_WRITE;
        }
        if access & !supported != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // The kernel's rule for all devices (`ib_check_mr_access`).
        if access & IBV_ACCESS_REMOTE_WRITE != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0 {
            return Err(libc::EINVAL);
        }
        if self.config.faults.refuses_registration() {
            return Err(libc::ENOMEM);
        }
        let (address, part) = match memory {
            Memory::At(address) if can_be_pinned(address, length) => (address, None),
            Memory::At(_) => return Err(libc::EFAULT),
            // The kernel's rule again (`UVERBS_METHOD_REG_DMABUF_MR`).
            Memory::DmaBuf { offset, .. } if offset % PAGE != iova % PAGE => {
                return Err(libc::EINVAL);
            }
            Memory::DmaBuf { file, offset } => {
                let part = DmaBuf::map(file, offset, length)?;
                heed_flushes();
                (part.address, Some(part))
            }
        };
        let region = Region {
            process: process::id(),
            access,
            domain: domain_of(pd),
            iova,
            address,
            length: length as u64,
            device: part.is_some(),
        };
        // A device's memory is of larger pages.
        let page = if region.device { DEVICE_PAGE } else { PAGE };
        let pages = region.length.div_ceil(page);
        if !self.state.take_pages(pages, persona.max_pages) {
            return Err(libc::ENOMEM);
        }
        let Some(key) = self.state.add_mr(&region) else {
            self.state.give_pages(pages);
            return Err(libc::ENOMEM);
        };
        let ibv = ibv_mr {
            context: std::ptr::from_ref(self) as *mut ibv_context,
            pd,
            addr: iova as *mut _,
            length,
            handle: key,
            lkey: key,
            rkey: key,
        };
        Ok(Box::into_raw(Box::new(Mr { ibv, pages, _part: part })))
    }

    /// Where a buffer of a work request is, and whether in memory of a device, if its key is of the
    /// queue's domain, covers it and has the right.
    pub(crate) fn buffer(
        &self,
        domain: Domain,
        key: u32,
        address: u64,
        length: u64,
        right: u32,
    ) -> Option<(u64, bool)> {
        let fits = |region: &Region| {
            region.process == process::id()
                && region.domain == domain
                && region.access & right == right
        };
        let region = self.state.mr(key).filter(fits)?;
        Some((region.find(address, length)?, region.device))
    }
}

/// Whether the kernel would pin memory: it is there, and the process may read it. The first and the
/// last byte stand for all of it.
fn can_be_pinned(at: u64, length: usize) -> bool {
    if length == 0 {
        return true;
    }
    [at, at + length as u64 - 1].into_iter().all(|byte| {
        let mut copy = 0_u8;
        let local = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: byte as *mut libc::c_void, iov_len: 1 };
        // SAFETY: the kernel looks whether the byte is there, and writes to our copy alone.
        unsafe { libc::process_vm_readv(process::id() as i32, &local, 1, &remote, 1, 0) == 1 }
    })
}

/// Deregisters memory.
///
/// # Safety
/// The region is from [`Nic::register`], and not used again.
pub(crate) unsafe fn deregister(mr: *mut Mr) {
    // SAFETY: as above; it came from a box, and the NIC outlives its regions.
    unsafe {
        let mr = Box::from_raw(mr);
        let state = &Nic::of(mr.ibv.context).state;
        state.remove_mr(mr.ibv.rkey);
        state.give_pages(mr.pages);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// From an address of this process on.
    At(u64),
    /// In a dma-buf, so many bytes behind its start.
    DmaBuf { file: i32, offset: u64 },
}

/// A memory region. The first field is what callers see of it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mr {
    ibv: ibv_mr,
    pages: u64,
    _part: Option<DmaBuf>,
}

/// A protection domain, with the number that the NIC has for it.
pub(crate) type Pd = ibv_pd;

pub(crate) fn domain_of(pd: &Pd) -> Domain {
    Domain(pd.handle)
}

/// An address handle. The first field is what callers see of it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ah {
    ibv: ibv_ah,
    pub(crate) gid: Gid,
    pub(crate) number: u32,
}

impl Ah {
    pub(crate) fn create(nic: &Nic, pd: &mut Pd, gid: Gid) -> Result<*mut ibv_ah, i32> {
        let most = nic.config.faults.handles().unwrap_or(MAX_AHS);
        let number = nic.state.add_ah(domain_of(pd), gid, most).ok_or(libc::ENOMEM)?;
        let context = std::ptr::from_ref(nic) as *mut ibv_context;
        let ibv = ibv_ah { context, pd, handle: number };
        Ok(Box::into_raw(Box::new(Self { ibv, gid, number })).cast())
    }

    /// # Safety
    /// The handle is from [`Self::create`] and not destroyed.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: as above; `ibv` is the first field.
        unsafe { &*ah.cast() }
    }

    /// # Safety
    /// As for [`Self::of`]; it is not used again.
    pub(crate) unsafe fn destroy(ah: *mut ibv_ah) {
        // SAFETY: as above; it came from a box, and the NIC outlives it.
        unsafe {
            let ah = Box::from_raw(ah.cast::<Self>());
            Nic::of(ah.ibv.context).state.remove_ah(ah.number);
        }
    }
}
