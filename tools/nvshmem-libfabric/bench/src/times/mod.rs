//! Times and figures: what is measured of a case, in rounds of its sides, and what is made of it.

pub(crate) mod case;
pub(crate) mod laps;
pub(crate) mod load;
pub(crate) mod rounds;
pub(crate) mod stats;
