//! Asks a provider for an endpoint as the plugin does.

use std::ffi::CString;
use std::ptr::{self, NonNull};

use libfabric_sys as fi;
use libfabric_sys::Library;

use super::object::{RawError, check, refused};
use super::{Opening, Promise};

/// Owner of an `fi_info`.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<fi::fi_info>,
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: from the same library, freed once.
        unsafe { self.library.freeinfo(self.raw.as_ptr()) };
    }
}

/// The layer over whose progress the plugin does not ask for a thread.
const RXM: &str = ";ofi_rxm";

/// The first answer of the provider on the plugin's ladder.
pub(super) fn choose(library: &'static Library, opening: &Opening<'_>) -> Result<Info, RawError> {
    let ladder = [
        (fi::FI_PROGRESS_AUTO, fi::FI_THREAD_COMPLETION),
        (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_COMPLETION),
        (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_DOMAIN),
        (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_SAFE),
    ];
    let mut last = refused("fi_getinfo", "nothing was asked");
    // As in the plugin: its decision 27.
    let skipped = usize::from(opening.provider.ends_with(RXM));
    for (progress, threading) in ladder.into_iter().skip(skipped) {
        match query(library, opening, progress, threading) {
            Ok(info) => return Ok(info),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn query(
    library: &'static Library,
    opening: &Opening<'_>,
    progress: fi::fi_progress,
    threading: fi::fi_threading,
) -> Result<Info, RawError> {
    const CALL: &str = "fi_getinfo";
    let text = |text: &str| CString::new(text).map_err(|e| refused(CALL, e.to_string()));
    let name = text(opening.provider)?;
    let source = opening.source.map(text).transpose()?;
    let no_memory = || refused("fi_dupinfo", "out of memory");
    let hints = Info { library, raw: NonNull::new(library.allocinfo()).ok_or_else(no_memory)? };
    // SAFETY: an info from fi_dupinfo(NULL) has all its attributes. The name is from malloc, as
    // fi_freeinfo wants it. The list is freed once, after its entries were copied.
    unsafe {
        let info = hints.raw.as_ptr();
        (*(*info).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        (*info).caps = fi::FI_MSG | fi::FI_RMA;
        (*info).mode = fi::FI_CONTEXT | fi::FI_CONTEXT2;
        (*(*info).ep_attr).type_ = fi::FI_EP_RDM;
        if opening.promise == Promise::Delivered {
            (*(*info).tx_attr).op_flags = fi::FI_DELIVERY_COMPLETE;
        }
        let domain = (*info).domain_attr;
        (*domain).mr_mode = fi::FI_MR_LOCAL
            | fi::FI_MR_VIRT_ADDR
            | fi::FI_MR_ALLOCATED
            | fi::FI_MR_PROV_KEY
            | fi::FI_MR_ENDPOINT;
        (*domain).threading = threading;
        (*domain).control_progress = progress;
        (*domain).data_progress = progress;

        let (node, flags) = match &source {
            Some(source) => (source.as_ptr(), fi::FI_SOURCE | fi::FI_NUMERICHOST),
            None => (ptr::null(), 0),
        };
        let mut list: *mut fi::fi_info = ptr::null_mut();
        let code = library.getinfo(node, ptr::null(), flags, info, &mut list);
        check(library, CALL, code.into())?;
        let mut found = None;
        let mut entry = list;
        while !entry.is_null() && found.is_none() {
            let fabric = (*entry).fabric_attr;
            if !fabric.is_null()
                && !(*fabric).prov_name.is_null()
                && std::ffi::CStr::from_ptr((*fabric).prov_name) == name.as_c_str()
                && !(*entry).domain_attr.is_null()
                && !(*entry).tx_attr.is_null()
            {
                found = NonNull::new(library.dupinfo(entry)).map(|raw| Info { library, raw });
            }
            entry = (*entry).next;
        }
        library.freeinfo(list);
        found.ok_or_else(|| refused(CALL, format!("no answer from provider {}", opening.provider)))
    }
}
