//! An entry of `fi_getinfo`: an endpoint that could be opened.

use std::ffi::{CStr, c_char, c_void};
use std::net::IpAddr;
use std::ptr::{self, NonNull};
use std::slice;

use libfabric_sys::{
    FI_ADDR_STR, FI_BUS_PCI, FI_HMEM, FI_ORDER_RMA_WAW, FI_ORDER_WAW, FI_THREAD_SAFE,
    FI_TYPE_MR_MODE, FI_TYPE_THREADING, Library, fi_domain_attr, fi_ep_attr, fi_fabric_attr,
    fi_info, fi_rx_attr, fi_tx_attr, fi_type, fid_nic,
};

use crate::error::check;
use crate::fork::socket_address;
use engine::port::PortError;

/// An owned copy of one `fi_info`, unchanged once it is shared.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) library: &'static Library,
    raw: NonNull<fi_info>,
}

// SAFETY: the structure and everything that it points to is heap memory that only this value owns,
// unchanged after construction (libfabric takes it as `*mut` but only reads it).
unsafe impl Send for Info {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Info {}

impl Info {
    /// Copies one entry of a list; an empty one for null. None without memory, or if the entry
    /// lacks an attribute structure, which no provider omits.
    ///
    /// # Safety
    /// `entry` is null or part of a live list from `library`.
    pub(crate) unsafe fn copy(library: &'static Library, entry: *const fi_info) -> Option<Self> {
        // SAFETY: the caller's promise. The accessors rely on the structures checked here.
        unsafe {
            let info = Self { library, raw: NonNull::new((library.dupinfo)(entry))? };
            let raw = info.raw.as_ref();
            let complete = !raw.tx_attr.is_null()
                && !raw.rx_attr.is_null()
                && !raw.ep_attr.is_null()
                && !raw.domain_attr.is_null()
                && !raw.fabric_attr.is_null();
            complete.then_some(info)
        }
    }

    /// # Safety
    /// `node` is a string or null, `hints` live or null.
    pub(crate) unsafe fn list(
        library: &'static Library,
        node: *const c_char,
        flags: u64,
        hints: *const fi_info,
    ) -> Result<Vec<Self>, PortError> {
        let mut list = ptr::null_mut();
        // SAFETY: the caller's promise; the list is freed below.
        let code = unsafe { library.getinfo(node, ptr::null(), flags, hints, &mut list) };
        check(library, "fi_getinfo", code)?;
        let (mut infos, mut entry) = (Vec::new(), list);
        while !entry.is_null() {
            // SAFETY: an entry of the live list.
            unsafe {
                infos.extend(Self::copy(library, entry));
                entry = (*entry).next;
            }
        }
        // SAFETY: from getinfo, freed once; the copies share nothing with it.
        unsafe { (library.freeinfo)(list) };
        Ok(infos)
    }

    /// Returns a copy for endpoints that any thread may use; None without memory.
    pub(crate) fn for_any_thread(&self) -> Option<Self> {
        // SAFETY: live, and of this library.
        let mut info = unsafe { Self::copy(self.library, self.raw.as_ptr()) }?;
        // SAFETY: owned, live and not shared yet; the attributes exist by construction.
        unsafe {
            (*info.raw.as_mut().domain_attr).threading = FI_THREAD_SAFE;
        }
        Some(info)
    }

    /// Names endpoints whose addresses are strings: libfabric would name them by the process'
    /// number alone, which is ambiguous if another PID namespace shares `/dev/shm`. False without
    /// memory.
    pub(crate) fn name_endpoints(&mut self, name: &CStr) -> bool {
        // SAFETY: a string. fi_freeinfo frees the copy, as the previous address is freed here.
        unsafe {
            let named = libc::strdup(name.as_ptr());
            if named.is_null() {
                return false;
            }
            let raw = self.raw.as_mut();
            libc::free(raw.src_addr);
            raw.src_addr = named.cast();
            raw.src_addrlen = name.count_bytes() + 1;
        }
        true
    }

    pub(crate) fn free_writes(&mut self) {
        const ORDERED: u64 = FI_ORDER_WAW | FI_ORDER_RMA_WAW;
        // SAFETY: owned, live and not shared yet; the attributes exist by construction.
        unsafe {
            let raw = self.raw.as_mut();
            (*raw.tx_attr).msg_order &= !ORDERED;
            (*raw.rx_attr).msg_order &= !ORDERED;
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut fi_info {
        self.raw.as_ptr()
    }

    pub(crate) fn raw(&self) -> &fi_info {
        // SAFETY: owned and live; the attributes exist by construction.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn domain_attr(&self) -> &fi_domain_attr {
        // SAFETY: not null by construction, and lives as long as the info. A newer library's
        // structure is longer, never shorter.
        unsafe { &*self.raw().domain_attr }
    }

    pub(crate) fn fabric(&self) -> &fi_fabric_attr {
        // SAFETY: as for the domain.
        unsafe { &*self.raw().fabric_attr }
    }

    pub(crate) fn ep_attr(&self) -> &fi_ep_attr {
        // SAFETY: as for the domain.
        unsafe { &*self.raw().ep_attr }
    }

    pub(crate) fn tx_attr(&self) -> &fi_tx_attr {
        // SAFETY: as for the domain.
        unsafe { &*self.raw().tx_attr }
    }

    pub(crate) fn rx_attr(&self) -> &fi_rx_attr {
        // SAFETY: as for the domain.
        unsafe { &*self.raw().rx_attr }
    }

    pub(crate) fn provider(&self) -> String {
        self.text(self.fabric().prov_name).unwrap_or_default()
    }

    pub(crate) fn fabric_name(&self) -> String {
        self.text(self.fabric().name).unwrap_or_default()
    }

    pub(crate) fn domain_name(&self) -> String {
        self.text(self.domain_attr().name).unwrap_or_default()
    }

    fn nic(&self) -> Option<&fid_nic> {
        // SAFETY: null or part of the info.
        unsafe { self.raw().nic.as_ref() }
    }

    pub(crate) fn nic_name(&self) -> Option<String> {
        // SAFETY: null or part of the info.
        self.text(unsafe { self.nic()?.device_attr.as_ref() }?.name)
    }

    pub(crate) fn pci_function(&self) -> Option<String> {
        // SAFETY: null or part of the info.
        let bus = unsafe { self.nic()?.bus_attr.as_ref() }?;
        // SAFETY: the union's one member is plain integers.
        let (kind, pci) = (bus.bus_type, unsafe { bus.attr.pci });
        (kind == FI_BUS_PCI).then(|| {
            format!(
                "{:04x}:{:02x}:{:02x}.{:x}",
                pci.domain_id, pci.bus_id, pci.device_id, pci.function_id
            )
        })
    }

    pub(crate) fn link_speed(&self) -> Option<u32> {
        // SAFETY: null or part of the info.
        let bits = unsafe { self.nic()?.link_attr.as_ref() }?.speed;
        u32::try_from(bits / 1_000_000).ok().filter(|speed| *speed > 0)
    }

    pub(crate) fn source_ip(&self) -> Option<IpAddr> {
        let raw = self.raw();
        // SAFETY: `src_addr` has `src_addrlen` bytes; sockaddr_ip reads within them.
        let ip = || unsafe { sockaddr_ip(raw.src_addr.cast(), raw.src_addrlen) };
        if raw.addr_format == FI_ADDR_STR { None } else { ip() }
    }

    /// Returns true if addresses are zero-terminated strings (`FI_ADDR_STR`).
    pub(crate) fn string_addresses(&self) -> bool {
        self.raw().addr_format == FI_ADDR_STR
    }

    pub(crate) fn mr_mode(&self) -> i32 {
        self.domain_attr().mr_mode
    }

    /// Returns true if transfers may reach device memory (`FI_HMEM`), which must be requested.
    pub(crate) fn reaches_devices(&self) -> bool {
        self.raw().caps & FI_HMEM != 0
    }

    pub(crate) fn threading_text(&self) -> String {
        self.words(self.domain_attr().threading, FI_TYPE_THREADING).replace("FI_THREAD_", "")
    }

    pub(crate) fn mr_mode_text(&self) -> String {
        let text = self.words(self.mr_mode(), FI_TYPE_MR_MODE);
        let text = text.trim().trim_matches(['[', ']']).replace("FI_MR_", "");
        if text.is_empty() { String::from("none") } else { text }
    }

    fn words<T>(&self, value: T, kind: fi_type) -> String {
        // SAFETY: the callers name the value's type.
        unsafe { self.library.tostr((&raw const value).cast(), kind) }
    }

    fn text(&self, text: *const c_char) -> Option<String> {
        if text.is_null() {
            return None;
        }
        // SAFETY: strings of an info end in a zero byte and live as long as the info.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: from dupinfo of the same library, freed once.
        unsafe { (self.library.freeinfo)(self.raw.as_ptr()) };
    }
}

/// Returns the IP address of a socket address, if it has one.
///
/// # Safety
/// `address` is valid for `len` bytes, or for the size of its family.
pub(crate) unsafe fn sockaddr_ip(address: *const c_void, len: usize) -> Option<IpAddr> {
    if address.is_null() || len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: within `len`; an unaligned read, since the source is a byte buffer.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    let size = match i32::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: within `len`.
    let bytes = (len >= size).then(|| unsafe { slice::from_raw_parts(address.cast(), size) })?;
    socket_address(bytes).map(|(ip, _)| ip)
}

#[cfg(test)]
pub(crate) mod tests;
