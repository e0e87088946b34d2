//! The collective at hand of a job: which PEs have joined it, and what it gives them.

#[derive(Debug)]
pub(crate) struct Collective {
    parts: Vec<Option<Vec<u8>>>,
    pub(crate) completed: u64,
}

impl Collective {
    pub(crate) fn new(n_pes: usize) -> Self {
        Self { parts: vec![None; n_pes], completed: 0 }
    }

    /// Everybody's parts once all are there.
    pub(crate) fn join(&mut self, pe: usize, part: Vec<u8>) -> Option<Vec<u8>> {
        self.parts[pe] = Some(part);
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        self.completed += 1;
        Some(self.parts.iter_mut().filter_map(Option::take).flatten().collect())
    }

    pub(crate) fn doing(&self, pe: usize) -> String {
        let missing = self.parts.iter().position(Option::is_none).unwrap_or(pe);
        match self.parts[pe] {
            Some(_) => format!("waiting for PE {missing}"),
            None => format!("running, {} collectives done", self.completed),
        }
    }
}
