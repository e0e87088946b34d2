//! Lists under way in one direction, in the order of starting.

use std::collections::VecDeque;

use crate::copy::engine::MAX_LISTS;
use engine::port::PortError;
use engine::port::copies::{Copied, MAX_BATCH_COPIES, MAX_WORDS};

/// Lists of one direction, perhaps on several engines. Ends are told in order, tag by tag.
#[derive(Debug)]
pub(crate) struct Flight {
    lists: VecDeque<List>,
    tags: VecDeque<u32>,
    /// Address and end of words that lists which have not ended store.
    words: VecDeque<(usize, usize)>,
    next: u32,
}

#[derive(Debug)]
struct List {
    number: u32,
    tags: usize,
    words: usize,
    ended: bool,
    error: Option<PortError>,
}

impl Flight {
    pub(crate) fn new() -> Self {
        Self {
            lists: VecDeque::with_capacity(MAX_LISTS),
            tags: VecDeque::with_capacity(MAX_LISTS * MAX_BATCH_COPIES),
            words: VecDeque::with_capacity(MAX_LISTS * MAX_WORDS),
            next: 0,
        }
    }

    /// How many tags the next list may have.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        if self.lists.len() < MAX_LISTS { MAX_BATCH_COPIES } else { 0 }
    }

    /// The number of the next list.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Takes the next list in, and what has gone wrong with some of it already. There is room.
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
        self.lists.push_back(List { number: self.next, tags, words, ended: false, error });
        self.next = self.next.wrapping_add(1);
    }

    /// The number of the oldest list that has not ended.
    #[inline]
    pub(crate) fn under_way(&self) -> Option<u32> {
        self.lists.iter().find(|list| !list.ended).map(|list| list.number)
    }

    fn oldest(&mut self) -> Option<&mut List> {
        self.lists.iter_mut().find(|list| !list.ended)
    }

    /// A part of the oldest list that has not ended has failed.
    pub(crate) fn fail(&mut self, error: PortError) {
        if let Some(list) = self.oldest() {
            list.error.get_or_insert(error);
        }
    }

    /// The oldest list has ended that had not.
    pub(crate) fn end(&mut self) {
        if let Some(list) = self.oldest() {
            list.ended = true;
            let words = list.words;
            self.words.drain(..words);
        }
    }

    /// The next tag of what has ended.
    #[inline]
    pub(crate) fn next_told(&mut self) -> Option<Copied> {
        let list = self.lists.front_mut().filter(|list| list.ended)?;
        let (tag, result) = (self.tags.pop_front()?, list.error.clone().map_or(Ok(()), Err));
        list.tags -= 1;
        if list.tags == 0 {
            self.lists.pop_front();
        }
        Some(Copied { tag, result })
    }

    /// Whether words are on their way.
    #[inline]
    pub(crate) fn has_words(&self) -> bool {
        !self.words.is_empty()
    }

    /// Whether a word is on its way that has a byte in common with these.
    pub(crate) fn has_word_in(&self, addr: usize, end: usize) -> bool {
        self.words.iter().any(|(first, last)| addr < *last && *first < end)
    }
}
