//! The launcher's side of the bootstrap: who has joined the collective at hand, and what each PE
//! gets out of it. No I/O here.

use crate::wire::Collective;

/// The collectives of one job.
#[derive(Debug)]
pub(crate) struct Coordinator {
    /// The collective at hand: what was asked for, by the first PE to join.
    open: Option<Open>,
    /// What each PE has contributed to the collective at hand.
    parts: Vec<Option<Vec<u8>>>,
    /// PEs that have finished and will join no more.
    finished: Vec<bool>,
    /// Collectives completed.
    completed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    op: Collective,
    len: usize,
    first: usize,
}

impl Coordinator {
    pub(crate) fn new(n_pes: usize) -> Coordinator {
        Coordinator {
            open: None,
            parts: vec![None; n_pes],
            finished: vec![false; n_pes],
            completed: 0,
        }
    }

    /// A PE joins. When it is the last, the answer is the result for each PE.
    ///
    /// # Errors
    /// PEs that do not agree on the collective, or one that can never complete.
    pub(crate) fn join(
        &mut self,
        pe: usize,
        op: Collective,
        data: Vec<u8>,
    ) -> Result<Option<Vec<Vec<u8>>>, String> {
        let n = self.parts.len();
        if op == Collective::Alltoall && data.len() % n != 0 {
            return Err(format!("PE {pe}: {} bytes for an alltoall of {n} PEs", data.len()));
        }
        let open = *self.open.get_or_insert(Open { op, len: data.len(), first: pe });
        if (open.op, open.len) != (op, data.len()) {
            return Err(format!(
                "PE {pe} joined {} with {} bytes, PE {} {} with {} bytes",
                op.name(),
                data.len(),
                open.first,
                open.op.name(),
                open.len
            ));
        }
        if self.parts[pe].replace(data).is_some() {
            return Err(format!("PE {pe} joined the same {} twice", op.name()));
        }
        self.stuck()?;
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        self.open = None;
        self.completed += 1;
        let parts: Vec<Vec<u8>> = self.parts.iter_mut().filter_map(Option::take).collect();
        Ok(Some(match op {
            Collective::Barrier => vec![Vec::new(); n],
            Collective::Allgather => vec![parts.concat(); n],
            Collective::Alltoall => {
                let each = open.len / n;
                (0..n)
                    .map(|to| {
                        parts.iter().flat_map(|p| &p[to * each..(to + 1) * each]).copied().collect()
                    })
                    .collect()
            }
        }))
    }

    /// A PE has finished its scenario.
    ///
    /// # Errors
    /// Others are waiting for it in a collective.
    pub(crate) fn finish(&mut self, pe: usize) -> Result<(), String> {
        self.finished[pe] = true;
        self.stuck()
    }

    fn stuck(&self) -> Result<(), String> {
        let Some(open) = self.open else { return Ok(()) };
        match self.finished.iter().position(|f| *f) {
            Some(gone) => Err(format!(
                "PE {} waits in {}, but PE {gone} has finished without joining it",
                open.first,
                open.op.name()
            )),
            None => Ok(()),
        }
    }

    /// Collectives completed so far.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// What a PE was last seen doing, for reports about a PE that hangs.
    pub(crate) fn doing(&self, pe: usize) -> String {
        match self.open {
            Some(open) if self.parts[pe].is_some() => {
                let missing: Vec<String> = (0..self.parts.len())
                    .filter(|p| self.parts[*p].is_none())
                    .map(|p| p.to_string())
                    .collect();
                format!("waiting in {} for PE {}", open.op.name(), missing.join(", "))
            }
            _ => format!("running, {} collectives done", self.completed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{Allgather, Alltoall, Barrier};

    #[test]
    fn allgather_gives_everybody_all_parts_in_order() {
        let mut c = Coordinator::new(3);
        assert_eq!(c.join(2, Allgather, vec![2]), Ok(None));
        assert_eq!(c.join(0, Allgather, vec![0]), Ok(None));
        assert_eq!(c.join(1, Allgather, vec![1]), Ok(Some(vec![vec![0, 1, 2]; 3])));
        assert_eq!(c.join(1, Barrier, vec![]), Ok(None));
    }

    #[test]
    fn alltoall_transposes() {
        let mut c = Coordinator::new(2);
        assert_eq!(c.join(0, Alltoall, vec![0, 0, 1, 1]), Ok(None));
        let result = c.join(1, Alltoall, vec![10, 10, 11, 11]).unwrap().unwrap();
        assert_eq!(result, [vec![0, 0, 10, 10], vec![1, 1, 11, 11]]);
        assert!(c.join(0, Alltoall, vec![1]).is_err());
    }

    #[test]
    fn disagreement_is_named() {
        let mut c = Coordinator::new(2);
        c.join(0, Barrier, vec![]).unwrap();
        let text = c.join(1, Allgather, vec![1]).unwrap_err();
        assert!(text.contains("PE 1 joined allgather") && text.contains("PE 0 barrier"), "{text}");
        let mut c = Coordinator::new(2);
        c.join(0, Allgather, vec![1]).unwrap();
        assert!(c.join(1, Allgather, vec![1, 2]).is_err());
        let mut c = Coordinator::new(2);
        c.join(0, Barrier, vec![]).unwrap();
        assert!(c.join(0, Barrier, vec![]).is_err());
    }

    #[test]
    fn a_collective_without_a_finished_pe_fails_at_once() {
        let mut c = Coordinator::new(2);
        c.finish(1).unwrap();
        assert!(c.join(0, Barrier, vec![]).unwrap_err().contains("PE 1 has finished"));
        let mut c = Coordinator::new(2);
        c.join(0, Barrier, vec![]).unwrap();
        assert!(c.doing(0).contains("for PE 1"), "{}", c.doing(0));
        assert!(c.finish(1).is_err());
    }
}
