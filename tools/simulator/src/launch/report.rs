use std::fmt;
use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The scenario returned success and the process ended in order.
    Finished,
    Failed(String),
    /// The process exited by itself, before the scenario returned or badly after that.
    Exited(i32),
    Signal(i32),
    /// The launcher killed it, at the job's deadline or because another PE had failed; what it was
    /// doing.
    Killed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Finished => write!(f, "finished"),
            Outcome::Failed(text) => write!(f, "failed: {text}"),
            Outcome::Exited(code) => write!(f, "exited with status {code} by itself"),
            Outcome::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Outcome::Killed(doing) => write!(f, "was killed ({doing})"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct PeReport {
    pub pe: u32,
    pub outcome: Outcome,
    pub output: Vec<String>,
    pub values: Vec<(String, String)>,
}

impl PeReport {
    pub fn text(&self) -> String {
        self.output.iter().map(|line| format!("{line}\n")).collect()
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Debug)]
pub struct JobReport {
    pub pes: Vec<PeReport>,
    pub first_failure: Option<u32>,
    pub cause: Option<String>,
    /// From the first start to the last end.
    pub elapsed: Duration,
}

impl JobReport {
    pub fn succeeded(&self) -> bool {
        self.cause.is_none() && self.pes.iter().all(|pe| pe.outcome == Outcome::Finished)
    }

    /// The report as an error unless every PE finished.
    pub fn check(self) -> Result<JobReport, JobFailed> {
        if self.succeeded() { Ok(self) } else { Err(JobFailed(Box::new(self))) }
    }
}

impl fmt::Display for JobReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cause) = &self.cause {
            writeln!(f, "job ended after {:.3} s: {cause}", self.elapsed.as_secs_f64())?;
        }
        for pe in &self.pes {
            writeln!(f, "PE {} {}", pe.pe, pe.outcome)?;
        }
        for pe in &self.pes {
            for line in &pe.output {
                writeln!(f, "[PE {}] {line}", pe.pe)?;
            }
        }
        Ok(())
    }
}

/// A job that did not succeed; its text is the whole report.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct JobFailed(pub Box<JobReport>);
