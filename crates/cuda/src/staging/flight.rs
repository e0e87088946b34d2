//! Copies under way in one direction, in the order of starting.

use std::collections::VecDeque;

use engine::port::PortError;

/// Most calls of the driver whose copies are under way, where it takes several copies in a call:
/// one that the device is at, and one behind it. What comes meanwhile goes together in the next.
pub(crate) const MOST_CALLS: usize = 2;

/// What tells that the copies of a call have ended.
#[derive(Clone, Debug)]
pub(crate) enum By {
    /// Nothing: the CPU has copied, they had ended when they were started.
    Cpu,
    /// The engine of the context with this index.
    Engine(usize),
    /// Nothing: the driver has refused them, when others before them had been started.
    Refused(PortError),
}

/// Copies that were given to the driver in one call, or to the CPU.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) by: By,
    pub(crate) tags: u32,
}

/// Copies of one direction. Several engines may be at work; the end of each copy is told in the
/// order of starting, so it waits for those before it. An engine's own copies end in their order,
/// so the first call here is the oldest of its engine.
#[derive(Debug)]
pub(crate) struct Flight {
    /// What is told of, once each.
    tags: VecDeque<u32>,
    calls: VecDeque<Call>,
    /// Of the first call, once it has ended.
    ended: Option<Result<(), PortError>>,
    /// What went wrong with the first part of the copies of a tag, while others are under way.
    carried: Option<PortError>,
    capacity: usize,
}

impl Flight {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            tags: VecDeque::with_capacity(capacity),
            calls: VecDeque::with_capacity(capacity),
            ended: None,
            carried: None,
            capacity,
        }
    }

    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.capacity - self.tags.len().max(self.calls.len())
    }

    #[inline]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// The call that ends next, unless it has ended.
    #[inline]
    pub(crate) fn first(&self) -> Option<&By> {
        self.calls.front().filter(|_| self.ended.is_none()).map(|call| &call.by)
    }

    #[inline]
    pub(crate) fn end_first(&mut self, result: Result<(), PortError>) {
        self.ended = Some(result);
    }

    /// Takes a tag in, whose copies are in the next call that is [pushed](Self::push). There is
    /// room.
    #[inline]
    pub(crate) fn push_tag(&mut self, tag: u32) {
        self.tags.push_back(tag);
    }

    #[inline]
    pub(crate) fn push(&mut self, call: Call) {
        self.calls.push_back(call);
    }

    #[inline]
    pub(crate) fn next_ended(&mut self) -> Option<(u32, Result<(), PortError>)> {
        let result = self.ended.as_ref()?;
        let call = self.calls.front_mut()?;
        if call.tags == 0 {
            // Its copies belong to what ends with the next one.
            if let Err(error) = result {
                self.carried.get_or_insert_with(|| error.clone());
            }
            self.leave();
            return None;
        }
        call.tags -= 1;
        let is_last = call.tags == 0;
        let result = self.carried.take().map_or_else(|| result.clone(), Err);
        if is_last {
            self.leave();
        }
        Some((self.tags.pop_front()?, result))
    }

    fn leave(&mut self) {
        self.calls.pop_front();
        self.ended = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> PortError {
        PortError { call: "copy", code: 7, text: String::from("it failed") }
    }

    #[test]
    fn tags_end_with_their_call_and_in_order() {
        let mut flight = Flight::new(4);
        for (tags, by) in [(&[1, 2][..], By::Engine(0)), (&[3], By::Cpu)] {
            tags.iter().for_each(|tag| flight.push_tag(*tag));
            flight.push(Call { by, tags: tags.len() as u32 });
        }
        assert_eq!((flight.room(), flight.calls()), (1, 2));
        assert!(matches!(flight.first(), Some(By::Engine(0))) && flight.next_ended().is_none());
        flight.end_first(Err(failed()));
        assert!(flight.first().is_none(), "it has ended");
        assert_eq!(flight.next_ended(), Some((1, Err(failed()))));
        assert_eq!(flight.next_ended(), Some((2, Err(failed()))));
        assert!(flight.next_ended().is_none() && matches!(flight.first(), Some(By::Cpu)));
        flight.end_first(Ok(()));
        assert_eq!(flight.next_ended(), Some((3, Ok(()))));
        assert_eq!((flight.room(), flight.calls()), (4, 0));
    }

    #[test]
    fn a_tag_of_two_calls_ends_with_the_second() {
        for (first, second) in [(Err(failed()), Ok(())), (Ok(()), Err(failed()))] {
            let mut flight = Flight::new(4);
            flight.push(Call { by: By::Engine(0), tags: 0 });
            flight.push_tag(5);
            flight.push(Call { by: By::Engine(1), tags: 1 });
            flight.end_first(first);
            assert!(flight.next_ended().is_none());
            flight.end_first(second);
            assert_eq!(flight.next_ended(), Some((5, Err(failed()))));
        }
    }
}
