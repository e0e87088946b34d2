//! Ranks of one group in one process. A thread may close them one after the other, and the end of a
//! group waits for all ranks, so those of a process end together, with the last of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::nccl::abi::HANDLE_BYTES;

use super::Group;
use ofi::posix_signals;

/// The handle of a group's rank 0, which no other group has.
type Key = [u8; HANDLE_BYTES];

#[derive(Debug, Default)]
struct Here {
    ranks: usize,
    closing: Vec<Group>,
}

static HERE: Mutex<BTreeMap<Key, Here>> = Mutex::new(BTreeMap::new());

fn here() -> MutexGuard<'static, BTreeMap<Key, Here>> {
    // Each change of it is one call.
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank's membership, from before it connects until it has ended.
#[derive(Debug)]
pub(super) struct Member(Key);

impl Member {
    pub(super) fn of(handles: &[&[u8; HANDLE_BYTES]]) -> Self {
        let key = handles.first().map_or([0; HANDLE_BYTES], |first| **first);
        here().entry(key).or_default().ranks += 1;
        Self(key)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut here = here();
        if let Some(of) = here.get_mut(&self.0) {
            of.ranks -= 1;
            if of.ranks == 0 {
                here.remove(&self.0);
            }
        }
    }
}

/// Ends a rank, or leaves that to the last of its group in this process: until then the rank makes
/// progress for others. A rank that has failed waits for nobody.
pub(in crate::nccl) fn close(group: Group) {
    let key = group.member.0;
    if group.shared.failure().is_some() {
        group.end(false);
    } else {
        here().entry(key).or_default().closing.push(group);
    }
    let mut here = here();
    let complete = here.get_mut(&key).filter(|of| of.closing.len() == of.ranks);
    let mut closing = complete.map(|of| std::mem::take(&mut of.closing)).unwrap_or_default();
    drop(here);
    let last = closing.pop();
    // Each end waits for all others.
    let end = |group: Group| posix_signals::spawn("nlf-end", move || group.end(true));
    let threads: Vec<_> = closing.into_iter().map(end).collect();
    if let Some(last) = last {
        last.end(true);
    }
    for thread in threads.into_iter().flatten() {
        // A panic has printed its own message.
        let _ = thread.join();
    }
}

/// Ends the ranks that wait for others of this process, when NCCL unloads the plugin.
pub(in crate::nccl) fn end_all() {
    let closing: Vec<Group> =
        here().values_mut().flat_map(|of| std::mem::take(&mut of.closing)).collect();
    closing.into_iter().for_each(|group| group.end(false));
}
