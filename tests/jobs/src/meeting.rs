//! How the PEs of a job find one another beside what is tested.

use std::net::TcpListener;
use std::time::Duration;

use nvshmem_sim::Bootstrap;
use nvshmem_transport_libfabric::bootstrap::{TcpBootstrap, TcpOptions};

use crate::job::Place;

/// The device channel's own, which joins PE 0. Collective.
pub fn bootstrap(place: &Place) -> TcpBootstrap {
    let Place { me, n_pes, bootstrap } = place;
    let listener = (*me == 0).then(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.as_ref().map_or(0, |listener| listener.local_addr().unwrap().port());
    let all = bootstrap.allgather(&port.to_le_bytes()).unwrap();
    let address = format!("127.0.0.1:{}", u16::from_le_bytes([all[0], all[1]]));
    let (me, n_pes, patience) = (*me, *n_pes, Duration::from_secs(300));
    let options = TcpOptions { address, me, n_pes, job: 1, patience };
    let joined = match listener {
        Some(listener) => TcpBootstrap::center(options, listener, &|_| true),
        None => TcpBootstrap::join(options),
    };
    joined.unwrap()
}

/// One thread of a process at a time meets the others'.
#[derive(Debug)]
pub struct Meeting {
    bootstrap: Bootstrap,
    pub me: usize,
    pub n_pes: usize,
}

impl Meeting {
    pub fn of(place: &Place) -> Self {
        let bootstrap = place.bootstrap.clone();
        Self { bootstrap, me: place.me as usize, n_pes: place.n_pes as usize }
    }

    /// What each has brought, by PE. All bring as much.
    pub fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        let all = self.bootstrap.allgather(mine).unwrap();
        all.chunks(mine.len()).map(<[u8]>::to_vec).collect()
    }

    pub fn pids(&self) -> Vec<i32> {
        let all = self.allgather(&std::process::id().to_le_bytes());
        all.into_iter().map(|pid| i32::from_le_bytes(pid.try_into().unwrap())).collect()
    }

    pub fn barrier(&self) {
        self.bootstrap.barrier().unwrap();
    }
}
