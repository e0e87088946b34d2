//! A completion queue of this process.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::exclusive::Exclusive;
use super::nic::Nic;
use super::wire::Wire;
use crate::config::Config;
use crate::shared::Mapping;
use crate::shared::completions::{self, Completion, CompletionQueue};
use crate::shared::nic::QpId;
use crate::verbs::{
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, Status, WITH_IMM, Zeros as _, efadv_cq, ibv_context,
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_gid, ibv_poll_cq_attr, ibv_wc_opcode,
};

/// Counts of work requests that a queue pair has posted and not yet seen complete.
#[derive(Default, Debug)]
pub(crate) struct Outstanding {
    pub(crate) sends: AtomicU32,
    pub(crate) receives: AtomicU32,
}

/// The first fields are what callers see of it.
#[repr(C)]
pub(crate) struct Cq {
    ex: ibv_cq_ex,
    efa: efadv_cq,
    number: u32,
    wire: &'static Wire,
    queue: Arc<Mapping<CompletionQueue>>,
    qps: Mutex<Vec<(QpId, Arc<Outstanding>)>>,
    in_use: Exclusive,
    current: Option<Completion>,
}

impl Cq {
    /// Makes one for at least so many completions. As libefa, it takes the next power of two.
    pub(crate) fn create(nic: &Nic, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex, i32> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if attr.cqe == 0 || attr.cqe > nic.config.persona.max_cqe {
            return Err(libc::EINVAL);
        }
        if !attr.channel.is_null() {
            // There are no interrupts, and the device has said so.
            return Err(libc::EOPNOTSUPP);
        }
        let config: &'static Config = nic.config;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = config.dir.join(completions::file(process::id(), number));
        let capacity = attr.cqe.next_power_of_two();
        let queue = Mapping::create(&path, Mapping::<CompletionQueue>::bytes(capacity))
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        let ex = ibv_cq_ex {
            context: std::ptr::from_ref(nic) as *mut ibv_context,
            cq_context: attr.cq_context,
            cqe: capacity as i32,
            handle: number,
            start_poll: Some(start_poll),
            next_poll: Some(next_poll),
            end_poll: Some(end_poll),
            read_opcode: Some(read_opcode),
            read_vendor_err: Some(read_vendor_err),
            read_byte_len: Some(read_byte_len),
            read_imm_data: Some(read_imm_data),
            read_qp_num: Some(read_qp_num),
            read_src_qp: Some(read_src_qp),
            read_wc_flags: Some(read_wc_flags),
            read_slid: Some(read_slid),
            ..ibv_cq_ex::zeros()
        };
        let efa = efadv_cq {
            comp_mask: 0,
            wc_read_sgid: Some(read_sgid),
            wc_is_unsolicited: Some(is_unsolicited),
        };
        let cq = Self {
            ex,
            efa,
            number,
            wire: Wire::get(config),
            queue: Arc::new(queue),
            qps: Mutex::default(),
            in_use: Exclusive::default(),
            current: None,
        };
        Ok(Box::into_raw(Box::new(cq)).cast())
    }

    /// The queue behind what callers hold.
    ///
    /// # Safety
    /// It is from [`Self::create`], not destroyed, and nobody else has it while the reference
    /// lives.
    unsafe fn of<'a>(cq: *mut ibv_cq_ex) -> &'a mut Self {
        // SAFETY: as above; `ex` is the first field.
        unsafe { &mut *cq.cast() }
    }

    /// What efa adds to it.
    ///
    /// # Safety
    /// As for [`Self::of`].
    pub(crate) unsafe fn efa(cq: *mut ibv_cq_ex) -> *mut efadv_cq {
        // SAFETY: as above.
        unsafe { &raw mut (*cq.cast::<Self>()).efa }
    }

    fn from_efa(efa: *mut efadv_cq) -> *mut ibv_cq_ex {
        efa.wrapping_byte_sub(std::mem::offset_of!(Self, efa)).cast()
    }

    /// # Safety
    /// As for [`Self::of`]; it is not used again.
    pub(crate) unsafe fn destroy(cq: *mut ibv_cq_ex) -> i32 {
        // SAFETY: as above; it came from a box.
        let own = unsafe { Box::from_raw(cq.cast::<Self>()) };
        if own.lock().is_empty() {
            return 0;
        }
        // Queue pairs still have it.
        let _ = Box::into_raw(own);
        libc::EBUSY
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(QpId, Arc<Outstanding>)>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue pair whose completions come here. Returns the shared queue and its number.
    ///
    /// # Safety
    /// The queue is from [`Self::create`] and not destroyed.
    pub(crate) unsafe fn attach(
        cq: *mut ibv_cq_ex,
        qp: QpId,
        outstanding: &Arc<Outstanding>,
    ) -> (Arc<Mapping<CompletionQueue>>, u32) {
        // SAFETY: as above, and these fields are for several threads.
        let own = unsafe { &*cq.cast::<Self>() };
        let mut qps = own.lock();
        if !qps.iter().any(|(known, _)| *known == qp) {
            qps.push((qp, Arc::clone(outstanding)));
        }
        (Arc::clone(&own.queue), own.number)
    }

    /// The end of [`Self::attach`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn detach(cq: *mut ibv_cq_ex, qp: QpId) {
        // SAFETY: as above, and this field is for several threads.
        unsafe { &*cq.cast::<Self>() }.lock().retain(|(known, _)| *known != qp);
    }

    fn next(&mut self) -> i32 {
        if self.queue.has_overrun() {
            eprintln!(
                "efa-lab: completion queue {} has overrun: more completions than its {} places",
                self.number,
                self.queue.capacity()
            );
            process::abort()
        }
        self.current = None;
        while let Some(completion) = self.queue.take() {
            let qps = self.lock();
            let Some((_, outstanding)) = qps.iter().find(|(qp, _)| *qp == completion.qp) else {
                continue;
            };
            if !matches!(completion.opcode, IBV_WC_RECV | IBV_WC_RECV_RDMA_WITH_IMM) {
                outstanding.sends.fetch_sub(1, Ordering::Relaxed);
            } else if !completion.unsolicited {
                outstanding.receives.fetch_sub(1, Ordering::Relaxed);
            }
            drop(qps);
            self.ex.wr_id = completion.id;
            self.ex.status = Status::numbered(completion.status as u32).1;
            self.current = Some(completion);
            return 0;
        }
        libc::ENOENT
    }

    fn current(&self) -> &Completion {
        self.current.as_ref().expect("a completion was polled before it is read")
    }
}

// SAFETY of all below: callers give what `Cq::create` made, and enter one at a time, which is
// checked.

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> i32 {
    // SAFETY: see above.
    let own = unsafe { Cq::of(cq) };
    own.in_use.enter("a completion queue", "ibv_start_poll");
    own.wire.poll();
    let code = own.next();
    if code != 0 {
        own.in_use.leave();
    }
    code
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> i32 {
    // SAFETY: see above.
    unsafe { Cq::of(cq) }.next()
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: see above.
    unsafe { Cq::of(cq) }.in_use.leave();
}

/// Functions that read a field of the completion that was polled.
macro_rules! reads {
    ($($name:ident: $type:ty = $of:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            let read: fn(&Completion) -> $type = $of;
            // SAFETY: see above.
            read(unsafe { Cq::of(cq) }.current())
        }
    )*};
}

reads! {
    read_opcode: ibv_wc_opcode = |of| of.opcode;
    read_vendor_err: u32 = |of| of.status as u32;
    read_byte_len: u32 = |of| of.bytes;
    read_imm_data: u32 = |of| of.immediate.unwrap_or(0);
    read_qp_num: u32 = |of| of.qp.number;
    read_src_qp: u32 = |of| of.source_qp;
    read_wc_flags: u32 = |of| if of.immediate.is_some() { WITH_IMM } else { 0 };
    read_slid: u32 = |of| of.source_ah;
}

unsafe extern "C" fn read_sgid(efa: *mut efadv_cq, gid: *mut ibv_gid) -> i32 {
    // SAFETY: see above; the address is the caller's to write to.
    unsafe { (*gid).raw = Cq::of(Cq::from_efa(efa)).current().source.0 };
    0
}

unsafe extern "C" fn is_unsolicited(efa: *mut efadv_cq) -> bool {
    // SAFETY: see above.
    unsafe { Cq::of(Cq::from_efa(efa)) }.current().unsolicited
}
