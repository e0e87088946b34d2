//! What other processes share, mapped when it is first needed.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::shared::Mapping;
use crate::shared::completions::{self, CompletionQueue};
use crate::shared::nic::{Gid, NicState, QpId};
use crate::shared::posted::PostedWrites;
use crate::shared::receives::ReceiveQueue;

#[derive(Debug)]
pub(crate) struct Peers {
    dir: PathBuf,
    nics: HashMap<Gid, Arc<Mapping<NicState>>>,
    receives: HashMap<(Gid, QpId), Arc<Mapping<ReceiveQueue>>>,
    completions: HashMap<(u32, u32), Arc<Mapping<CompletionQueue>>>,
    posted: HashMap<Gid, Arc<Mapping<PostedWrites>>>,
}

impl Peers {
    pub(crate) fn new(dir: PathBuf) -> Self {
        let (nics, receives, completions, posted) = Default::default();
        Self { dir, nics, receives, completions, posted }
    }

    pub(crate) fn nic(&mut self, gid: Gid) -> io::Result<Arc<Mapping<NicState>>> {
        find(&mut self.nics, gid, || Mapping::open(&self.dir.join(gid.file())))
    }

    pub(crate) fn receives(
        &mut self,
        gid: Gid,
        qp: QpId,
    ) -> io::Result<Arc<Mapping<ReceiveQueue>>> {
        find(&mut self.receives, (gid, qp), || Mapping::open(&self.dir.join(qp.file(gid))))
    }

    /// What a NIC has written to memory of devices. There is no file where all see it at once.
    pub(crate) fn posted(&mut self, gid: Gid) -> io::Result<Arc<Mapping<PostedWrites>>> {
        find(&mut self.posted, gid, || Mapping::open(&self.dir.join(gid.posted_file())))
    }

    pub(crate) fn completions(
        &mut self,
        process: u32,
        number: u32,
    ) -> io::Result<Arc<Mapping<CompletionQueue>>> {
        let open = || Mapping::open(&self.dir.join(completions::file(process, number)));
        find(&mut self.completions, (process, number), open)
    }
}

fn find<K: std::hash::Hash + Eq, V>(
    known: &mut HashMap<K, Arc<V>>,
    key: K,
    open: impl FnOnce() -> io::Result<V>,
) -> io::Result<Arc<V>> {
    if let Some(value) = known.get(&key) {
        return Ok(Arc::clone(value));
    }
    let value = Arc::new(open()?);
    known.insert(key, Arc::clone(&value));
    Ok(value)
}
