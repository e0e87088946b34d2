//! An open domain: one device, as used by one lane.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys::{
    FI_MR_ENDPOINT, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_THREAD_DOMAIN, Library,
    fi_domain, fi_open_ops, fid, fid_domain,
};
use log::info;

use crate::error::{check, refused};
use crate::objects::fabric::{Fabric, close, opened};
use crate::objects::info::Info;
use crate::objects::overheard::overheard;
use crate::provider::Profile;
use engine::port::{Addressing, PortError};

/// Serialises the calls on one domain where its provider asks for that.
///
/// Lanes never share a domain, so with `FI_THREAD_COMPLETION` and `FI_THREAD_SAFE` nothing needs
/// serialising: a lane is one thread at a time, and registration is safe beside it. With
/// `FI_THREAD_DOMAIN` every call on the domain counts, registration from other threads included.
/// Then, and only then, there is a mutex, which each call holds for its own duration. It cannot
/// deadlock: no call is made under it that takes another gate, and libfabric calls nothing back.
///
/// Without the mutex, entering costs one branch that always goes the same way.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Option<Arc<Mutex<()>>>);

impl Gate {
    /// Whether there is no mutex, so that nobody need enter.
    #[inline(always)]
    pub(crate) fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// A call within the gate, out of the way of those who need not enter.
    #[cold]
    #[inline(never)]
    pub(crate) fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        call()
    }

    /// Waits for other calls on the domain to end, where that is needed.
    #[inline]
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        // The mutex guards no data, so a panic elsewhere leaves nothing inconsistent.
        self.0.as_ref().map(|mutex| mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keys for regions where the provider does not choose them. Never used twice: a peer may hold the
/// key of a region that is gone.
#[derive(Debug)]
pub(crate) enum Keys {
    /// From one on.
    Counted(AtomicU64),
    /// Whoever reaches the rail's port, and does not know one, reaches no memory.
    Random,
}

impl Keys {
    /// Random ones, or those that are counted.
    pub(crate) fn new(random: bool) -> Self {
        if random { Self::Random } else { Self::Counted(AtomicU64::new(1)) }
    }

    fn next(&self) -> Result<u64, PortError> {
        match self {
            Self::Counted(next) => Ok(next.fetch_add(1, Ordering::Relaxed)),
            // Two alike, or one that means none, come up once in 2^60 or so.
            Self::Random => getrandom::u64().map_err(|error| PortError {
                call: "drawing a key for memory",
                code: error.raw_os_error().unwrap_or_default(),
                text: error.to_string(),
            }),
        }
    }
}

/// Owner of a `fid_domain`.
#[derive(Debug)]
pub(crate) struct Domain {
    raw: NonNull<fid_domain>,
    gate: Gate,
    keys: Keys,
    forbids_cuda: bool,
    forbids_sharing: bool,
    maps_wrongly: Option<String>,
    info: Arc<Info>,
    fabric: Arc<Fabric>,
}

// SAFETY: calls on the domain go through its gate, which gives each threading level what it needs.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn open(
        fabric: Arc<Fabric>,
        info: Arc<Info>,
        keys: Keys,
        profile: &Profile,
    ) -> Result<Self, PortError> {
        let mut raw = ptr::null_mut();
        let mut open = || {
            // SAFETY: the fabric is open, and the info comes from the same library.
            unsafe { fi_domain(fabric.as_ptr(), info.as_ptr(), &mut raw, ptr::null_mut()) }
        };
        let (code, maps_wrongly) = match *profile.maps_wrongly {
            Some(said) if info.reaches_devices() => heard(info.library(), open, said.words),
            _ => (open(), None),
        };
        check(info.library(), "fi_domain", code)?;
        let gated = info.threading() == FI_THREAD_DOMAIN;
        let domain = Self {
            raw: opened(raw, "fi_domain")?,
            gate: Gate(gated.then(|| Arc::new(Mutex::new(())))),
            keys,
            forbids_cuda: info.reaches_devices() && *profile.forbids_cuda,
            forbids_sharing: *profile.forbids_sharing,
            maps_wrongly,
            info,
            fabric,
        };
        if domain.info.reaches_devices() && *profile.heeds_descriptors {
            domain.have_descriptors_heeded();
        }
        Ok(domain)
    }

    /// Has cxi heed the descriptors of local memory (`enable_hybrid_mr_desc` of `fi_cxi_ext.h`),
    /// before an endpoint is made.
    fn have_descriptors_heeded(&self) {
        /// `struct fi_cxi_dom_ops`, of which later versions have more at the end.
        #[repr(C)]
        struct Operations {
            _counter: *const c_void,
            _topology: *const c_void,
            heed_descriptors: Option<unsafe extern "C" fn(*mut fid, bool) -> c_int>,
        }
        const CALL: &str = "fi_open_ops(dom_ops_v3)";
        let object = self.as_ptr().cast::<fid>();
        let mut table = ptr::null_mut::<c_void>();
        // SAFETY: the domain is open. For this name the place gets a table of this type, which
        // lives as long as the library.
        let outcome = unsafe {
            let code = fi_open_ops(object, c"dom_ops_v3".as_ptr(), 0, &mut table, ptr::null_mut());
            check(self.library(), CALL, code).and_then(|()| {
                let heed = table.cast::<Operations>().as_ref().and_then(|at| at.heed_descriptors);
                let heed =
                    heed.ok_or_else(|| refused(CALL, String::from("it has no such call")))?;
                check(self.library(), "enable_hybrid_mr_desc", heed(object, true))
            })
        };
        if let Err(error) = outcome {
            info!("CUDA is asked about the memory of each transfer: {error}");
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut fid_domain {
        self.raw.as_ptr()
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.info.library()
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether its endpoints are to make no copies by CUDA.
    pub(crate) fn forbids_cuda(&self) -> bool {
        self.forbids_cuda
    }

    /// Whether its endpoints are to share no memory with other processes.
    pub(crate) fn forbids_sharing(&self) -> bool {
        self.forbids_sharing
    }

    /// What the provider has said when it was opened, if it maps memory of devices wrongly.
    pub(crate) fn maps_wrongly(&self) -> Option<&str> {
        self.maps_wrongly.as_deref()
    }

    /// The key to ask for when registering.
    pub(crate) fn next_key(&self) -> Result<u64, PortError> {
        if self.has(FI_MR_PROV_KEY) { Ok(0) } else { self.keys.next() }
    }

    pub(crate) fn addressing(&self) -> Addressing {
        if self.has(FI_MR_VIRT_ADDR) { Addressing::Virtual } else { Addressing::Offset }
    }

    /// Whether local buffers must be registered.
    pub(crate) fn needs_desc(&self) -> bool {
        self.has(FI_MR_LOCAL)
    }

    /// Whether regions belong to an endpoint.
    pub(crate) fn binds_regions(&self) -> bool {
        self.has(FI_MR_ENDPOINT)
    }

    fn has(&self, mr_mode: i32) -> bool {
        self.info.mr_mode() & mr_mode != 0
    }
}

/// Opens a domain, and gives the line of libfabric's log that has these words, with the failure
/// before it.
fn heard(
    library: &'static Library,
    open: impl FnOnce() -> c_int,
    words: &str,
) -> (c_int, Option<String>) {
    let (code, said) = overheard(library, open);
    let said = said.unwrap_or_else(|error| {
        info!("whether memory of devices is mapped rightly is not known: {error}");
        Vec::new()
    });
    let at = said.iter().position(|line| line.contains(words));
    let failed = |line: &&String| line.starts_with("Failed ");
    let told = at.map(|at| {
        let before = said[..at].iter().rfind(failed);
        before.into_iter().chain([&said[at]]).map(String::as_str).collect::<Vec<_>>().join("; ")
    });
    (code, told)
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: open, and everything made from it is closed: each holds this domain in an Arc.
        unsafe { close(self.library(), "domain", self.raw.as_ptr().cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_or_drawn_and_none_is_used_twice() {
        let counted = Keys::new(false);
        let keys = [(); 3].map(|()| counted.next().expect("a number"));
        assert_eq!(keys, [1, 2, 3]);
        let drawn = [(); 64].map(|()| Keys::new(true).next().expect("the system has some"));
        assert!((0..64).all(|at| !drawn[..at].contains(&drawn[at])), "{drawn:?}");
        assert!(drawn.iter().any(|key| *key >> 32 != 0), "of 64 bits: {drawn:?}");
    }

    #[test]
    fn a_gate_keeps_others_out_while_a_call_lasts() {
        let (absent, gate) = (Gate(None), Gate(Some(Arc::default())));
        assert!(absent.is_absent() && absent.enter().is_none() && !gate.is_absent());
        let closed = || gate.0.as_ref().is_some_and(|mutex| mutex.try_lock().is_err());
        assert_eq!(gate.within(|| (closed(), 7)), (true, 7));
        assert_eq!((closed(), absent.within(|| 5)), (false, 5));
        let entered = gate.enter();
        assert!(entered.is_some() && closed());
    }
}
