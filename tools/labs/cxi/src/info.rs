//! What `fi_getinfo` answers: cxi's attributes over those of the real provider, and the way back.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libfabric_sys::{
    FI_ENODATA, FI_ENOMEM, FI_HMEM, FI_MR_ALLOCATED, FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_PROV_KEY,
    FI_NUMERICHOST, FI_ORDER_ATOMIC_RAR, FI_ORDER_ATOMIC_WAW, FI_ORDER_RMA_RAR, FI_ORDER_RMA_WAW,
    FI_ORDER_SAS, FI_ORDER_WAW, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_SOURCE, FI_THREAD_SAFE,
    FI_THREAD_UNSPEC, fi_fabric_attr, fi_info,
};

use crate::persona::{Persona, number};

const CARRIER: &CStr = c"tcp;ofi_rxm";
const NAME: &CStr = c"cxi";

const ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_WAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_ATOMIC_WAW
    | FI_ORDER_ATOMIC_RAR;
/// `CXIP_INJECT_SIZE`.
pub(crate) const INJECT: usize = 192;
const QUEUE: usize = 1024;

static NAMES: Mutex<BTreeMap<CString, (CString, CString)>> = Mutex::new(BTreeMap::new());

/// The NICs that match the hints, as a list of the real library's.
///
/// # Safety
/// The hints are null or an info.
pub(crate) unsafe fn list(hints: *const fi_info) -> Result<*mut fi_info, c_int> {
    const NOTHING: c_int = FI_ENODATA as c_int;
    let persona = Persona::get();
    // SAFETY: by contract; an info of the library has all its parts.
    let (hints, domain) = unsafe {
        let hints = hints.as_ref().ok_or(NOTHING)?;
        if !named((*hints.fabric_attr).prov_name, NAME) {
            return Err(NOTHING);
        }
        (hints, &*hints.domain_attr)
    };
    let needed = FI_MR_ENDPOINT | FI_MR_ALLOCATED;
    let automatic = [domain.data_progress, domain.control_progress].contains(&FI_PROGRESS_AUTO);
    if automatic || domain.mr_mode != 0 && domain.mr_mode & needed != needed {
        return Err(NOTHING);
    }
    let mut first = ptr::null_mut();
    for nic in (0..persona.nics).rev() {
        // SAFETY: the hints are an info; what `real` gives is one, and belongs to this list from
        // then on.
        unsafe {
            let info = real(hints, nic)?;
            show(info, hints, nic);
            (*info).next = first;
            first = info;
        }
    }
    if first.is_null() { Err(NOTHING) } else { Ok(first) }
}

/// The real provider's answer at the address of a NIC.
///
/// # Safety
/// The hints are an info.
unsafe fn real(hints: &fi_info, nic: u8) -> Result<*mut fi_info, c_int> {
    let library = Persona::get().library;
    let address = CString::new(format!("127.0.0.{}", nic + 1)).unwrap_or_default();
    // SAFETY: copies of infos of this library, which are freed here; the answer is one.
    unsafe {
        let asked = (library.dupinfo)(hints);
        if asked.is_null() {
            return Err(FI_ENOMEM as c_int);
        }
        rename(&raw mut (*(*asked).fabric_attr).prov_name, Some(CARRIER));
        rename(&raw mut (*(*asked).fabric_attr).name, None);
        rename(&raw mut (*(*asked).domain_attr).name, None);
        (*asked).caps &= !FI_HMEM;
        (*(*asked).domain_attr).mr_mode &= !FI_MR_HMEM;
        let (mut found, flags) = (ptr::null_mut(), FI_SOURCE | FI_NUMERICHOST);
        let code = library.getinfo(address.as_ptr(), ptr::null(), flags, asked, &mut found);
        (library.freeinfo)(asked);
        if code != 0 {
            return Err(-code);
        }
        let mut entry = found;
        while !entry.is_null() && !named((*(*entry).fabric_attr).prov_name, CARRIER) {
            entry = (*entry).next;
        }
        let copy = if entry.is_null() { ptr::null_mut() } else { (library.dupinfo)(entry) };
        (library.freeinfo)(found);
        if copy.is_null() { Err(FI_ENODATA as c_int) } else { Ok(copy) }
    }
}

/// Turns the real provider's answer into cxi's.
///
/// # Safety
/// An info of the real library.
unsafe fn show(info: *mut fi_info, hints: &fi_info, nic: u8) {
    let name = CString::new(format!("cxi{nic}")).unwrap_or_default();
    // SAFETY: by contract; infos of the library have all their parts.
    unsafe {
        let (fabric, domain) = ((*info).fabric_attr, (*info).domain_attr);
        let real = (text((*fabric).name), text((*domain).name));
        NAMES.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), real);
        rename(&raw mut (*fabric).prov_name, Some(NAME));
        rename(&raw mut (*fabric).name, Some(NAME));
        rename(&raw mut (*domain).name, Some(&name));
        let asked = &*hints.domain_attr;
        (*domain).mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED | (asked.mr_mode & FI_MR_PROV_KEY);
        if hints.caps & FI_HMEM != 0 {
            // Without FI_MR_HMEM: it looks at addresses itself.
            (*info).caps |= FI_HMEM;
        }
        (*domain).data_progress = FI_PROGRESS_MANUAL;
        (*domain).control_progress = FI_PROGRESS_MANUAL;
        (*domain).threading =
            if asked.threading == FI_THREAD_UNSPEC { FI_THREAD_SAFE } else { asked.threading };
        let (send, receive) = ((*info).tx_attr, (*info).rx_attr);
        let order = |asked: u64| if asked == 0 { ORDER } else { asked };
        (*send).msg_order = order((*hints.tx_attr).msg_order);
        (*receive).msg_order = order((*hints.rx_attr).msg_order);
        (*send).inject_size = INJECT;
        let size = |asked: usize, default| if asked == 0 { number(default, QUEUE) } else { asked };
        (*send).size = size((*hints.tx_attr).size, "FI_CXI_DEFAULT_TX_SIZE");
        (*receive).size = size((*hints.rx_attr).size, "FI_CXI_DEFAULT_RX_SIZE");
        (*(*info).ep_attr).max_msg_size = u32::MAX as usize;
    }
}

/// The real provider's info behind one of cxi's, freed when this goes.
pub(crate) struct Real(pub(crate) *mut fi_info);

impl Real {
    /// None when there is no memory.
    ///
    /// # Safety
    /// An info that [`list`] has given, or a copy.
    pub(crate) unsafe fn of(info: *const fi_info) -> Option<Self> {
        // SAFETY: by contract.
        unsafe {
            let copy = (Persona::get().library.dupinfo)(info);
            if copy.is_null() {
                return None;
            }
            let (fabric, domain) = ((*copy).fabric_attr, (*copy).domain_attr);
            let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((real_fabric, real_domain)) = names.get(&text((*domain).name)) {
                rename(&raw mut (*fabric).name, Some(real_fabric));
                rename(&raw mut (*domain).name, Some(real_domain));
            }
            rename(&raw mut (*fabric).prov_name, Some(CARRIER));
            (*copy).caps &= !FI_HMEM;
            (*domain).mr_mode = 0;
            (*(*copy).tx_attr).msg_order = 0;
            (*(*copy).rx_attr).msg_order = 0;
            Some(Self(copy))
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // SAFETY: a copy of the library's, freed once.
        unsafe { (Persona::get().library.freeinfo)(self.0) };
    }
}

/// Runs something with the real provider's attributes in place of those of cxi's fabric.
///
/// # Safety
/// The attributes are those of an info that [`list`] has given, or of a copy.
pub(crate) unsafe fn with_real_fabric<R>(
    attr: *mut fi_fabric_attr,
    run: impl FnOnce(*mut fi_fabric_attr) -> R,
) -> R {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let fabric = names.values().next().map(|(fabric, _)| fabric.clone()).unwrap_or_default();
    drop(names);
    // SAFETY: by contract; the structure's end, which newer libraries have, is not looked at by
    // `fi_fabric`.
    let mut real = unsafe { attr.read() };
    real.prov_name = CARRIER.as_ptr().cast_mut();
    real.name = fabric.as_ptr().cast_mut();
    run(&mut real)
}

/// Whether a text is there, and is this one.
///
/// # Safety
/// Null, or a text.
unsafe fn named(found: *const c_char, name: &CStr) -> bool {
    // SAFETY: by contract.
    !found.is_null() && unsafe { CStr::from_ptr(found) } == name
}

/// # Safety
/// Null, or a text.
pub(crate) unsafe fn text(found: *const c_char) -> CString {
    // SAFETY: by contract.
    if found.is_null() { CString::default() } else { unsafe { CStr::from_ptr(found) }.to_owned() }
}

/// Puts another text in the place of one that the library frees.
///
/// # Safety
/// The place has null or a text from `malloc`.
unsafe fn rename(place: *mut *mut c_char, name: Option<&CStr>) {
    // SAFETY: by contract.
    unsafe {
        libc::free((*place).cast());
        *place = name.map_or(ptr::null_mut(), |name| libc::strdup(name.as_ptr()));
    }
}
