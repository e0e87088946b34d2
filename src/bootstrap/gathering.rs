//! The collectives that rails are connected with, over a bootstrap.

use std::cell::RefCell;

use super::Bootstrap;
use crate::job::{Collectives, JobError, Shape};
use engine::ids::Pe;

pub(crate) struct Gathering<'a> {
    bootstrap: RefCell<&'a mut dyn Bootstrap>,
    shape: Shape,
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(bootstrap: &'a mut dyn Bootstrap) -> Self {
        let (n_pes, me) = (bootstrap.n_pes(), Pe(bootstrap.me()));
        Self { bootstrap: RefCell::new(bootstrap), shape: Shape { n_pes, me, here: n_pes } }
    }
}

impl Collectives for Gathering<'_> {
    fn shape(&self) -> Result<Shape, JobError> {
        Ok(self.shape)
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, JobError> {
        let gathered = self.bootstrap.borrow_mut().allgather(mine);
        gathered.map_err(|failed| JobError::Collectives { what: failed.to_string() })
    }
}
