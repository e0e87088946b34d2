//! Keeps a thread on a core of its own.

use std::mem::MaybeUninit;

/// Binds the calling thread to the `index`-th of the cores this process may use. Does nothing when
/// there are fewer than `of`: then threads must share, and the scheduler knows better.
pub(crate) fn bind(index: usize, of: usize) -> std::io::Result<()> {
    let allowed = allowed()?;
    let Some(&core) = allowed.get(index).filter(|_| allowed.len() >= of) else { return Ok(()) };
    // SAFETY: all bits zero is an empty set; CPU_SET stays inside it, since the core came out of
    // such a set.
    let set = unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        libc::CPU_SET(core, &mut set);
        set
    };
    // SAFETY: the set has the size given; 0 is the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The cores this thread may use, in order.
fn allowed() -> std::io::Result<Vec<usize>> {
    // SAFETY: all bits zero is an empty set; the set has the size given.
    let set = unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        if libc::sched_getaffinity(0, size_of_val(&set), &mut set) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        set
    };
    let cores = 0..8 * size_of_val(&set);
    // SAFETY: the cores asked about are those that the set has bits for.
    Ok(cores.filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_to_one_of_its_cores_or_left_alone() {
        std::thread::spawn(|| {
            let before = allowed().unwrap();
            bind(0, before.len() + 1).unwrap();
            assert_eq!(allowed().unwrap(), before);
            let last = before.len() - 1;
            bind(last, before.len()).unwrap();
            assert_eq!(allowed().unwrap(), [before[last]]);
        })
        .join()
        .unwrap();
    }
}
