//! Objects of libfabric that answer as a test wants: some functions of their tables are the test's.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys::{FI_EBUSY, fi_cq_data_entry, fi_ops, fid};

/// Gives an object another table: that which it has, with a change. Gives the table that was.
///
/// # Safety
/// The place is one of an open object's tables, which begins with its size, and only this thread
/// has the object.
pub(crate) unsafe fn change<T>(place: *mut *mut T, with: impl FnOnce(&mut T)) -> *mut T {
    // SAFETY: by contract; a newer library's table is longer than ours, and is copied as a whole.
    // The copy lasts, and so may what still calls it.
    unsafe {
        let old = *place;
        let words = old.cast::<usize>().read().max(size_of::<T>()).div_ceil(size_of::<u64>());
        let new = Box::leak(vec![0_u64; words].into_boxed_slice()).as_mut_ptr();
        new.cast::<u8>().copy_from_nonoverlapping(old.cast(), old.cast::<usize>().read());
        with(&mut *new.cast::<T>());
        *place = new.cast();
        old
    }
}

/// Answers a poll of a completion queue with contexts, flags and immediate data. How many.
///
/// # Safety
/// There is room for as many.
pub(crate) unsafe fn complete(
    entries: *mut c_void,
    found: impl IntoIterator<Item = (usize, u64, u64)>,
) -> isize {
    let mut count = 0;
    for (context, flags, data) in found {
        let op_context = context as *mut c_void;
        let entry = fi_cq_data_entry { op_context, flags, len: 0, buf: ptr::null_mut(), data };
        // SAFETY: by contract.
        unsafe { entries.cast::<fi_cq_data_entry>().add(count).write(entry) };
        count += 1;
    }
    count as isize
}

/// Defines a `fi_write` or `fi_read` that passes to `$ask` its name, the buffer with its length and
/// descriptor, and peer, address, key and context.
macro_rules! transfer {
    ($name:ident, $buf:ty, $ask:expr) => {
        unsafe extern "C" fn $name(
            _: *mut libfabric_sys::fid_ep,
            buf: $buf,
            len: usize,
            desc: *mut c_void,
            peer: u64,
            remote: u64,
            key: u64,
            context: *mut c_void,
        ) -> isize {
            let memory = [buf as usize, len, desc as usize];
            $ask(stringify!($name), memory, [peer, remote, key, context as u64])
        }
    };
}

pub(crate) use transfer;

thread_local! {
    static WATCHED: RefCell<Vec<(usize, *mut fi_ops)>> = const { RefCell::new(Vec::new()) };
    static CLOSED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static CLINGS: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    if CLINGS.get() {
        return -FI_EBUSY;
    }
    let at = object as usize;
    let table = WATCHED.with_borrow(|all| all.iter().find(|(of, _)| *of == at).map(|(_, is)| *is));
    CLOSED.with_borrow_mut(|closed| closed.push(at));
    // SAFETY: the object is open, and the table the one that it had.
    unsafe {
        (*object).ops = table.expect("it is watched");
        (*(*object).ops).close.expect("a way to close it")(object)
    }
}

/// Has [`closed`] tell when an object is closed by this thread.
///
/// # Safety
/// It is open, and only this thread has it.
pub(crate) unsafe fn watch(object: *mut fid) -> usize {
    // SAFETY: by contract.
    let table = unsafe { change(&raw mut (*object).ops, |table| table.close = Some(close)) };
    WATCHED.with_borrow_mut(|all| all.push((object as usize, table)));
    object as usize
}

pub(crate) fn closed() -> Vec<usize> {
    CLOSED.take()
}

pub(crate) fn cling(whether: bool) {
    CLINGS.set(whether);
}
