//! Moves bytes between processes.

use std::ffi::c_void;

/// An operation that has not been done yet.
pub(crate) struct Pending {
    pub(crate) pe: i32,
    pub(crate) action: Action,
    pub(crate) remote: u64,
    pub(crate) len: usize,
}

pub(crate) enum Action {
    /// From this address of this process.
    Write(usize),
    /// From these bytes.
    Value(u64),
    /// To this address of this process.
    Read(usize),
}

impl Pending {
    /// Does it. `pid` is the process of its PE.
    ///
    /// # Safety
    /// The address in the action is valid for the length.
    pub(crate) unsafe fn perform(&self, pid: i32) -> Result<(), String> {
        let (local, write) = match self.action {
            Action::Write(from) => (std::ptr::with_exposed_provenance_mut::<c_void>(from), true),
            Action::Value(ref value) => ((&raw const *value).cast_mut().cast(), true),
            Action::Read(to) => (std::ptr::with_exposed_provenance_mut(to), false),
        };
        // SAFETY: the caller vouches for the address; the value is in `self`, and only read.
        unsafe { copy(pid, local, self.remote, self.len, write) }
    }
}

/// Copies between this process and another, or this one.
///
/// # Safety
/// `local` is valid for `len` bytes.
pub(crate) unsafe fn copy(
    pid: i32,
    local: *mut c_void,
    remote: u64,
    len: usize,
    write: bool,
) -> Result<(), String> {
    let mut done = 0;
    while done < len {
        let at = |base: *mut c_void| libc::iovec {
            iov_base: base.wrapping_byte_add(done),
            iov_len: len - done,
        };
        let (here, there) = (at(local), at(std::ptr::without_provenance_mut(remote as usize)));
        // SAFETY: the caller vouches for the local side; the kernel checks the other.
        let n = unsafe {
            if write {
                libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0)
            } else {
                libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0)
            }
        };
        if n <= 0 {
            let error = std::io::Error::last_os_error();
            return Err(format!("copy of {len} bytes with process {pid}: {error}"));
        }
        done += n as usize;
    }
    Ok(())
}

/// Lets the other PEs, which are siblings and not parents, into this process where the system
/// restricts that.
pub(crate) fn allow_all_processes() {
    // SAFETY: PR_SET_PTRACER takes a number. Systems without the restriction refuse it.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}
