//! The offer of atomics: what a PE wants and has of them, in the record by which it connects.

/// What the user of a PE wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// The fabric where that is hardware and every PE has it, else the target.
    Auto,
    /// The fabric, or no connection.
    Native,
    /// The target.
    Target,
}

/// A PE's word on atomics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// What its user wants.
    pub wish: Wish,
    /// Whether every rail of it executes the whole table, in hardware on the memory in question.
    pub hardware: bool,
    /// What its rails lack for executing the whole table; none if they lack nothing.
    pub lacks: Option<String>,
}

impl Wish {
    /// Its byte in a connection record.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Auto => 0,
            Self::Native => 1,
            Self::Target => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Auto, Self::Native, Self::Target].into_iter().find(|wish| wish.code() == code)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Target => "target",
        }
    }
}
