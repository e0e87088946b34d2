//! How the PEs of a job find one another beside what is tested: by the device channel's bootstrap.

use std::net::TcpListener;
use std::time::Duration;

use nvshmem_transport_libfabric::bootstrap::{Bootstrap, TcpBootstrap, TcpOptions};

use crate::job::Place;

/// Collective.
pub fn bootstrap(place: &Place) -> TcpBootstrap {
    let Place { me, n_pes, bootstrap } = place;
    join(*me, *n_pes, |port| bootstrap.allgather(port).unwrap())
}

/// Joins PE 0, whose port goes to the others by an allgather.
fn join(me: u32, n_pes: u32, allgather: impl FnOnce(&[u8]) -> Vec<u8>) -> TcpBootstrap {
    let listener = (me == 0).then(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.as_ref().map_or(0, |listener| listener.local_addr().unwrap().port());
    let all = allgather(&port.to_le_bytes());
    let address = format!("127.0.0.1:{}", u16::from_le_bytes([all[0], all[1]]));
    let options = TcpOptions { address, me, n_pes, job: 1, patience: Duration::from_secs(300) };
    let joined = match listener {
        Some(listener) => TcpBootstrap::center(options, listener, &|_| true),
        None => TcpBootstrap::join(options),
    };
    joined.unwrap()
}

pub fn pids(bootstrap: &mut impl Bootstrap) -> Vec<i32> {
    let all = bootstrap.allgather(&std::process::id().to_le_bytes()).unwrap();
    let pid = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().expect("four bytes"));
    all.chunks(4).map(pid).collect()
}

#[derive(Debug)]
pub struct Meeting {
    bootstrap: TcpBootstrap,
    pub me: usize,
    pub n_pes: usize,
}

impl Meeting {
    pub fn of(place: &Place) -> Self {
        Self::by(bootstrap(place))
    }

    fn by(bootstrap: TcpBootstrap) -> Self {
        let (me, n_pes) = (bootstrap.me() as usize, bootstrap.n_pes() as usize);
        Self { bootstrap, me, n_pes }
    }

    /// Another one of the same processes, for another thread of each. Collective.
    #[must_use]
    pub fn another(&mut self) -> Self {
        let (me, n_pes) = (self.me as u32, self.n_pes as u32);
        Self::by(join(me, n_pes, |port| self.allgather(port).concat()))
    }

    /// What each has brought, by PE. All bring as much.
    pub fn allgather(&mut self, mine: &[u8]) -> Vec<Vec<u8>> {
        let all = self.bootstrap.allgather(mine).unwrap();
        all.chunks(mine.len().max(1)).map(<[u8]>::to_vec).collect()
    }

    pub fn pids(&mut self) -> Vec<i32> {
        pids(&mut self.bootstrap)
    }

    pub fn barrier(&mut self) {
        self.bootstrap.barrier().unwrap();
    }
}
