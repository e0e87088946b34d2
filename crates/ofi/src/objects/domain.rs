//! An open domain: one device, used by one lane.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use libfabric_sys::{
    FI_MR_ENDPOINT, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_THREAD_DOMAIN, Library,
    fi_domain, fi_open_ops, fid, fid_domain,
};
use log::info;

use crate::error::{check, refused};
use crate::objects::fabric::Fabric;
use crate::objects::info::Info;
use crate::objects::object::{Gate, Object};
use crate::objects::provider_log::capture_log;
use crate::provider::Profile;
use engine::port::{Addressing, PortError};

/// Owner of a `fid_domain`, called through its gate, which serialises if the threading level
/// demands.
#[derive(Debug)]
pub(crate) struct Domain {
    object: Object<fid_domain>,
    pub(crate) gate: Gate,
    /// Next key for a region, if keys are counted.
    next_key: AtomicU64,
    pub(crate) profile: &'static Profile,
    /// Libfabric's log line by which it maps device memory wrongly, if it was logged.
    pub(crate) maps_wrongly: Option<String>,
    pub(crate) info: Arc<Info>,
    pub(crate) fabric: Arc<Fabric>,
}

impl Domain {
    pub(crate) fn open(
        fabric: Arc<Fabric>,
        info: &Arc<Info>,
        profile: &'static Profile,
    ) -> Result<Self, PortError> {
        let mut maps_wrongly = None;
        let open = |domain| {
            // SAFETY: the fabric is open, and the info comes from the same library.
            let open =
                || unsafe { fi_domain(fabric.as_ptr(), info.as_ptr(), domain, ptr::null_mut()) };
            match *profile.maps_wrongly {
                Some(said) if info.reaches_devices() => {
                    let (code, told) = call_watching_log(info.library, open, said.words);
                    maps_wrongly = told;
                    code
                }
                _ => open(),
            }
        };
        // SAFETY: the domain holds its fabric, and its children hold it.
        let object =
            unsafe { Object::open(("domain", "fi_domain"), info.library, &Gate(None), open) }?;
        let gated = info.domain_attr().threading == FI_THREAD_DOMAIN;
        let domain = Self {
            object,
            gate: Gate(gated.then(|| Arc::new(Mutex::new(())))),
            next_key: AtomicU64::new(1),
            profile,
            maps_wrongly,
            info: Arc::clone(info),
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
        // SAFETY: the domain is open. The table of this name lives as long as the library.
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
        self.object.as_ptr()
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.info.library
    }

    /// Returns a key for a region, 0 if the provider chooses it. No key is used twice, since a peer
    /// may still hold that of a closed region. Random keys cannot be guessed by strangers who reach
    /// the rail's port.
    pub(crate) fn next_key(&self) -> Result<u64, PortError> {
        if self.has(FI_MR_PROV_KEY) {
            return Ok(0);
        }
        if !*self.profile.random_keys {
            return Ok(self.next_key.fetch_add(1, Ordering::Relaxed));
        }
        // A repeated or reserved value comes up once in 2^60 or so.
        getrandom::u64().map_err(|error| PortError {
            call: "drawing a key for memory",
            code: error.raw_os_error().unwrap_or_default(),
            text: error.to_string(),
        })
    }

    pub(crate) fn addressing(&self) -> Addressing {
        if self.has(FI_MR_VIRT_ADDR) { Addressing::Virtual } else { Addressing::Offset }
    }

    /// Returns true if local buffers must be registered.
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

fn call_watching_log(
    library: &'static Library,
    open: impl FnOnce() -> c_int,
    words: &str,
) -> (c_int, Option<String>) {
    let (code, said) = capture_log(library, open);
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

#[cfg(test)]
pub(crate) mod tests {
    use libfabric_sys::{FI_THREAD_SAFE, fi_info};

    use super::*;
    use crate::objects::fabric::Fabrics;
    use crate::objects::info::tests::edit;
    use crate::objects::provider_log::tests::say;
    use crate::options::Options;
    use crate::provider::{Provider, candidates};
    use crate::{Device, Discovery, MemoryKinds};

    /// A device of loopback with the profile of a provider, whose answer is changed so.
    pub(crate) fn some_device(provider: Provider, change: impl FnOnce(&mut fi_info)) -> Device {
        let tcp = Provider::TcpRxm;
        let options = Options { provider: tcp, ..crate::options::tests::options() };
        let found = Discovery::run(&options, true, MemoryKinds::Host).expect("loopback");
        let device = &found.devices()[0];
        let mut info = device.info.for_any_thread().expect("memory");
        edit(&mut info, change);
        Device { profile: candidates(provider)[0], info: Arc::new(info), ..device.clone() }
    }

    pub(crate) fn some_domain(
        provider: Provider,
        change: impl FnOnce(&mut fi_info),
    ) -> Arc<Domain> {
        let device = some_device(provider, change);
        let fabric = Fabrics::default().of(&device.info).expect("a fabric");
        Arc::new(Domain::open(fabric, &device.info, device.profile).expect("a domain"))
    }

    #[test]
    fn complaint_is_told_with_its_reason() {
        let library = Library::load(&crate::options::tests::options().library).unwrap();
        for (lines, told) in [
            (&["Failed twice", "Failed to start", "fine", "MR caching disabled"][..], true),
            (&["MR caching disabled", "Failed to start"], false),
        ] {
            let open = || {
                lines.iter().for_each(|line| say(line));
                -5
            };
            let said = if told { "Failed to start; " } else { "" };
            let expected = Some(format!("{said}MR caching disabled"));
            assert_eq!(call_watching_log(library, open, "caching disabled"), (-5, expected));
        }
        assert_eq!(call_watching_log(library, || 3, "caching disabled"), (3, None));
    }

    #[test]
    fn domain_requirements_follow_the_answer() {
        for (mr_mode, needs_desc, binds, addressing) in [
            (0, false, false, Addressing::Offset),
            (FI_MR_LOCAL, true, false, Addressing::Offset),
            (FI_MR_ENDPOINT, false, true, Addressing::Offset),
            (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY, false, false, Addressing::Virtual),
        ] {
            // SAFETY: the attributes of an answer exist.
            let domain = some_domain(Provider::Verbs, |raw| unsafe {
                (*raw.domain_attr).mr_mode = mr_mode;
            });
            let asks = (domain.needs_desc(), domain.binds_regions(), domain.addressing());
            assert_eq!(asks, (needs_desc, binds, addressing), "{mr_mode:#x}");
            let keys = [(); 3].map(|()| domain.next_key().expect("a number"));
            let is_provider_s = mr_mode & FI_MR_PROV_KEY != 0;
            assert_eq!(keys, if is_provider_s { [0; 3] } else { [1, 2, 3] }, "{mr_mode:#x}");
        }
        for (threading, gated) in [(FI_THREAD_DOMAIN, true), (FI_THREAD_SAFE, false)] {
            // SAFETY: as above.
            let domain = some_domain(Provider::Tcp, |raw| unsafe {
                (*raw.domain_attr).threading = threading;
            });
            assert_eq!(domain.gate.is_absent(), !gated);
            let drawn = [(); 64].map(|()| domain.next_key().expect("the system has some"));
            assert!((0..64).all(|at| !drawn[..at].contains(&drawn[at])), "{drawn:?}");
            assert!(drawn.iter().any(|key| *key >> 32 != 0), "of 64 bits: {drawn:?}");
        }
    }
}
