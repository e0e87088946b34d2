//! Decision when an idle proxy thread yields its core.

use engine::lane::is_idle;

use crate::settings::YieldWhen;

/// Idle iterations between two checks for involuntary context switches: some milliseconds.
const CHECK_INTERVAL: u32 = 1 << 14;
/// Checks without a switch after which the core counts as this thread's own again. A thread that
/// yields is switched less often than one that is preempted.
const CALM_CHECKS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Yielding {
    /// None to yield while other threads want the core.
    always: Option<bool>,
    idle: u32,
    /// Involuntary context switches of the thread at the last check.
    switches: i64,
    /// Checks left until the core counts as the thread's own.
    contended: u32,
}

impl Yielding {
    /// `here` PEs of this host, each with a user thread and a proxy thread, share `cores`.
    pub(crate) fn new(when: YieldWhen, cores: usize, here: usize) -> Self {
        let always = match when {
            YieldWhen::Always => Some(true),
            YieldWhen::Never => Some(false),
            YieldWhen::Auto => (cores < 2 * here).then_some(true),
        };
        Self { always, idle: 0, switches: i64::MAX, contended: 0 }
    }

    /// Returns true if there is a core for each thread of this job's PEs.
    pub(crate) fn has_core(&self) -> bool {
        self.always != Some(true)
    }

    /// Counts an iteration. Returns true if the thread should yield now.
    #[inline]
    pub(crate) fn after(&mut self, busy: bool) -> bool {
        is_idle(&mut self.idle, busy)
            && match self.always {
                Some(always) => always,
                None => {
                    if self.idle % CHECK_INTERVAL == 0 {
                        self.check(involuntary_switches());
                    }
                    self.contended > 0
                }
            }
    }

    fn check(&mut self, switches: i64) {
        self.contended =
            if switches > self.switches { CALM_CHECKS } else { self.contended.saturating_sub(1) };
        self.switches = switches;
    }
}

/// Returns this thread's involuntary context switches; a yield to a waiting thread counts too.
fn involuntary_switches() -> i64 {
    // SAFETY: plain integers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a structure, which the call fills.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_core_prevents_yielding() {
        for (cores, here, yields) in
            [(2, 1, false), (1, 1, true), (6, 3, false), (5, 3, true), (4, 8, true)]
        {
            let has_core = |when| Yielding::new(when, cores, here).has_core();
            assert_eq!(has_core(YieldWhen::Auto), !yields, "{cores} {here}");
            assert!(!has_core(YieldWhen::Always) && has_core(YieldWhen::Never));
        }
    }

    #[test]
    fn preempted_threads_yield_until_calm() {
        let mut yielding = Yielding::new(YieldWhen::Auto, 16, 1);
        let yields = |yielding: &mut Yielding| (0..20).any(|_| yielding.after(false));
        yielding.check(5);
        assert!(!yields(&mut yielding), "the first look compares with nothing");
        yielding.check(6);
        assert!(yields(&mut yielding));
        assert!(!yielding.after(true), "what is busy does not yield");
        (0..CALM_CHECKS).for_each(|_| yielding.check(6));
        assert!(!yields(&mut yielding));
    }

    #[test]
    fn only_idle_threads_look() {
        let mut yielding = Yielding::new(YieldWhen::Auto, 16, 1);
        (0..CHECK_INTERVAL - 1).for_each(|_| _ = yielding.after(false));
        assert_eq!(yielding.switches, i64::MAX);
        yielding.after(false);
        assert!((0..i64::MAX).contains(&yielding.switches));
        // The count agrees with /proc.
        let listed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let switches =
                status.lines().find_map(|of| of.strip_prefix("nonvoluntary_ctxt_switches:"));
            switches.unwrap().trim().parse::<i64>().unwrap()
        };
        let (before, told, after) = (listed(), involuntary_switches(), listed());
        assert!((before..=after).contains(&told), "{told} of {before} to {after}");
    }
}
