//! An index that is used again while producers look addresses up.

use super::*;

/// Two regions that take turns at an index: far from each other, the second one long.
const SHORT: ShownRegion = ShownRegion { base: 1 << 44, len: 1 << 16, symmetric: true };
const LONG: ShownRegion = ShownRegion { base: 1 << 45, len: 1 << 36, symmetric: true };

#[cfg(target_arch = "x86_64")]
const OTHER: ShownRegion = ShownRegion { base: 1 << 46, len: 1 << 16, symmetric: false };

#[cfg(target_arch = "x86_64")]
const BETWEEN: u64 = SHORT.base + (1 << 30);

fn set(shared: &Shared, index: usize, region: ShownRegion) {
    shared.set_region(index, region, 2).unwrap();
}

/// Runs a producer one instruction after the other, and does something between two of them.
#[cfg(target_arch = "x86_64")]
mod steps {
    use std::arch::asm;
    use std::cell::Cell;
    use std::ffi::{c_int, c_void};

    const TRAP: u64 = 1 << 8;

    type Between = Cell<Option<(u64, fn(&super::Shared), *const super::Shared)>>;

    thread_local! {
        static BETWEEN: Between = const { Cell::new(None) };
    }

    extern "C" fn trapped(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        match BETWEEN.get() {
            Some((0, act, of)) => {
                BETWEEN.set(None);
                // SAFETY: what `run` was given, which has not returned.
                act(unsafe { &*of });
            }
            Some((left, act, of)) => return BETWEEN.set(Some((left - 1, act, of))),
            None => {}
        }
        // SAFETY: the context of the thread that has trapped, which goes on without traps.
        unsafe {
            let context = &mut *context.cast::<libc::ucontext_t>();
            context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !(TRAP as i64);
        }
    }

    /// Runs `run`, and after so many instructions of it `act`. Whether there were as many.
    pub(super) fn run(
        after: u64,
        context: &super::Shared,
        act: fn(&super::Shared),
        run: impl FnOnce(),
    ) -> bool {
        // SAFETY: a handler that allocates nothing and takes no lock.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                trapped as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
        }
        BETWEEN.set(Some((after, act, context)));
        // SAFETY: sets a flag of this thread, whose traps are taken by the handler.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        run();
        // SAFETY: and clears it.
        unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
        BETWEEN.take().is_none()
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn region_entries_are_never_mixed() {
    type Change = fn(&Shared);
    let directions: [(ShownRegion, Change); 2] =
        [(SHORT, |shared| set(shared, 0, LONG)), (LONG, |shared| set(shared, 0, SHORT))];
    for (before, change) in directions {
        let mut tried = 0;
        for after in 0.. {
            let shared = shared(1, 6, 0);
            set(&shared, 0, before);
            set(&shared, 1, OTHER);
            let (to, from) = (BETWEEN as *mut u8, OTHER.base as *const u8);
            let producer = producer(&shared);
            let mut status = 0;
            let changed =
                steps::run(after, &shared, change, || status = producer.put_nbi(to, from, 8, 1));
            if !changed {
                break;
            }
            tried += 1;
            let refused = c::NLF_ERROR_ADDRESS as i32;
            assert_eq!(status, refused, "{before:?} was changed after {after} instructions");
        }
        assert!(tried > 20, "it has {tried} instructions");
    }
}

/// The generation of an entry has 22 bits, and goes round.
#[test]
fn entry_generation_wraps() {
    let shared = shared(1, 6, 0);
    let last = u64::MAX << c::NLF_REGION_GENERATION_SHIFT;
    // SAFETY: nobody uses the context yet.
    unsafe {
        let entry = (*shared.context()).regions.cast_mut();
        (*entry).size = last - (1 << c::NLF_REGION_GENERATION_SHIFT);
    }
    let producer = producer(&shared);
    for round in 0..4 {
        let region = if round % 2 == 0 { LONG } else { SHORT };
        set(&shared, 0, region);
        let last_byte = (region.base + region.len - 1) as *mut u8;
        assert_eq!(producer.put_nbi(last_byte, last_byte, 1, 1), 0, "round {round}");
        let behind = (region.base + region.len) as *mut u8;
        let refused = producer.put_nbi(behind, behind, 1, 1);
        assert_eq!(refused, c::NLF_ERROR_ADDRESS as i32, "round {round}");
    }
    set(&shared, 0, ShownRegion::NONE);
    let at = LONG.base as *mut u8;
    assert_eq!(producer.put_nbi(at, at, 1, 1), c::NLF_ERROR_ADDRESS as i32);
    // Memory of this PE alone is no target.
    set(&shared, 0, ShownRegion { symmetric: false, ..LONG });
    assert_eq!(producer.put_nbi(at, at, 1, 1), c::NLF_ERROR_ADDRESS as i32);
    set(&shared, 1, SHORT);
    assert_eq!(producer.put_nbi(SHORT.base as *mut u8, at, 1, 1), 0);
}
