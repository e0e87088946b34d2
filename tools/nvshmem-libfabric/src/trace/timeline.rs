//! A job's timeline, in the trace event format of JSON that Perfetto and Chrome's own viewer open.
//!
//! A PE is a process there, its proxy thread and the threads of the program are two threads. A call
//! that has not returned has no end.

use std::io::{self, Write};

use nvshmem_recording::{Caller, Kind, Record};
use serde_json::{Value, json};

use super::job::{Job, name};

/// Writes the timeline of a job.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(job: &Job, out: impl Write) -> io::Result<()> {
    let mut events = Events { job, began: job.began(), out, first: true };
    let versions: Vec<Value> = job
        .pes
        .iter()
        .map(|(pe, of)| json!({"pe": pe, "version": of.version, "transport": of.transport}))
        .collect();
    let other = json!({"recordings": versions, "remarks": job.remarks()});
    write!(events.out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":[")?;
    for pe in job.pes.keys() {
        events.of_pe(*pe)?;
    }
    writeln!(events.out, "\n]}}")
}

struct Events<'a, W> {
    job: &'a Job,
    began: i128,
    out: W,
    first: bool,
}

impl<W: Write> Events<'_, W> {
    fn event(&mut self, event: &Value) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
        write!(self.out, "{comma}{event}")
    }

    /// Microseconds since the beginning.
    fn time(&self, pe: u32, time: u64) -> f64 {
        (self.job.moment(pe, time) - self.began) as f64 / 1000.0
    }

    fn of_pe(&mut self, pe: u32) -> io::Result<()> {
        let Some(recording) = self.job.pes.get(&pe) else { return Ok(()) };
        let title = format!("PE {pe} ({}, process {})", recording.program, recording.pid);
        self.event(&json!({"ph": "M", "name": "process_name", "pid": pe, "tid": 0, "args": {"name": title}}))?;
        self.event(&json!({"ph": "M", "name": "process_sort_index", "pid": pe, "tid": 0, "args": {"sort_index": pe}}))?;
        for (caller, title) in [(Caller::Proxy, "proxy thread"), (Caller::Host, "program")] {
            let event = json!({"ph": "M", "name": "thread_name", "pid": pe, "tid": caller as u8, "args": {"name": title}});
            self.event(&event)?;
        }
        for (number, record) in recording.records.iter().enumerate() {
            if record.kind != Kind::Progress {
                self.call(pe, number as u64 + recording.overwritten, record)?;
                continue;
            }
            let args = json!({"status": record.status});
            let time = self.time(pe, record.time);
            self.event(&json!({"ph": "i", "s": "p", "name": "progress has failed", "cat": "failure", "pid": pe, "tid": 0, "ts": time, "args": args}))?;
        }
        Ok(())
    }

    fn call(&mut self, pe: u32, number: u64, record: &Record) -> io::Result<()> {
        let mut args = json!({"record": number, "peer": record.pe});
        let place =
            |of: u32, address: u64| Value::from(self.job.place(of, address, pe, record.time));
        if record.bytes != 0 {
            args["bytes"] = record.bytes.into();
        }
        for (what, of, address) in [
            ("remote", record.pe, record.remote),
            ("local", pe, record.local),
            ("signal", record.pe, record.signal),
        ] {
            if address != 0 {
                args[what] = place(of, address);
            }
        }
        if record.blocking {
            args["waits"] = true.into();
        }
        if record.status != 0 {
            args["status"] = record.status.into();
        }
        let title = format!("{} PE {}", name(record), record.pe);
        let mut event = json!({
            "ph": "X", "name": title, "cat": "call", "pid": pe, "tid": record.caller as u8,
            "ts": self.time(pe, record.time),
        });
        match record.took {
            Some(took) => event["dur"] = (took as f64 / 1000.0).into(),
            None => {
                event["ph"] = "B".into();
                args["returned"] = false.into();
            }
        }
        event["args"] = args;
        self.event(&event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::{job, region};

    #[test]
    fn calls_and_what_has_not_returned() {
        let call = |time, kind| Record {
            time,
            took: Some(500),
            bytes: 8,
            remote: 4096,
            ..Record::new(kind, Caller::Proxy, 1)
        };
        let mut quiet = Record { took: None, ..call(9_000, Kind::Quiet) };
        quiet.bytes = 0;
        let failed = Record { status: 7, ..call(9_500, Kind::Progress) };
        let records =
            [call(1_000, Kind::Put), call(2_000, Kind::Put), call(6_000, Kind::Get), quiet, failed];
        let job = job(2, &[(0, &records), (1, &[])], &[region(4000, 1000)]);
        let mut text = Vec::new();
        write(&job, &mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
        assert_eq!(of("M").len(), 8);
        let calls = of("X");
        assert_eq!(
            (calls.len(), &calls[0]["name"], &calls[0]["dur"]),
            (3, &json!("put PE 1"), &json!(0.5))
        );
        assert_eq!(calls[0]["args"]["remote"], "region 0 + 0x60");
        assert_eq!(of("B")[0]["name"], "quiet PE 1");
        assert_eq!(of("i")[0]["args"]["status"], 7);
    }
}
