//! The spread of operations over rails: which are cut, and which choose their rail by load.

/// How operations are spread over rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// The rail of an operation with at least so many bytes is chosen by load and rate. Shorter
    /// ones take the rails in turn.
    pub balanced_from: usize,
    /// Operations with at least so many bytes, and more than that, are cut into segments.
    pub striped_from: usize,
    /// The longest of these segments in bytes.
    pub segment: usize,
}

impl Spread {
    /// Whole operations, by all rails in turn.
    pub const ROUND_ROBIN: Spread =
        Spread { balanced_from: usize::MAX, striped_from: usize::MAX, segment: usize::MAX };

    /// What [`Spread::balanced_from`] is by default. Below it the choice costs more than it gains.
    pub const BALANCED_FROM: usize = 8 << 10;
}
