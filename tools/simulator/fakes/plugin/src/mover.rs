//! Moves bytes between processes.

use std::ffi::c_void;

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
