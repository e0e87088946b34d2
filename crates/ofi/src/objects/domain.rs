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

    #[cold]
    #[inline(never)]
    pub(crate) fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        call()
    }

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
    profile: &'static Profile,
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
        profile: &'static Profile,
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
            profile,
            maps_wrongly,
            info,
            fabric,
        };
        if domain.info.reaches_devices() && *profile.heeds_descriptors {
            domain.have_descriptors_heeded();
        }
        Ok(domain)
    }

    fn have_descriptors_heeded(&self) {
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

    pub(crate) fn profile(&self) -> &'static Profile {
        self.profile
    }

    pub(crate) fn forbids_cuda(&self) -> bool {
        self.info.reaches_devices() && *self.profile.forbids_cuda
    }

    pub(crate) fn maps_wrongly(&self) -> Option<&str> {
        self.maps_wrongly.as_deref()
    }

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

    pub(crate) fn binds_regions(&self) -> bool {
        self.has(FI_MR_ENDPOINT)
    }

    fn has(&self, mr_mode: i32) -> bool {
        self.info.mr_mode() & mr_mode != 0
    }
}

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
pub(crate) mod tests {
    use std::cell::{Cell, RefCell};

    use libfabric_sys::{FI_HMEM, FI_THREAD_SAFE, fi_info, fi_ops, fid_fabric};

    use super::*;
    use crate::objects::fabric::Fabrics;
    use crate::objects::info::tests::edit;
    use crate::objects::{overheard, tables};
    use crate::options::Options;
    use crate::provider::{Provider, candidates};
    use crate::{Discovery, MemoryKinds};

    pub(crate) fn some_device(
        provider: Provider,
        devices: bool,
        change: impl FnOnce(&mut fi_info),
    ) -> crate::Device {
        let tcp = Provider::TcpRxm;
        let options = Options { provider: tcp, ..crate::options::tests::options() };
        let found = Discovery::run(&options, true, MemoryKinds::Host).expect("loopback");
        let device = &found.devices()[0];
        let mut info = device.info.for_any_thread().expect("memory");
        edit(&mut info, |raw| {
            raw.caps |= if devices { FI_HMEM } else { 0 };
            change(raw);
        });
        let profile = candidates(provider)[0];
        crate::Device { profile, info: Arc::new(info), ..device.clone() }
    }

    pub(crate) fn some_domain(
        provider: Provider,
        devices: bool,
        change: impl FnOnce(&mut fi_info),
    ) -> Arc<Domain> {
        let device = some_device(provider, devices, change);
        let fabric = Fabrics::default().of(&device.info).expect("a fabric");
        if devices {
            has_said(&fabric, &[]);
        }
        Arc::new(open(fabric, &device).expect("a domain"))
    }

    fn open(fabric: Arc<Fabric>, device: &crate::Device) -> Result<Domain, PortError> {
        Domain::open(fabric, Arc::clone(&device.info), Keys::new(true), device.profile)
    }

    type OpenDomain = unsafe extern "C" fn(
        *mut fid_fabric,
        *mut fi_info,
        *mut *mut fid_domain,
        *mut c_void,
    ) -> c_int;

    thread_local! {
        static OPEN: Cell<Option<OpenDomain>> = const { Cell::new(None) };
        static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        static HEEDED: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn open_ops(
        _: *mut fid,
        name: *const std::ffi::c_char,
        _: u64,
        table: *mut *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        static TABLE: [usize; 3] = [0; 3];
        // SAFETY: a name, and a place for the table.
        unsafe {
            assert_eq!(std::ffi::CStr::from_ptr(name), c"dom_ops_v3");
            let mut own = TABLE;
            own[2] = heed as *const () as usize;
            *table = Box::leak(Box::new(own)).as_mut_ptr().cast();
        }
        0
    }

    unsafe extern "C" fn heed(_: *mut fid, whether: bool) -> c_int {
        HEEDED.with_borrow_mut(|heeded| heeded.push(whether));
        0
    }

    unsafe extern "C" fn open_saying(
        fabric: *mut fid_fabric,
        info: *mut fi_info,
        domain: *mut *mut fid_domain,
        context: *mut c_void,
    ) -> c_int {
        LINES.with_borrow(|lines| lines.iter().for_each(|line| overheard::tests::say(line)));
        let own = OPEN.get().expect("the provider's");
        // SAFETY: the provider's own, with what it takes; the domain is new.
        unsafe {
            let code = without_devices(info, || own(fabric, info, domain, context));
            assert_eq!(code, 0);
            let ops = |table: &mut fi_ops| table.ops_open = Some(open_ops);
            tables::change(&raw mut (**domain).fid.ops, ops);
            code
        }
    }

    /// Has a provider open something as if it were not for memory of devices, which few offer.
    ///
    /// # Safety
    /// The answer is live, and only this thread has it.
    pub(crate) unsafe fn without_devices(
        info: *mut fi_info,
        call: impl FnOnce() -> c_int,
    ) -> c_int {
        // SAFETY: by contract.
        unsafe {
            let caps = (*info).caps;
            (*info).caps &= !FI_HMEM;
            let code = call();
            (*info).caps = caps;
            code
        }
    }

    /// Has libfabric say these lines when a domain is opened by this thread.
    pub(crate) fn has_said(fabric: &Fabric, lines: &[&str]) {
        LINES.set(lines.iter().map(|line| line.to_string()).collect());
        // SAFETY: open, and of this thread.
        unsafe {
            tables::change(&raw mut (*fabric.as_ptr()).ops, |table| {
                OPEN.set(table.domain);
                table.domain = Some(open_saying);
            });
        }
    }

    #[test]
    fn what_is_said_of_a_domain_that_maps_wrongly_is_kept() {
        let words = candidates(Provider::Cxi)[0].maps_wrongly.expect("cxi says so").words;
        let line = format!("it is so: {words}.");
        let (late, early) = ("Failed late", "Failed early");
        for (provider, devices, lines, told) in [
            (Provider::Cxi, true, vec![early, late, "else", &line, "Failed after"], Some(true)),
            (Provider::Cxi, true, vec!["no failure", &line], Some(false)),
            (Provider::Cxi, true, vec![early], None),
            (Provider::Cxi, false, vec![early, &line], None),
            (Provider::TcpRxm, true, vec![early, &line], None),
        ] {
            let device = some_device(provider, devices, |_| {});
            let fabric = Fabrics::default().of(&device.info).expect("a fabric");
            has_said(&fabric, &lines);
            let domain = open(fabric, &device).expect("a domain");
            let told = told.map(|failed| match failed {
                true => format!("{late}; {line}"),
                false => line.clone(),
            });
            assert_eq!(domain.maps_wrongly(), told.as_deref(), "{provider} {devices}");
            let is_cxi = provider == Provider::Cxi && devices;
            assert_eq!(HEEDED.take(), vec![true; usize::from(is_cxi)], "{provider} {devices}");
        }
    }

    #[test]
    fn what_a_domain_asks_of_its_users_is_in_the_answer() {
        let of = |mr_mode| {
            // SAFETY: the attributes of an answer exist.
            let set = |raw: &mut fi_info| unsafe { (*raw.domain_attr).mr_mode = mr_mode };
            some_domain(Provider::TcpRxm, false, set)
        };
        for (mr_mode, asks) in [
            (0, (false, false, Addressing::Offset, false)),
            (FI_MR_LOCAL, (true, false, Addressing::Offset, false)),
            (FI_MR_ENDPOINT, (false, true, Addressing::Offset, false)),
            (FI_MR_VIRT_ADDR, (false, false, Addressing::Virtual, false)),
            (FI_MR_PROV_KEY, (false, false, Addressing::Offset, true)),
        ] {
            let domain = of(mr_mode);
            let no_keys = (0..4).all(|_| domain.next_key() == Ok(0));
            let found = (domain.needs_desc(), domain.binds_regions(), domain.addressing(), no_keys);
            assert_eq!(found, asks, "{mr_mode:#x}");
        }
        for (threading, gated) in [(FI_THREAD_DOMAIN, true), (FI_THREAD_SAFE, false)] {
            // SAFETY: as above.
            let set = |raw: &mut fi_info| unsafe { (*raw.domain_attr).threading = threading };
            let domain = some_domain(Provider::TcpRxm, false, set);
            assert_eq!(domain.gate().is_absent(), !gated);
        }
        for (provider, devices, forbids) in [
            (Provider::TcpRxm, false, (false, false)),
            (Provider::TcpRxm, true, (true, false)),
            (Provider::Cxi, true, (false, false)),
            (Provider::Efa, true, (true, true)),
        ] {
            let domain = some_domain(provider, devices, |_| {});
            assert_eq!(
                (domain.forbids_cuda(), *domain.profile().forbids_sharing),
                forbids,
                "{provider}"
            );
        }
    }

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
