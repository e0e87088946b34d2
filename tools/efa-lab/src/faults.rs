//! Faults by script: `EFA_LAB_FAULTS`, a list separated by `;`.
//!
//! | fault | |
//! |---|---|
//! | `kill=NIC:N` | NIC number NIC dies at the Nth operation that this process posts on it |
//! | `register=N` | the Nth registration of memory is refused with `ENOMEM` |
//! | `busy=N:COUNT` | after every N posts, COUNT posts find the send queue full |

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default, Debug)]
pub(crate) struct Faults {
    kill: Option<(u16, u64)>,
    register: Option<u64>,
    busy: Option<(u64, u64)>,
    operations: AtomicU64,
    registrations: AtomicU64,
    posts: AtomicU64,
}

impl Faults {
    /// Those of a script, or what was expected of it.
    pub(crate) fn parse(script: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for fault in script.split(';').filter(|fault| !fault.is_empty()) {
            let expected = || String::from("kill=NIC:N, register=N or busy=N:COUNT");
            let (name, value) = fault.split_once('=').ok_or_else(expected)?;
            let mut numbers = Vec::new();
            for number in value.split(':') {
                numbers.push(number.parse::<u64>().map_err(|_| expected())?);
            }
            match (name, numbers.as_slice()) {
                ("kill", &[nic, at]) => {
                    faults.kill = Some((u16::try_from(nic).map_err(|_| expected())?, at));
                }
                ("register", &[at]) => faults.register = Some(at),
                ("busy", &[every, count]) if every > 0 => faults.busy = Some((every, count)),
                _ => return Err(expected()),
            }
        }
        Ok(faults)
    }

    /// Whether this operation is the one at which the NIC dies.
    pub(crate) fn kills(&self, nic: u16) -> bool {
        match self.kill {
            Some((victim, at)) if victim == nic => {
                self.operations.fetch_add(1, Ordering::Relaxed) + 1 == at
            }
            _ => false,
        }
    }

    /// Whether this registration is refused.
    pub(crate) fn refuses_registration(&self) -> bool {
        let now = || self.registrations.fetch_add(1, Ordering::Relaxed) + 1;
        self.register.is_some_and(|at| now() == at)
    }

    /// Whether this post finds the send queue full.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.is_some_and(|(every, count)| {
            self.posts.fetch_add(1, Ordering::Relaxed) % (every + count) >= every
        })
    }
}
