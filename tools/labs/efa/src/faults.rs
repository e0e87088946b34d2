//! Faults by script: `EFA_LAB_FAULTS`, a list separated by `;`.
//!
//! | fault | |
//! |---|---|
//! | `kill=NIC:N` | NIC number NIC dies at the Nth operation that this process posts on it |
//! | `register=N` | the Nth registration of memory is refused with `ENOMEM` |
//! | `busy=N:COUNT` | after every N posts, COUNT posts find the send queue full |
//! | `device=NIC` | NIC number NIC cannot be opened: `ENODEV` |
//! | `domain=NIC` | NIC number NIC refuses protection domains with `ENOMEM` |
//! | `handles=N` | each NIC has N address handles |
//! | `held=1` | a message that waits for a receive holds up all of its queue pair |
//! | `pair=NIC:N` | NIC number NIC refuses this process's Nth queue pair and all after it with `ENOMEM` |

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default, Debug)]
pub(crate) struct Faults {
    kill: Option<(u16, u64)>,
    register: Option<u64>,
    busy: Option<(u64, u64)>,
    device: Option<u16>,
    domain: Option<u16>,
    pair: Option<(u16, u64)>,
    handles: Option<u64>,
    held: bool,
    operations: AtomicU64,
    registrations: AtomicU64,
    posts: AtomicU64,
    pairs: AtomicU64,
}

impl Faults {
    pub(crate) fn parse(script: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for fault in script.split(';').filter(|fault| !fault.is_empty()) {
            let expected = || {
                String::from(
                    "kill=NIC:N, register=N, busy=N:COUNT, device=NIC, domain=NIC, pair=NIC:N, \
                     handles=N or held=1",
                )
            };
            let nic = |number: u64| u16::try_from(number).map_err(|_| expected());
            let (name, value) = fault.split_once('=').ok_or_else(expected)?;
            let mut numbers = Vec::new();
            for number in value.split(':') {
                numbers.push(number.parse::<u64>().map_err(|_| expected())?);
            }
            match (name, numbers.as_slice()) {
                ("kill", &[victim, at]) => faults.kill = Some((nic(victim)?, at)),
                ("register", &[at]) => faults.register = Some(at),
                ("busy", &[every, count]) if every > 0 => faults.busy = Some((every, count)),
                ("device", &[victim]) => faults.device = Some(nic(victim)?),
                ("domain", &[victim]) => faults.domain = Some(nic(victim)?),
                ("pair", &[victim, at]) => faults.pair = Some((nic(victim)?, at)),
                ("handles", &[most]) => faults.handles = Some(most),
                ("held", &[1]) => faults.held = true,
                _ => return Err(expected()),
            }
        }
        Ok(faults)
    }

    pub(crate) fn kills(&self, nic: u16) -> bool {
        match self.kill {
            Some((victim, at)) if victim == nic => {
                self.operations.fetch_add(1, Ordering::Relaxed) + 1 == at
            }
            _ => false,
        }
    }

    pub(crate) fn refuses_registration(&self) -> bool {
        let now = || self.registrations.fetch_add(1, Ordering::Relaxed) + 1;
        self.register.is_some_and(|at| now() == at)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.is_some_and(|(every, count)| {
            self.posts.fetch_add(1, Ordering::Relaxed) % (every + count) >= every
        })
    }

    pub(crate) fn refuses_device(&self, nic: u16) -> bool {
        self.device == Some(nic)
    }

    pub(crate) fn refuses_domain(&self, nic: u16) -> bool {
        self.domain == Some(nic)
    }

    pub(crate) fn handles(&self) -> Option<usize> {
        self.handles.map(|most| most as usize)
    }

    pub(crate) fn holds_up(&self) -> bool {
        self.held
    }

    pub(crate) fn refuses_pair(&self, nic: u16) -> bool {
        let now = || self.pairs.fetch_add(1, Ordering::Relaxed) + 1;
        self.pair.is_some_and(|(victim, at)| victim == nic && now() >= at)
    }
}
