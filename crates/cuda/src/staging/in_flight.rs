use std::collections::VecDeque;

use crate::copy::engine::MAX_BATCHES;
use engine::port::PortError;
use engine::port::copies::{Copied, MAX_BATCH_COPIES, MAX_WORDS};

/// Batches of one direction, possibly on several engines. Ends are reported in the order of starts,
/// tag by tag.
#[derive(Debug)]
pub(crate) struct InFlight {
    batches: VecDeque<Batch>,
    tags: VecDeque<u32>,
    /// Address and end of the words stored by batches that have not ended.
    words: VecDeque<(usize, usize)>,
    next: u32,
}

#[derive(Debug)]
struct Batch {
    number: u32,
    tags: usize,
    words: usize,
    ended: bool,
    error: Option<PortError>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self {
            batches: VecDeque::with_capacity(MAX_BATCHES),
            tags: VecDeque::with_capacity(MAX_BATCHES * MAX_BATCH_COPIES),
            words: VecDeque::with_capacity(MAX_BATCHES * MAX_WORDS),
            next: 0,
        }
    }

    /// Returns the maximum number of tags of the next batch; 0 if none may start.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        if self.batches.len() < MAX_BATCHES { MAX_BATCH_COPIES } else { 0 }
    }

    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Adds the next batch, with the error if a part of it failed to start. There must be capacity.
    pub(crate) fn push(
        &mut self,
        tags: impl Iterator<Item = u32>,
        words: impl Iterator<Item = (usize, usize)>,
        error: Option<PortError>,
    ) {
        let before = (self.tags.len(), self.words.len());
        self.tags.extend(tags);
        self.words.extend(words);
        let (tags, words) = (self.tags.len() - before.0, self.words.len() - before.1);
        self.batches.push_back(Batch { number: self.next, tags, words, ended: false, error });
        self.next = self.next.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn oldest_number(&self) -> Option<u32> {
        self.batches.iter().find(|batch| !batch.ended).map(|batch| batch.number)
    }

    fn oldest(&mut self) -> Option<&mut Batch> {
        self.batches.iter_mut().find(|batch| !batch.ended)
    }

    /// Sets the error of the oldest batch that has not ended, unless it has one.
    pub(crate) fn fail(&mut self, error: PortError) {
        if let Some(batch) = self.oldest() {
            batch.error.get_or_insert(error);
        }
    }

    /// Ends the oldest batch that has not ended.
    pub(crate) fn end(&mut self) {
        if let Some(batch) = self.oldest() {
            batch.ended = true;
            let words = batch.words;
            self.words.drain(..words);
        }
    }

    #[inline]
    pub(crate) fn next_ended(&mut self) -> Option<Copied> {
        let batch = self.batches.front_mut().filter(|batch| batch.ended)?;
        let (tag, result) = (self.tags.pop_front()?, batch.error.clone().map_or(Ok(()), Err));
        batch.tags -= 1;
        if batch.tags == 0 {
            self.batches.pop_front();
        }
        Some(Copied { tag, result })
    }

    #[inline]
    pub(crate) fn has_words(&self) -> bool {
        !self.words.is_empty()
    }

    pub(crate) fn has_word_in(&self, addr: usize, end: usize) -> bool {
        self.words.iter().any(|(first, last)| addr < *last && *first < end)
    }
}
