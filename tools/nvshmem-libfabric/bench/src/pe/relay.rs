//! The control of PEs on several hosts: the main threads, which have nothing else to do, pass
//! commands and answers on by the bootstrap, which knows neither the transport nor a page that all
//! could map.
//!
//! Each command takes two collectives: PE 0's command to all, and how it ended on each to all.

use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use nvshmem_sim::{BoxError, Job};

use super::Heard;
use super::control::{Command, Control, TEXT};

/// How often a main thread looks whether its proxy thread has done a command.
const LOOK: Duration = Duration::from_micros(50);

/// Bytes of a command on its way: its length, and room for its text.
const FRAME: usize = 8 + TEXT;

/// Passes on until the last command, or until a PE has failed. On PE 0 values are reported as they
/// come.
///
/// # Errors
/// The bootstrap's.
pub(super) fn serve(job: &Job, page: Control, heard: &Receiver<Heard>) -> Result<(), BoxError> {
    if job.pe() == 0 { give(job, page, heard) } else { take(job, page) }
}

fn give(job: &Job, mut page: Control, heard: &Receiver<Heard>) -> Result<(), BoxError> {
    let mut over = false;
    for heard in heard {
        match heard {
            Heard::Value(name, value) => job.report(&name, value)?,
            Heard::Asked if over => {}
            Heard::Asked => {
                let text = page.read().unwrap_or_default();
                pass(job, &text)?;
                let good = job.bootstrap().allgather(&[1])?;
                over = is_last(&text) || good.contains(&0);
                page.answered(&good);
            }
        }
    }
    // The part has ended before its last command.
    if !over {
        pass(job, &[])?;
    }
    Ok(())
}

fn take(job: &Job, mut page: Control) -> Result<(), BoxError> {
    loop {
        let text = pass(job, &[])?;
        if text.is_empty() {
            return Ok(());
        }
        page.write(&text);
        let good = loop {
            match page.is_done() {
                Ok(false) => thread::sleep(LOOK),
                Ok(true) => break 1,
                Err(_) => break 0,
            }
        };
        if job.bootstrap().allgather(&[good])?.contains(&0) || is_last(&text) {
            return Ok(());
        }
    }
}

/// What PE 0 has to say, to all.
fn pass(job: &Job, text: &[u8]) -> Result<Vec<u8>, BoxError> {
    let mut frame = [0; FRAME];
    frame[..8].copy_from_slice(&text.len().to_le_bytes());
    frame[8..8 + text.len()].copy_from_slice(text);
    let frames = job.bootstrap().allgather(&frame)?;
    let (length, rest) = frames.split_first_chunk().ok_or("an empty allgather")?;
    let text = rest.get(..usize::from_le_bytes(*length)).ok_or("a command that is cut")?;
    Ok(text.to_vec())
}

fn is_last(text: &[u8]) -> bool {
    serde_json::from_slice(text).is_ok_and(|command: Command| command == Command::Stop)
}
