//! A kernel that stays on the device while a scenario runs, where the job asks for one.

use crate::{BoxError, Host, Job, Spinner};

/// The parameter of a job that asks for it.
pub const RESIDENT: &str = "resident";

/// The kernel, if there is one.
#[derive(Debug)]
pub struct Resident(Option<Spinner>);

impl Resident {
    /// Starts it on PEs that have a device, if the job asks for it.
    pub fn start(job: &Job, host: &Host<'_>) -> Result<Resident, BoxError> {
        let wanted = job.param_or(RESIDENT, false)? && host.device().is_some();
        let kernel = wanted.then(|| host.spin()).transpose()?;
        if let Some(kernel) = &kernel {
            job.report(RESIDENT, if kernel.is_kernel() { "kernel" } else { "stand-in" })?;
        }
        Ok(Resident(kernel))
    }

    /// Ends it. Before the host's memory is given back, which waits for kernels.
    ///
    /// # Errors
    /// It had ended before.
    pub fn end(self) -> Result<(), BoxError> {
        self.0.map_or(Ok(()), Spinner::stop).map_err(BoxError::from)
    }
}
