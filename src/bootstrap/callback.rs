//! A bootstrap over an allgather function of the user, such as MPI's.

use super::{Bootstrap, BootstrapError};

/// The user's function: this PE's bytes, a buffer for those of all PEs, and a status, 0: success.
type Allgather = Box<dyn FnMut(&[u8], &mut [u8]) -> i32 + Send>;

/// A bootstrap that calls the user's allgather.
pub struct Callback {
    n_pes: u32,
    me: u32,
    allgather: Allgather,
}

impl std::fmt::Debug for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callback").field("n_pes", &self.n_pes).field("me", &self.me).finish()
    }
}

impl Callback {
    /// A bootstrap over a function that gathers all PEs' bytes, in PE order, and returns 0.
    ///
    /// # Errors
    /// `me` is not below `n_pes`.
    pub fn new(
        n_pes: u32,
        me: u32,
        allgather: impl FnMut(&[u8], &mut [u8]) -> i32 + Send + 'static,
    ) -> Result<Self, BootstrapError> {
        if me >= n_pes {
            return Err(BootstrapError::Shape { me, n_pes });
        }
        Ok(Self { n_pes, me, allgather: Box::new(allgather) })
    }
}

impl Bootstrap for Callback {
    fn n_pes(&self) -> u32 {
        self.n_pes
    }

    fn me(&self) -> u32 {
        self.me
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<u8>, BootstrapError> {
        let mut all = vec![0; mine.len() * self.n_pes as usize];
        match (self.allgather)(mine, &mut all) {
            0 => Ok(all),
            status => Err(BootstrapError::Callback { status }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_allgather_may_fail() {
        assert!(Callback::new(2, 2, |_, _| 0).is_err());
        let mut alone = Callback::new(1, 0, |mine, all| {
            all.copy_from_slice(mine);
            0
        })
        .unwrap();
        assert_eq!(alone.allgather(&[1, 2]).unwrap(), [1, 2]);
        alone.barrier().unwrap();
        let failed = Callback::new(2, 1, |_, _| 7).unwrap().barrier().unwrap_err();
        assert!(failed.to_string().contains("status 7"), "{failed}");
    }
}
