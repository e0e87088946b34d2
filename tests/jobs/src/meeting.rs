//! How the PEs of a job find one another beside what is tested: by the device channel's bootstrap.

use std::net::TcpListener;
use std::time::Duration;

use launcher::Place;
use nvshmem_transport_libfabric::bootstrap::{Bootstrap, TcpBootstrap, TcpOptions};

pub fn bootstrap(place: &Place) -> TcpBootstrap {
    let listener = (place.me == 0).then(|| place.listener().expect("a socket as standard input"));
    join(place.clone(), listener)
}

fn join(place: Place, listener: Option<TcpListener>) -> TcpBootstrap {
    let Place { me, n_pes, address } = place;
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
        let listener = (self.me == 0).then(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.as_ref().map_or(0, |listener| listener.local_addr().unwrap().port());
        let port = self.allgather(&port.to_le_bytes()).swap_remove(0);
        let port = u16::from_le_bytes(port.try_into().expect("two bytes"));
        let (me, n_pes) = (self.me as u32, self.n_pes as u32);
        Self::by(join(Place { me, n_pes, address: format!("127.0.0.1:{port}") }, listener))
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
