//! How the processes of a job find one another beside the plugin, as NCCL's do by its bootstrap: a
//! star of connections, whose center is PE 0.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use launcher::Place;

/// No PE comes later than this on any machine that is not stuck.
const PATIENCE: Duration = Duration::from_secs(90);

/// See the module.
pub(crate) struct Meeting {
    pub(crate) me: usize,
    pub(crate) n_pes: usize,
    /// At the center by PE, without its own; elsewhere the one to the center.
    others: Vec<TcpStream>,
    /// Of PE 0, while it waits for others.
    _listener: Option<TcpListener>,
}

impl Meeting {
    /// Returns when all have come.
    pub(crate) fn of(place: &Place) -> Self {
        let listener = (place.me == 0).then(|| place.listener().expect("as standard input"));
        Self::at(place.me as usize, place.n_pes as usize, listener, &place.address)
    }

    /// Another one of the same processes, for another thread of each. Collective.
    pub(crate) fn another(&mut self) -> Self {
        let listener = (self.me == 0).then(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.as_ref().map_or(0, |listener| listener.local_addr().unwrap().port());
        let port = self.allgather(&port.to_le_bytes()).swap_remove(0);
        let port = u16::from_le_bytes(port.try_into().expect("two bytes"));
        Self::at(self.me, self.n_pes, listener, &format!("127.0.0.1:{port}"))
    }

    fn at(me: usize, n_pes: usize, listener: Option<TcpListener>, address: &str) -> Self {
        let ready = |stream: TcpStream| {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        let Some(listener) = listener else {
            let mut center = ready(TcpStream::connect(address).unwrap());
            center.write_all(&(me as u32).to_le_bytes()).unwrap();
            return Self { me, n_pes, others: vec![center], _listener: None };
        };
        let mut others: Vec<Option<TcpStream>> = (1..n_pes).map(|_| None).collect();
        for _ in 1..n_pes {
            let mut other = ready(listener.accept().unwrap().0);
            let mut pe = [0; 4];
            other.read_exact(&mut pe).unwrap();
            others[u32::from_le_bytes(pe) as usize - 1] = Some(other);
        }
        let others = others.into_iter().map(Option::unwrap).collect();
        Self { me, n_pes, others, _listener: Some(listener) }
    }

    /// What each has brought, by PE. All bring as much.
    pub(crate) fn allgather(&mut self, mine: &[u8]) -> Vec<Vec<u8>> {
        let len = mine.len();
        let mut all = vec![0; len * self.n_pes];
        if self.me == 0 {
            all[..len].copy_from_slice(mine);
            for (other, its) in self.others.iter_mut().zip(all[len..].chunks_mut(len.max(1))) {
                other.read_exact(its).unwrap();
            }
            for other in &mut self.others {
                other.write_all(&all).unwrap();
            }
        } else {
            self.others[0].write_all(mine).unwrap();
            self.others[0].read_exact(&mut all).unwrap();
        }
        all.chunks(len.max(1)).map(<[u8]>::to_vec).collect()
    }

    /// Returns when all have come here.
    pub(crate) fn barrier(&mut self) {
        self.allgather(&[0]);
    }
}
