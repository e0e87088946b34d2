//! The collective at hand of a job: which PEs have joined it, and what it gives them.

#[derive(Debug)]
pub(crate) struct Collective {
    /// Bytes per PE of the one at hand, and the first PE that has joined it.
    open: Option<(usize, usize)>,
    parts: Vec<Option<Vec<u8>>>,
    /// PEs that have finished and will join no more.
    finished: Vec<bool>,
    /// Number of those that are completed.
    pub(crate) completed: u64,
}

impl Collective {
    pub(crate) fn new(n_pes: usize) -> Self {
        Self { open: None, parts: vec![None; n_pes], finished: vec![false; n_pes], completed: 0 }
    }

    pub(crate) fn join(&mut self, pe: usize, part: Vec<u8>) -> Result<Option<Vec<u8>>, String> {
        let (len, first) = *self.open.get_or_insert((part.len(), pe));
        if len != part.len() {
            let brought = part.len();
            return Err(format!("PE {pe} brings {brought} bytes to all, and PE {first} {len}"));
        }
        self.parts[pe] = Some(part);
        self.stuck()?;
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        self.open = None;
        self.completed += 1;
        Ok(Some(self.parts.iter_mut().filter_map(Option::take).flatten().collect()))
    }

    pub(crate) fn finish(&mut self, pe: usize) -> Result<(), String> {
        self.finished[pe] = true;
        self.stuck()
    }

    fn stuck(&self) -> Result<(), String> {
        match (self.open, self.finished.iter().position(|finished| *finished)) {
            (Some((_, first)), Some(gone)) => {
                Err(format!("PE {first} waits for PE {gone}, which has finished"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn doing(&self, pe: usize) -> String {
        let missing = self.parts.iter().position(Option::is_none).unwrap_or(pe);
        match self.parts[pe] {
            Some(_) => format!("waiting for PE {missing}"),
            None => format!("running, {} collectives done", self.completed),
        }
    }
}
