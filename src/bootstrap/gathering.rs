//! The collectives that rails are connected with, over a bootstrap.

use std::cell::RefCell;

use super::{Bootstrap, BootstrapError};
use crate::job::connect::nics;
use crate::job::{Collectives, JobError, Shape};
use engine::ids::Pe;

pub(crate) struct Gathering<'a> {
    bootstrap: RefCell<&'a mut dyn Bootstrap>,
    shape: Shape,
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(bootstrap: &'a mut dyn Bootstrap) -> Result<Self, BootstrapError> {
        let host = nics::machine();
        let hosts = bootstrap.allgather(&host.to_le_bytes())?;
        let here = hosts.chunks_exact(8).filter(|other| **other == host.to_le_bytes()).count();
        let shape =
            Shape { n_pes: bootstrap.n_pes(), me: Pe(bootstrap.me()), here: here.max(1) as u32 };
        Ok(Self { bootstrap: RefCell::new(bootstrap), shape })
    }
}

impl Collectives for Gathering<'_> {
    fn shape(&self) -> Result<Shape, JobError> {
        Ok(self.shape)
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, JobError> {
        let mut bootstrap = self.bootstrap.borrow_mut();
        bootstrap
            .allgather(mine)
            .map_err(|failed| JobError::Collectives { what: failed.to_string() })
    }
}
