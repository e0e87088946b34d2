//! Laboratories: providers of fabrics that this machine does not have, on stand-ins for their NICs.

mod cxi;
pub(crate) mod efa;
mod rdma;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [cxi::trials(), efa::trials(), rdma::trials()].into_iter().flatten().collect()
}
