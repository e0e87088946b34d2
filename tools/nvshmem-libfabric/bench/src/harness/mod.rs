//! The harness: a suite says what is measured, and everything else here starts its jobs and makes
//! figures of what they report.
//!
//! The launcher's process and the PEs of its jobs are the same program. The launcher knows a suite
//! by its options, a PE knows it by the job's parameters, and both ask it for the same cases.

pub(crate) mod fabric;
pub(crate) mod launch;
pub(crate) mod pace;
pub(crate) mod report;
pub(crate) mod scenario;
pub(crate) mod suite;
