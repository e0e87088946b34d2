//! Atomic operations: NVSHMEM's table, and the effect of each on a word.

/// Declares the operations once, those that fetch nothing first. `Atomic::apply` matches them all.
macro_rules! operations {
    (
        plain { $($(#[$doc:meta])* $plain:ident = $plain_code:literal,)* }
        fetching { $($fetching:ident = $fetching_code:literal,)* }
    ) => {
        /// Kind of an atomic operation. The numbers are NVSHMEM's, the same in 3.1 to 3.8.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum AtomicOp {
            $($(#[$doc])* $plain = $plain_code,)*
            $($fetching = $fetching_code,)*
        }

        impl AtomicOp {
            pub const ALL: [Self; [$($plain_code,)* $($fetching_code,)*].len()] =
                [$(Self::$plain,)* $(Self::$fetching,)*];

            /// Returns the operation with NVSHMEM's number if it fetches nothing, without a search.
            #[inline(always)]
            pub fn plain_from_code(code: i32) -> Option<Self> {
                match code {
                    $($plain_code => Some(Self::$plain),)*
                    _ => None,
                }
            }

            /// Returns true if the caller gets the word's old value.
            #[inline]
            pub fn fetches(self) -> bool {
                matches!(self, $(Self::$fetching)|*)
            }
        }
    };
}

operations! {
    plain {
        Inc = 2,
        Set = 3,
        Add = 4,
        And = 5,
        Or = 6,
        Xor = 7,
        /// Stores the operand: the older name of [`AtomicOp::SignalSet`].
        Signal = 8,
        SignalSet = 9,
        SignalAdd = 10,
    }
    fetching {
        Fetch = 12,
        FetchInc = 13,
        FetchAdd = 14,
        FetchAnd = 15,
        FetchOr = 16,
        FetchXor = 17,
        Swap = 18,
        CompareSwap = 19,
    }
}

impl AtomicOp {
    /// Returns true for the operations of a signal. A signal announces data, so it takes effect
    /// after the puts that its lane has started before to the same PE, even if it is sent apart
    /// from them.
    #[inline(always)]
    pub fn is_signal(self) -> bool {
        matches!(self, Self::Signal | Self::SignalSet | Self::SignalAdd)
    }

    /// Returns true if the operation only stores the operand, whatever the old value.
    pub fn sets(self) -> bool {
        matches!(self, Self::Set | Self::Signal | Self::SignalSet)
    }

    #[inline]
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as i32 == code)
    }
}

/// Width of the word that an atomic operation changes. Messages carry the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    Two = 0,
    Four = 1,
    Eight = 2,
}

impl Width {
    pub const ALL: [Width; 3] = [Width::Two, Width::Four, Width::Eight];

    #[inline]
    pub fn from_bytes(bytes: i32) -> Option<Width> {
        match bytes {
            2 => Some(Width::Two),
            4 => Some(Width::Four),
            8 => Some(Width::Eight),
            _ => None,
        }
    }

    #[inline]
    pub fn bytes(self) -> usize {
        // A shift takes fewer instructions than the table that would be made of a match.
        2 << self as usize
    }

    #[inline]
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Atomic {
    pub op: AtomicOp,
    pub width: Width,
    /// Whether word and operand are IEEE numbers. Affects operations that add; others work on bits.
    pub float: bool,
    /// The operand, in the low bytes.
    pub operand: u64,
    /// The comparand of a compare and swap, in the low bytes.
    pub compare: u64,
}

impl Atomic {
    /// Returns the new value of a word with value `old`, both in the low bytes. Sums wrap;
    /// floating-point sums round to nearest, as the processor does.
    #[inline]
    pub fn apply(&self, old: u64) -> u64 {
        let Atomic { op, width, float, operand, compare } = *self;
        let mask = width.mask();
        let new = match op {
            AtomicOp::Inc | AtomicOp::FetchInc => add(old, one(width, float), width, float),
            AtomicOp::Add | AtomicOp::SignalAdd | AtomicOp::FetchAdd => {
                add(old, operand, width, float)
            }
            AtomicOp::Set | AtomicOp::Signal | AtomicOp::SignalSet | AtomicOp::Swap => operand,
            AtomicOp::And | AtomicOp::FetchAnd => old & operand,
            AtomicOp::Or | AtomicOp::FetchOr => old | operand,
            AtomicOp::Xor | AtomicOp::FetchXor => old ^ operand,
            AtomicOp::Fetch => old,
            AtomicOp::CompareSwap => {
                // Bits of the comparand above the width do not count.
                if (old ^ compare) & mask == 0 { operand } else { old }
            }
        };
        new & mask
    }
    /// Returns one operation for this one followed by `next`, if both add integers of one width.
    pub fn then(&self, next: &Self) -> Option<Self> {
        let added = |atomic: &Self| match atomic.op {
            AtomicOp::Inc => Some(1),
            AtomicOp::Add | AtomicOp::SignalAdd => Some(atomic.operand),
            _ => None,
        };
        let are_alike = self.width == next.width && !self.float && !next.float;
        let (one, other) = (added(self)?, added(next).filter(|_| are_alike)?);
        Some(Self { op: AtomicOp::Add, operand: one.wrapping_add(other), ..*self })
    }
}

fn one(width: Width, float: bool) -> u64 {
    match (float, width) {
        (true, Width::Eight) => 1f64.to_bits(),
        (true, Width::Four) => u64::from(1f32.to_bits()),
        // One as an IEEE half.
        (true, Width::Two) => 0x3c00,
        (false, _) => 1,
    }
}

#[inline]
fn add(old: u64, operand: u64, width: Width, float: bool) -> u64 {
    match (float, width) {
        (false, _) => old.wrapping_add(operand),
        (true, Width::Eight) => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        (true, Width::Four) => {
            u64::from((f32::from_bits(old as u32) + f32::from_bits(operand as u32)).to_bits())
        }
        (true, Width::Two) => {
            // Two halves add exactly in single precision's 24 bits except for rounding to 11, which
            // the conversion back does once: the result is that of a half addition.
            u64::from(half_bits(half_value(old as u16) + half_value(operand as u16)))
        }
    }
}

fn half_value(bits: u16) -> f32 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        0x1f if fraction == 0.0 => sign * f32::INFINITY,
        0x1f => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

fn half_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // NaN payloads are lost: one quiet NaN stands for all.
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // 65520 is half way between the largest half and the next power of two, and goes to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    // Below 2^-14 halves are multiples of 2^-24.
    if magnitude < 0x3880_0000 {
        let scaled = f32::from_bits(magnitude) * 2f32.powi(24);
        return sign | scaled.round_ties_even() as u16;
    }
    // Adds half a unit in the last place, less one bit unless the result is odd: ties go to even.
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    sign | ((rounded >> 13) - (112 << 10)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atomic(op: AtomicOp, width: Width, operand: u64) -> Atomic {
        Atomic { op, width, float: false, operand, compare: 0 }
    }

    #[test]
    fn codes_are_nvshmems() {
        for code in -1..200 {
            let (plain, fetching) = ((2..=10).contains(&code), (12..=19).contains(&code));
            let op = AtomicOp::from_code(code);
            assert_eq!(
                (op.is_some(), AtomicOp::plain_from_code(code)),
                (plain || fetching, op.filter(|_| plain))
            );
            assert_eq!(op.is_some_and(AtomicOp::fetches), fetching, "{code}");
        }
    }

    #[test]
    fn results_stay_within_their_width() {
        for width in Width::ALL {
            let max = width.mask();
            assert_eq!(atomic(AtomicOp::Add, width, 1).apply(max), 0);
            assert_eq!(atomic(AtomicOp::Inc, width, 77).apply(max), 0);
            assert_eq!(atomic(AtomicOp::SignalSet, width, u64::MAX).apply(5), max);
            assert_eq!(atomic(AtomicOp::Xor, width, u64::MAX).apply(0b101), max ^ 0b101);
            assert_eq!(atomic(AtomicOp::FetchAnd, width, 0b110).apply(0b011), 0b010);
            assert_eq!(atomic(AtomicOp::FetchOr, width, 0b110).apply(0b011), 0b111);
            assert_eq!(atomic(AtomicOp::Fetch, width, 9).apply(7), 7);
            let swap = Atomic { compare: 7, ..atomic(AtomicOp::CompareSwap, width, 9) };
            assert_eq!(swap.apply(7), 9);
            assert_eq!(swap.apply(8), 8);
        }
        // Bits of the comparand above the width do not count.
        let swap = Atomic { compare: 0xffff_0007, ..atomic(AtomicOp::CompareSwap, Width::Two, 9) };
        assert_eq!(swap.apply(7), 9);
    }

    #[test]
    fn joined_operations_add_up() {
        use AtomicOp::{Add, Inc, Set, SignalAdd};
        for (one, next) in [(Add, Inc), (Inc, SignalAdd), (SignalAdd, Add), (Set, Add), (Add, Set)]
        {
            let (one, next) = (atomic(one, Width::Two, 0xfff0), atomic(next, Width::Two, 0x20));
            let expected = next.apply(one.apply(3));
            let joins = one.op != Set && next.op != Set;
            assert_eq!(one.then(&next).map(|both| both.apply(3)), joins.then_some(expected));
            assert!(one.then(&Atomic { width: Width::Four, ..next }).is_none());
        }
    }

    #[test]
    fn floating_point_sums() {
        let sum = |width, a: u64, b: u64| {
            Atomic { float: true, ..atomic(AtomicOp::FetchAdd, width, b) }.apply(a)
        };
        assert_eq!(sum(Width::Eight, 1.5f64.to_bits(), 2.25f64.to_bits()), 3.75f64.to_bits());
        let single = |value: f32| u64::from(value.to_bits());
        assert_eq!(sum(Width::Four, single(1.5), single(-2.0)), single(-0.5));
        let inc = Atomic { float: true, ..atomic(AtomicOp::Inc, Width::Four, 0) };
        assert_eq!(inc.apply(single(41.0)), single(42.0));
        // Bits, not numbers, for everything else.
        let set = Atomic { float: true, ..atomic(AtomicOp::Set, Width::Four, single(3.0)) };
        assert_eq!(set.apply(0), single(3.0));
    }

    #[test]
    fn half_floats_convert_and_round_once() {
        for bits in 0..=u16::MAX {
            let value = half_value(bits);
            assert_eq!(value.is_nan(), bits & 0x7fff > 0x7c00, "{bits:x}");
            if value.is_nan() {
                assert!(half_value(half_bits(value)).is_nan());
            } else {
                assert_eq!(half_bits(value), bits);
            }
        }
        let sum = |a: u16, b: u16| add(a.into(), b.into(), Width::Two, true) as u16;
        assert_eq!(sum(0x3c00, 0x3c00), 0x4000, "1 + 1");
        assert_eq!(sum(0x7bff, 0x7bff), 0x7c00, "the largest twice is infinite");
        assert_eq!(sum(0x6800, 0x3c00), 0x6800, "2048 + 1 is a tie, to even");
        assert_eq!(sum(0x6801, 0x3c00), 0x6802, "2050 + 1 is a tie, to even");
        assert_eq!(sum(0x0001, 0x0001), 0x0002, "the smallest twice");
    }

    #[test]
    fn widths_match_their_bytes() {
        for bytes in -1..=16 {
            let width = Width::from_bytes(bytes).map(|width| width.bytes() as i32);
            assert_eq!(width, [2, 4, 8].contains(&bytes).then_some(bytes));
        }
    }
}
