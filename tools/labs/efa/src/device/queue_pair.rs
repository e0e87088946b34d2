//! A queue pair of this process.

use std::process;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::completion_queue::{Cq, Outstanding};
use super::exclusive::Exclusive;
use super::nic::{Ah, Nic, domain_of};
use super::wire::{Data, Kind, Operation, Wire};
use crate::shared::Mapping;
use crate::shared::completions::CompletionQueue;
use crate::shared::nic::{Domain, Gid, QpId};
use crate::shared::receives::{MAX_RECEIVE_BUFFERS, Receive, ReceiveQueue};
use crate::verbs::{
    EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE,
    EFADV_DEVICE_ATTR_CAPS_RNR_RETRY, EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV,
    EFADV_QP_DRIVER_TYPE_SRD, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV, IBV_ACCESS_LOCAL_WRITE,
    IBV_QP_QKEY, IBV_QP_RNR_RETRY, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET,
    IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_DRIVER, IBV_SEND_INLINE, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    Status, Zeros as _, efadv_qp_init_attr, ibv_ah, ibv_context_ops, ibv_cq_ex, ibv_data_buf,
    ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_sge,
};

/// Bits of `ibv_qp_init_attr_ex.send_ops_flags`, which verbs has no type for.
mod with {
    pub(super) const RDMA_WRITE: u64 = 1 << 0;
    pub(super) const RDMA_WRITE_IMM: u64 = 1 << 1;
    pub(super) const SEND: u64 = 1 << 2;
    pub(super) const SEND_IMM: u64 = 1 << 3;
    pub(super) const RDMA_READ: u64 = 1 << 4;
}

/// The first field is what callers see of it.
#[repr(C)]
pub(crate) struct Qp {
    ex: ibv_qp_ex,
    nic: &'static Nic,
    domain: Domain,
    id: QpId,
    wire: &'static Wire,
    completions: Arc<Mapping<CompletionQueue>>,
    receives: Mapping<ReceiveQueue>,
    outstanding: Arc<Outstanding>,
    max_sends: u32,
    max_receives: u32,
    tries: u8,
    /// Work requests since the last doorbell, and the error number of the first refused one.
    session: Vec<Operation>,
    refused: i32,
    sending: Exclusive,
    receiving: Exclusive,
}

impl Qp {
    pub(crate) fn ops() -> ibv_context_ops {
        ibv_context_ops {
            post_recv: Some(post_recv),
            post_send: Some(post_send),
            ..ibv_context_ops::zeros()
        }
    }

    /// Makes one, of SRD.
    ///
    /// # Safety
    /// The NIC stays open, and the completion queues there are, for as long as the queue pair.
    pub(crate) unsafe fn create(
        nic: &'static Nic,
        attr: &ibv_qp_init_attr_ex,
        efa: &efadv_qp_init_attr,
    ) -> Result<*mut ibv_qp, i32> {
        let persona = nic.config.persona;
        let unsolicited = u32::from(efa.flags) & EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV != 0;
        let srd = attr.qp_type == IBV_QPT_DRIVER && efa.driver_qp_type == EFADV_QP_DRIVER_TYPE_SRD;
        let operations = attr.send_ops_flags;
        let writes = operations & (with::RDMA_WRITE | with::RDMA_WRITE_IMM) != 0;
        let reads = operations & with::RDMA_READ != 0;
        if !srd
            || unsolicited && !persona.can(EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV)
            || writes && !persona.can(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE)
            || reads && !persona.can(EFADV_DEVICE_ATTR_CAPS_RDMA_READ)
        {
            return Err(libc::EOPNOTSUPP);
        }
        if nic.config.faults.refuses_pair(nic.number) {
            return Err(libc::ENOMEM);
        }
        let cap = attr.cap;
        if cap.max_send_wr > persona.max_sq_wr
            || cap.max_recv_wr > persona.max_rq_wr
            || cap.max_send_sge > 2
            || cap.max_recv_sge as usize > MAX_RECEIVE_BUFFERS
            || cap.max_inline_data > u32::from(persona.inline_bytes)
            || attr.pd.is_null()
            || attr.send_cq.is_null()
            || attr.recv_cq.is_null()
        {
            return Err(libc::EINVAL);
        }
        // SAFETY: the queue pair's domain, as the caller promises.
        let domain = domain_of(unsafe { &*attr.pd });
        let id = nic.state.add_qp(domain).ok_or(libc::ENOMEM)?;
        let (max_sends, max_receives) =
            (cap.max_send_wr.next_power_of_two(), cap.max_recv_wr.max(1).next_power_of_two());
        let path = nic.config.dir.join(id.file(nic.gid));
        let receives: std::io::Result<Mapping<ReceiveQueue>> =
            Mapping::create(&path, Mapping::<ReceiveQueue>::bytes(max_receives));
        let receives = receives.map_err(|error| {
            nic.state.remove_qp(id);
            error.raw_os_error().unwrap_or(libc::EIO)
        })?;
        let outstanding = Arc::new(Outstanding::default());
        // SAFETY: the queues are there, as the caller promises.
        let (completions, into) = unsafe {
            let (sends, _) = Cq::attach(attr.send_cq.cast(), id, &outstanding);
            (sends, Cq::attach(attr.recv_cq.cast(), id, &outstanding).1)
        };
        receives.process.store(process::id(), Ordering::Relaxed);
        receives.completions.store(into, Ordering::Relaxed);
        receives.unsolicited.store(u32::from(unsolicited), Ordering::Relaxed);

        let allowed = |bit: u64| operations & bit != 0;
        let mut ex = ibv_qp_ex {
            wr_send: allowed(with::SEND).then_some(wr_send as _),
            wr_send_imm: allowed(with::SEND_IMM).then_some(wr_send_imm as _),
            wr_rdma_write: allowed(with::RDMA_WRITE).then_some(wr_rdma_write as _),
            wr_rdma_write_imm: allowed(with::RDMA_WRITE_IMM).then_some(wr_rdma_write_imm as _),
            wr_rdma_read: reads.then_some(wr_rdma_read as _),
            wr_set_ud_addr: Some(wr_set_ud_addr),
            wr_set_inline_data: Some(wr_set_inline_data),
            wr_set_inline_data_list: Some(wr_set_inline_data_list),
            wr_set_sge: Some(wr_set_sge),
            wr_set_sge_list: Some(wr_set_sge_list),
            wr_start: Some(wr_start),
            wr_complete: Some(wr_complete),
            wr_abort: Some(wr_abort),
            ..ibv_qp_ex::zeros()
        };
        let base = &mut ex.qp_base;
        base.context = std::ptr::from_ref(nic) as *mut _;
        base.qp_context = attr.qp_context;
        base.pd = attr.pd;
        (base.send_cq, base.recv_cq) = (attr.send_cq, attr.recv_cq);
        (base.handle, base.qp_num) = (id.number, id.number);
        base.qp_type = attr.qp_type;
        base.state = IBV_QPS_RESET;
        let qp = Self {
            ex,
            nic,
            domain,
            id,
            wire: Wire::get(nic.config),
            completions,
            receives,
            outstanding,
            max_sends,
            max_receives,
            // The device tries for ever unless it is told otherwise.
            tries: 7,
            session: Vec::new(),
            refused: 0,
            sending: Exclusive::default(),
            receiving: Exclusive::default(),
        };
        Ok(Box::into_raw(Box::new(qp)).cast())
    }

    /// The queue pair behind what callers hold.
    ///
    /// # Safety
    /// It is from [`Self::create`], not destroyed, and nobody else has it while the reference
    /// lives.
    unsafe fn of<'a>(qp: *mut ibv_qp_ex) -> &'a mut Self {
        // SAFETY: as above; `ex` is the first field, and the queue pair the first in that.
        unsafe { &mut *qp.cast() }
    }

    /// # Safety
    /// As for [`Self::of`]; it is not used again.
    pub(crate) unsafe fn destroy(qp: *mut ibv_qp) {
        // SAFETY: as above; it came from a box, and its completion queues are still there.
        unsafe {
            let own = Box::from_raw(qp.cast::<Self>());
            own.nic.state.remove_qp(own.id);
            own.wire.flush(own.nic.gid, own.id);
            let base = &own.ex.qp_base;
            for queue in [base.send_cq, base.recv_cq] {
                Cq::detach(queue.cast::<ibv_cq_ex>(), own.id);
            }
        }
    }

    /// Moves it from one state to the next.
    ///
    /// # Safety
    /// As for [`Self::of`].
    pub(crate) unsafe fn modify(qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: u32) -> i32 {
        // SAFETY: as above.
        let own = unsafe { Self::of(qp.cast()) };
        if mask & IBV_QP_RNR_RETRY != 0 {
            if !own.nic.config.persona.can(EFADV_DEVICE_ATTR_CAPS_RNR_RETRY) {
                return libc::EOPNOTSUPP;
            }
            own.tries = attr.rnr_retry;
        }
        if mask & IBV_QP_QKEY != 0 {
            own.nic.state.set_qkey(own.id, attr.qkey);
        }
        if mask & IBV_QP_STATE == 0 {
            return 0;
        }
        let from = own.ex.qp_base.state;
        match (from, attr.qp_state) {
            (IBV_QPS_RESET, IBV_QPS_INIT) | (IBV_QPS_RTR, IBV_QPS_RTS) | (_, IBV_QPS_ERR) => {}
            (IBV_QPS_INIT, IBV_QPS_RTR) => own.nic.state.set_ready(own.id),
            _ => return libc::EINVAL,
        }
        own.ex.qp_base.state = attr.qp_state;
        0
    }

    fn begin(&mut self, kind: Kind, key: u32, address: u64, immediate: Option<u32>) {
        if self.refused != 0 {
            return;
        }
        if self.ex.qp_base.state != IBV_QPS_RTS {
            self.refused = libc::EINVAL;
            return;
        }
        let taken = self.outstanding.sends.load(Ordering::Relaxed) + self.session.len() as u32;
        if taken >= self.max_sends || self.nic.config.faults.is_busy() {
            self.refused = libc::ENOMEM;
            return;
        }
        self.session.push(Operation {
            kind,
            id: self.ex.wr_id,
            nic: Arc::clone(&self.nic.state),
            gid: self.nic.gid,
            qp: self.id,
            completions: Arc::clone(&self.completions),
            target: Gid::default(),
            target_qp: 0,
            target_qkey: 0,
            key,
            address,
            immediate,
            data: Data::Buffers(Vec::new()),
            of_device: false,
            bytes: 0,
            tries: self.tries,
            status: Status::Ok,
        });
    }

    /// Returns the work request that is being built, unless one of the session was refused.
    fn last(&mut self) -> Option<&mut Operation> {
        if self.refused == 0 { self.session.last_mut() } else { None }
    }

    fn set_buffers(&mut self, parts: &[ibv_sge]) {
        let (nic, domain) = (self.nic, self.domain);
        if parts.len() > 2 {
            self.refused = libc::EINVAL;
            return;
        }
        let Some(operation) = self.last() else { return };
        let right = if operation.kind == Kind::Read { IBV_ACCESS_LOCAL_WRITE } else { 0 };
        let mut buffers = Vec::with_capacity(parts.len());
        for part in parts {
            match nic.buffer(domain, part.lkey, part.addr, u64::from(part.length), right) {
                Some((at, of_device)) => {
                    buffers.push((at, u64::from(part.length)));
                    operation.of_device |= of_device;
                }
                None => operation.status = Status::LocalKey,
            }
        }
        operation.bytes = parts.iter().map(|part| u64::from(part.length)).sum();
        operation.data = Data::Buffers(buffers);
        let persona = nic.config.persona;
        let longest = match operation.kind {
            Kind::Send => persona.mtu,
            Kind::Write | Kind::Read => persona.max_rdma,
        };
        if operation.bytes > u64::from(longest) {
            operation.status = Status::LocalLength;
        }
    }

    fn set_inline(&mut self, parts: &[ibv_data_buf]) {
        let most = usize::from(self.nic.config.persona.inline_bytes);
        let bytes: usize = parts.iter().map(|part| part.length).sum();
        let Some(operation) = self.last() else { return };
        // The device has no RDMA of inline data.
        if bytes > most || operation.kind != Kind::Send {
            self.refused = libc::EINVAL;
            return;
        }
        let mut copy = Vec::with_capacity(bytes);
        for part in parts {
            // SAFETY: the caller's buffer, which it keeps until the post returns.
            copy.extend_from_slice(unsafe { list_at(part.addr.cast(), part.length) });
        }
        operation.bytes = bytes as u64;
        operation.data = Data::Inline(copy);
    }

    fn complete(&mut self) -> i32 {
        let code = std::mem::take(&mut self.refused);
        if code != 0 {
            self.session.clear();
            return code;
        }
        let count = self.session.len() as u32;
        self.outstanding.sends.fetch_add(count, Ordering::Relaxed);
        for _ in 0..count {
            if self.nic.config.faults.kills(self.nic.number) {
                self.nic.state.die();
            }
        }
        self.wire.post(self.session.drain(..));
        0
    }

    fn set_target(&mut self, ah: &Ah, number: u32, qkey: u32) {
        if let Some(operation) = self.last() {
            operation.target = ah.gid;
            operation.target_qp = number;
            operation.target_qkey = qkey;
        }
    }

    /// A message as `ibv_post_send` has it, with a doorbell of its own.
    ///
    /// # Safety
    /// The request, its list and its address handle are what the manual asks for.
    unsafe fn send(&mut self, request: &ibv_send_wr) -> i32 {
        // SAFETY: as above; the immediate data is there with the operations that have some, and the
        // address always.
        let (immediate, to, parts) = unsafe {
            let list = list_at(request.sg_list, request.num_sge as usize);
            (request.__bindgen_anon_1.imm_data, request.wr.ud, list)
        };
        self.ex.wr_id = request.wr_id;
        match request.opcode {
            IBV_WR_SEND => self.begin(Kind::Send, 0, 0, None),
            IBV_WR_SEND_WITH_IMM => self.begin(Kind::Send, 0, 0, Some(immediate)),
            _ => self.refused = libc::EINVAL,
        }
        if request.send_flags & IBV_SEND_INLINE != 0 {
            let buffer = |part: &ibv_sge| ibv_data_buf {
                addr: part.addr as *mut _,
                length: part.length as usize,
            };
            self.set_inline(&parts.iter().map(buffer).collect::<Vec<_>>());
        } else {
            self.set_buffers(parts);
        }
        // SAFETY: as above.
        self.set_target(unsafe { Ah::of(to.ah) }, to.remote_qpn, to.remote_qkey);
        self.complete()
    }

    fn receive(&mut self, request: &ibv_recv_wr) -> i32 {
        let count = request.num_sge as usize;
        if self.ex.qp_base.state == IBV_QPS_RESET || count > MAX_RECEIVE_BUFFERS {
            return libc::EINVAL;
        }
        if self.outstanding.receives.load(Ordering::Relaxed) >= self.max_receives {
            return libc::ENOMEM;
        }
        let mut receive = Receive { id: request.wr_id, ..Receive::default() };
        // SAFETY: the caller's list, of that length.
        let parts = unsafe { list_at(request.sg_list, count) };
        for (buffer, part) in receive.buffers.iter_mut().zip(parts) {
            let length = u64::from(part.length);
            match self.nic.buffer(self.domain, part.lkey, part.addr, length, IBV_ACCESS_LOCAL_WRITE)
            {
                // What is received there would be seen at once.
                Some((_, true)) => {
                    eprintln!("efa-lab: a receive in memory of a device");
                    process::abort()
                }
                Some((at, false)) => *buffer = (at, length),
                None => {
                    eprintln!(
                        "efa-lab: a receive of {length} bytes at {:#x} that key {:#x} does not cover",
                        part.addr, part.lkey
                    );
                    process::abort()
                }
            }
        }
        self.outstanding.receives.fetch_add(1, Ordering::Relaxed);
        self.receives.push(&receive);
        0
    }
}

/// # Safety
/// There are so many items, or none.
unsafe fn list_at<'a, T>(at: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { slice::from_raw_parts(at, count) }
}

// SAFETY of all below: callers give what `Qp::create` made, and enter one at a time, which is
// checked from the start of a batch of work requests to its end; lists have the length that is
// given with them.

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: see above.
    let own = unsafe { Qp::of(qp) };
    own.sending.enter("a send queue", "ibv_wr_start");
    own.session.clear();
    own.refused = 0;
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> i32 {
    // SAFETY: see above.
    let own = unsafe { Qp::of(qp) };
    let code = own.complete();
    own.sending.leave();
    code
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: see above.
    let own = unsafe { Qp::of(qp) };
    own.session.clear();
    own.sending.leave();
}

/// Functions that begin a work request.
macro_rules! begins {
    ($($name:ident($($argument:ident: $type:ty),*) = ($($of:expr),*);)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: see above.
            unsafe { Qp::of(qp) }.begin($($of),*);
        }
    )*};
}

begins! {
    wr_send() = (Kind::Send, 0, 0, None);
    wr_send_imm(immediate: u32) = (Kind::Send, 0, 0, Some(immediate));
    wr_rdma_write(key: u32, address: u64) = (Kind::Write, key, address, None);
    wr_rdma_write_imm(key: u32, address: u64, immediate: u32) =
        (Kind::Write, key, address, Some(immediate));
    wr_rdma_read(key: u32, address: u64) = (Kind::Read, key, address, None);
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, qkey: u32) {
    // SAFETY: see above; the handle is there until the work request is posted.
    let (own, ah) = unsafe { (Qp::of(qp), Ah::of(ah)) };
    own.set_target(ah, number, qkey);
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: see above.
    unsafe { Qp::of(qp) }.set_buffers(&[ibv_sge { addr, length, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: see above.
    unsafe { Qp::of(qp).set_buffers(list_at(list, count)) };
}

unsafe extern "C" fn wr_set_inline_data(
    qp: *mut ibv_qp_ex,
    addr: *mut std::ffi::c_void,
    length: usize,
) {
    // SAFETY: see above.
    unsafe { Qp::of(qp) }.set_inline(&[ibv_data_buf { addr, length }]);
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: see above.
    unsafe { Qp::of(qp).set_inline(list_at(list, count)) };
}

/// `ibv_post_send`.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> i32 {
    // SAFETY: see above.
    let own = unsafe { Qp::of(qp.cast()) };
    own.sending.enter("a send queue", "ibv_post_send");
    // SAFETY: as above; the list ends in null.
    let code = unsafe { post_all(request, bad, |of| of.next, |of| own.send(of)) };
    own.sending.leave();
    code
}

/// `ibv_post_recv`.
unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> i32 {
    // SAFETY: see above.
    let own = unsafe { Qp::of(qp.cast()) };
    own.receiving.enter("a receive queue", "ibv_post_recv");
    // SAFETY: as above; the list ends in null.
    let code = unsafe { post_all(request, bad, |of| of.next, |of| own.receive(of)) };
    own.receiving.leave();
    code
}

/// Posts the requests of a list, up to one that is refused. Returns the error number.
///
/// # Safety
/// The list ends in null, and `bad` is the caller's place for the request that was refused.
unsafe fn post_all<R>(
    mut request: *mut R,
    bad: *mut *mut R,
    next: impl Fn(&R) -> *mut R,
    mut post: impl FnMut(&R) -> i32,
) -> i32 {
    // SAFETY: as above.
    while let Some(this) = unsafe { request.as_ref() } {
        let code = post(this);
        if code != 0 {
            // SAFETY: as above.
            unsafe { *bad = request };
            return code;
        }
        request = next(this);
    }
    0
}
