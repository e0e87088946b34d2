//! A group: the connected ranks of a communicator, which are the PEs of a job of its own.
//!
//! The group's lock guards the lane. NCCL's thread that starts and tests operations takes it,
//! threads that register memory, and the helper, these two only for short times.

mod helper;
pub(super) mod members;
mod shared;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::nccl::abi::HANDLE_BYTES;
use log::{info, warn};

use self::helper::Helper;
use self::members::Member;
pub(super) use self::shared::{BlockId, Shared, Signal, Span};
use super::error::NcclError;
use super::listener::Listener;
use super::memory::{self, Region};
use super::plugin::Plugin;
use crate::bootstrap::gathering::Gathering;
use crate::bootstrap::{Bootstrap, TcpBootstrap};
use crate::job::Job;
use crate::job::heartbeat::{Heartbeat, Stall};
use crate::logging;
use engine::error::EngineError;
use engine::port::Access;

/// Longest wait of a group's end for live ranks, which may need its progress until they end.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Group {
    pub(super) shared: Arc<Shared>,
    bootstrap: Mutex<TcpBootstrap>,
    /// Dropped before `shared`.
    helper: Option<Helper>,
    member: Member,
    /// Most rails of a rank.
    most_rails: usize,
}

impl Group {
    pub(super) fn connect(
        plugin: &Plugin,
        listener: &Listener,
        handles: &[&[u8; HANDLE_BYTES]],
        rank: c_int,
    ) -> Result<Self, NcclError> {
        let n = handles.len() as u32;
        let Some(me) = u32::try_from(rank).ok().filter(|me| *me < n) else {
            return Err(NcclError::Shape { rank, ranks: n as c_int });
        };
        let member = Member::of(handles);
        let mut bootstrap = listener.meet(handles, me)?;
        let job = Job::new(plugin.settings.clone())?;
        job.connect(&Gathering::new(&mut bootstrap), &plugin.chosen(listener.device)?)?;
        let connected = job.connected()?;
        // SAFETY: nobody else knows the job yet.
        unsafe {
            connected.with_proxy(|lane| {
                lane.order_signals();
                // A rank that has closed its group may end long before others.
                lane.allow_peer_exit();
            });
        }
        let pulse = Arc::clone(&connected.pulse);
        let (has_core, most_rails) = (connected.has_core, connected.most_rails);
        let shared = Arc::new(Shared::new(job, n, has_core));
        let helper = Helper::start(Arc::clone(&shared))?;
        // A weak reference: the helper is stored in the state that it uses.
        let of = Arc::downgrade(&shared);
        let failed = move |stall: &Stall| {
            of.upgrade().into_iter().for_each(|group| group.fail(&stall.to_string()));
        };
        let heartbeat = Heartbeat::of(pulse, &plugin.settings, failed);
        shared.lock().heartbeat = Some(heartbeat);
        info!(target: logging::INIT, "a group of {n} ranks is connected, of which this is rank {me}");
        let (bootstrap, helper) = (Mutex::new(bootstrap), Some(helper));
        Ok(Self { shared, bootstrap, helper, member, most_rails })
    }

    pub(super) fn register(
        &self,
        base: usize,
        len: usize,
        access: Access,
    ) -> Result<*mut c_void, NcclError> {
        let mut bootstrap = self.bootstrap.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = self.shared.register_here(base, len, access);
        // Without the lock and the job: other ranks may be late, and an abort closes the job.
        let agreed = memory::agree(&mut *bootstrap, self.most_rails, (base, len), &registered);
        drop(bootstrap);
        match (registered, agreed) {
            (Ok(_), Ok(region)) => Ok(self.shared.lock().regions.add(region)),
            (Ok(handle), Err(failed)) => {
                // Without a job there are no registrations either.
                let job = self.shared.job().ok();
                let connected = job.as_deref().and_then(Job::connection);
                let released = connected.map(|connected| connected.regions.release(&handle));
                if let Some(Err(stays)) = released {
                    warn!(target: logging::MEM, "{len} bytes at {base:#x} stay registered: {stays}");
                }
                Err(failed)
            }
            (Err(failed), _) => Err(failed),
        }
    }

    /// Ends the registration of this rank's memory. When NCCL aborts, it calls this with operations
    /// on the memory in flight, and frees the memory whatever the status: then the group ends at
    /// once, with its endpoints, so that no write comes late.
    ///
    /// # Errors
    /// There is no such memory; or it may still be written to, and must not be freed.
    pub(super) fn release(&self, handle: *mut c_void) -> Result<(), NcclError> {
        let shared = &self.shared;
        let region = shared.lock().regions.remove(handle)?;
        let Ok(job) = shared.job() else { return Ok(()) };
        let connected = job.connected()?;
        let Region { base, len, handle, .. } = *region;
        let release = || -> Result<(), EngineError> {
            shared.check_unused(base, len)?;
            connected.regions.release(&handle)
        };
        let released = match shared.failure() {
            None => connected.release_patiently(release, EngineError::is_in_use),
            Some(_) => release(),
        };
        match released {
            Err(in_use) if in_use.is_in_use() => {
                shared.fail(&in_use.to_string());
                drop(job);
                if shared.end() { Ok(()) } else { Err(in_use.into()) }
            }
            released => Ok(released?),
        }
    }

    fn end(mut self, waits: bool) {
        if waits && self.shared.failure().is_none() {
            let bootstrap = self.bootstrap.get_mut().unwrap_or_else(PoisonError::into_inner);
            bootstrap.set_patience(FAREWELL);
            if let Err(gone) = bootstrap.barrier() {
                info!(target: logging::INIT, "the end of a group without all ranks: {gone}");
            }
        }
        self.helper = None;
        let _is_closed = self.shared.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::settings;
    use crate::nccl::plugin::tests::plugin;

    #[test]
    fn failed_rank_leaves_nothing_registered() {
        let plugin = plugin(settings(1, &[]));
        let listeners = [0, 1].map(|_| Listener::new(0).unwrap());
        let handles = listeners.each_ref().map(|listener| listener.handle);
        let rank = |rank: usize| {
            let handles = handles.each_ref();
            let group = Group::connect(&plugin, &listeners[rank], &handles, rank as c_int).unwrap();
            let memory = [0_u64; 8];
            let registered = |len| {
                let all = Access::LocalAndRemote;
                let failed = group.register(memory.as_ptr() as usize, len, all).err();
                let job = group.shared.job().unwrap();
                (failed, job.connected().unwrap().regions.len())
            };
            // Rank 1 has no bytes to register.
            let (failed, after) = registered(64 * (1 - rank));
            assert!(matches!(failed, Some(NcclError::Peer { rank: 1, .. })) || rank == 1);
            let (none, more) = registered(64);
            assert!(none.is_none());
            assert_eq!(more, after + 1);
            assert_eq!(after, 0, "rank {rank}");
            members::close(group);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| rank(1));
            rank(0);
        });
    }
}
