//! The collective at hand of a job: which PEs have joined it, and what it gives them.

#[derive(Debug)]
pub(crate) struct Collective {
    /// Name of the one at hand, its bytes per PE, and the first PE that has joined it.
    open: Option<(String, usize, usize)>,
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

    pub(crate) fn join(
        &mut self,
        pe: usize,
        name: String,
        part: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, String> {
        let len = part.len();
        let open = self.open.get_or_insert_with(|| (name.clone(), len, pe));
        let (open_name, open_len, first) = open;
        if (&*open_name, *open_len) != (&name, len) {
            return Err(format!(
                "PE {pe} joined {name} with {len} bytes, PE {first} {open_name} with {open_len} bytes"
            ));
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
        match (&self.open, self.finished.iter().position(|finished| *finished)) {
            (Some((name, _, first)), Some(gone)) => Err(format!(
                "PE {first} waits in {name}, but PE {gone} has finished without joining it"
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn doing(&self, pe: usize) -> String {
        match &self.open {
            Some((name, ..)) if self.parts[pe].is_some() => {
                let parts = self.parts.iter().enumerate().filter(|(_, part)| part.is_none());
                let missing: Vec<String> = parts.map(|(pe, _)| pe.to_string()).collect();
                format!("waiting in {name} for PE {}", missing.join(", "))
            }
            _ => format!("running, {} collectives done", self.completed),
        }
    }
}
