//! Tables of operations in place of an object's own, with the state that they work on.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::messages::Messages;
use crate::persona::broken;

/// A table, and what it stands for. The table is first, so the object's pointer to it leads here.
#[repr(C)]
pub(crate) struct Hook<T: 'static> {
    table: T,
    pub(crate) inner: &'static T,
    pub(crate) domain: &'static State,
}

impl<T: Copy> Hook<T> {
    /// Puts a table in place of an object's own: the same, with changes.
    ///
    /// # Safety
    /// The place has a table, as long as the type at least, which lives as long as the process.
    pub(crate) unsafe fn put(
        place: &mut *mut T,
        domain: &'static State,
        change: impl FnOnce(&mut T),
    ) {
        // SAFETY: by contract.
        let inner = unsafe { &**place };
        let mut hook = Box::new(Self { table: *inner, inner, domain });
        change(&mut hook.table);
        *place = (&raw mut Box::leak(hook).table).cast();
    }

    /// What stands behind a table.
    ///
    /// # Safety
    /// [`Hook::put`] has put it there.
    pub(crate) unsafe fn of(table: *mut T) -> &'static Self {
        // SAFETY: by contract it is the first field of a hook, which is never freed.
        unsafe { &*table.cast::<Self>() }
    }
}

/// A domain with its endpoint, as far as rules depend on it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) nic: String,
    /// Opened with a level of threading that leaves locks to the caller.
    pub(crate) unlocked: bool,
    pub(crate) devices: bool,
    pub(crate) chooses_keys: bool,
    pub(crate) caches: bool,
    pub(crate) enabled: AtomicBool,
    pub(crate) bound: AtomicUsize,
    pub(crate) remote: AtomicUsize,
    pub(crate) completions: AtomicUsize,
    /// Memory of devices has to be reached by copies that call no CUDA
    /// (`FI_OPT_CUDA_API_PERMITTED`).
    pub(crate) needs_copies: AtomicBool,
    /// Descriptors are heeded (`enable_hybrid_mr_desc`).
    pub(crate) heeds_descriptors: AtomicBool,
    pub(crate) said_asked: Once,
    pub(crate) messages: Messages,
    /// The thread that is in, or zero.
    inside: AtomicI32,
}

impl State {
    pub(crate) fn new(
        nic: String,
        unlocked: bool,
        devices: bool,
        chooses_keys: bool,
        caches: bool,
    ) -> &'static Self {
        Box::leak(Box::new(Self {
            nic,
            unlocked,
            devices,
            chooses_keys,
            caches,
            enabled: AtomicBool::new(false),
            bound: AtomicUsize::new(0),
            remote: AtomicUsize::new(0),
            completions: AtomicUsize::new(0),
            needs_copies: AtomicBool::new(false),
            heeds_descriptors: AtomicBool::new(false),
            said_asked: Once::new(),
            messages: Messages::default(),
            inside: AtomicI32::new(0),
        }))
    }

    /// Marks the endpoint as entered, by a call; or ends the process when another thread is in it.
    pub(crate) fn enter(&self, call: &str) -> Inside<'_> {
        if !self.unlocked {
            return Inside(None);
        }
        // SAFETY: it takes no argument.
        let me = unsafe { libc::gettid() };
        match self.inside.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Inside(Some(self)),
            // The library itself calls one operation from within another.
            Err(other) if other == me => Inside(None),
            Err(other) => broken(&format!(
                "thread {me} is in {call} of {} while thread {other} is in the endpoint, which has no lock",
                self.nic
            )),
        }
    }
}

/// A thread's stay in an endpoint.
pub(crate) struct Inside<'a>(Option<&'a State>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.inside.store(0, Ordering::Release);
        }
    }
}
