//! Sequence numbers on the wire, and the receiver's record of which it has seen.

/// Most messages to one peer that are not acknowledged. The receiver remembers as many.
pub const WINDOW: u32 = 512;

const WORDS: usize = (WINDOW / 64) as usize;

const _: () = assert!(WINDOW % 64 == 0 && WINDOW.is_power_of_two());

/// A message's number in its connection, modulo 2^32. Comparisons hold while two numbers are less
/// than 2^31 apart; [`WINDOW`] keeps them far closer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seq(pub u32);

impl Seq {
    /// The number after this one.
    #[inline]
    pub fn next(self) -> Seq {
        Seq(self.0.wrapping_add(1))
    }

    /// How far this number is after another; huge for one before it.
    #[inline]
    pub fn after(self, other: Seq) -> u32 {
        self.0.wrapping_sub(other.0)
    }

    /// Whether this number comes before another.
    #[inline]
    pub fn is_before(self, other: Seq) -> bool {
        self != other && other.after(self) < 1 << 31
    }
}

/// What has arrived of one sender's messages: everything below a number, and some after it.
#[derive(Clone, Debug)]
pub struct Received {
    /// The first number that has not arrived.
    next: Seq,
    /// Bit `n % WINDOW`: number `n`, at or after `next`, has arrived.
    seen: [u64; WORDS],
    ahead: u32,
}

/// What a message is to the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Not seen before.
    New,
    /// Seen before: it must not be applied again.
    Duplicate,
    /// Too far ahead for any correct sender.
    Beyond,
}

impl Received {
    /// Nothing has arrived, and `first` is the sender's first number.
    pub fn new(first: Seq) -> Self {
        Self { next: first, seen: [0; WORDS], ahead: 0 }
    }

    /// Everything before this number has arrived.
    #[inline]
    pub fn prefix(&self) -> Seq {
        self.next
    }

    /// Takes note of a message.
    #[inline(always)]
    pub fn arrive(&mut self, seq: Seq) -> Arrival {
        if seq == self.next {
            self.next = seq.next();
            if self.ahead != 0 {
                self.catch_up();
            }
            return Arrival::New;
        }
        if seq.is_before(self.next) {
            return Arrival::Duplicate;
        }
        if self.is_beyond(seq) {
            return Arrival::Beyond;
        }
        let (word, bit) = Self::place(seq);
        if self.seen[word] & bit != 0 {
            return Arrival::Duplicate;
        }
        self.seen[word] |= bit;
        self.ahead += 1;
        Arrival::New
    }

    /// Whether a number is too far ahead for any correct sender.
    pub fn is_beyond(&self, seq: Seq) -> bool {
        !seq.is_before(self.next) && seq.after(self.next) >= WINDOW
    }

    #[cold]
    fn catch_up(&mut self) {
        while self.take(self.next) {
            self.next = self.next.next();
            self.ahead -= 1;
        }
    }

    #[inline]
    fn take(&mut self, seq: Seq) -> bool {
        let (word, bit) = Self::place(seq);
        let was_set = self.seen[word] & bit != 0;
        self.seen[word] &= !bit;
        was_set
    }

    #[inline]
    fn place(seq: Seq) -> (usize, u64) {
        let at = seq.0 % WINDOW;
        ((at / 64) as usize, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_across_the_wrap() {
        let last = Seq(u32::MAX);
        assert_eq!(last.next(), Seq(0));
        assert!(last.is_before(Seq(0)) && !Seq(0).is_before(last));
        assert!(!last.is_before(last));
        assert_eq!(Seq(5).after(Seq(u32::MAX - 4)), 10);
    }

    #[test]
    fn any_order_within_the_window_arrives_once() {
        for start in [0, 1, 63, 1000, u32::MAX - 700, u32::MAX] {
            let mut received = Received::new(Seq(start));
            let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(start);
            let mut waiting: Vec<u32> = Vec::new();
            let mut sent = 0;
            let mut arrived = std::collections::HashSet::new();
            while arrived.len() < 2000 {
                // A sender never runs further ahead of the prefix than the window.
                while sent < 2000 && sent - received.prefix().after(Seq(start)) < WINDOW {
                    waiting.push(sent);
                    sent += 1;
                }
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let pick = random as usize % waiting.len();
                let number = waiting[pick];
                let seq = Seq(start.wrapping_add(number));
                let first = arrived.insert(number);
                let expected = if first { Arrival::New } else { Arrival::Duplicate };
                assert_eq!(received.arrive(seq), expected, "number {number}");
                // Half of them come again, now or later.
                if random & 1 << 40 == 0 {
                    waiting.swap_remove(pick);
                }
                let prefix = received.prefix().after(Seq(start));
                assert!(prefix == 0 || arrived.contains(&(prefix - 1)));
                assert!(
                    !arrived.contains(&prefix),
                    "the prefix stops at the first that is missing"
                );
            }
            assert_eq!(received.prefix(), Seq(start.wrapping_add(2000)));
            assert!(received.ahead == 0 && received.seen.iter().all(|word| *word == 0));
        }
    }

    #[test]
    fn what_no_sender_may_send_is_beyond() {
        let mut received = Received::new(Seq(u32::MAX));
        assert_eq!(received.arrive(Seq(u32::MAX.wrapping_add(WINDOW))), Arrival::Beyond);
        assert_eq!(received.arrive(Seq(u32::MAX.wrapping_add(WINDOW - 1))), Arrival::New);
        assert_eq!(received.arrive(Seq(u32::MAX - 1)), Arrival::Duplicate);
    }
}
