//! A page of counters as the plugin writes it, read with distrust: what is in it goes to a
//! terminal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use nvshmem_transport_libfabric::job::counters::FORMAT;
use nvshmem_transport_libfabric::job::counters::page::MOST_BYTES;
use serde::{Deserialize, Serialize};

/// The counters of one PE.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Page {
    pub(super) format: u32,
    pub(super) version: String,
    pub(super) pe: u32,
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) provider: String,
    /// When it was written, in milliseconds since 1970.
    pub(super) written_ms: u64,
    /// How old the counters were then.
    pub(super) age_ms: u64,
    pub(super) lanes: Vec<Lane>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lane {
    pub(super) lane: String,
    pub(super) rails: Vec<Rail>,
    pub(super) peers: Vec<Peer>,
    pub(super) peers_left_out: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Rail {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) counters: Counters,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) pe: u32,
    #[serde(flatten)]
    pub(super) counters: Counters,
}

/// Counters by their names.
pub(super) type Counters = BTreeMap<String, u64>;

impl Page {
    /// None where there is no such file any more.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, String> {
        // The directory is this user's alone, so it stays what it is. A pipe would have `top` wait
        // for who writes to it.
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(there) if !there.is_file() => return Err(String::from("it is no file")),
            _ => {}
        }
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| error.to_string())?,
        };
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(format!("it has more than {MOST_BYTES} bytes, which no page has"));
        }
        Self::parse(&bytes).map(Some)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let not_one = |error: serde_json::Error| format!("it is no page of counters: {error}");
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(not_one)?;
        let format = value["format"].as_u64();
        if format != Some(u64::from(FORMAT)) {
            let format =
                format.map_or(String::from("no format"), |format| format!("format {format}"));
            return Err(format!(
                "it has {format}, and this tool reads format {FORMAT}: it is another version's"
            ));
        }
        let mut page: Self = serde_json::from_value(value).map_err(not_one)?;
        let rails = page.lanes.iter_mut().flat_map(|lane| {
            lane.rails.iter_mut().map(|rail| &mut rail.name).chain([&mut lane.lane])
        });
        let texts = [&mut page.version, &mut page.program, &mut page.provider];
        texts.into_iter().chain(rails).for_each(print_as_it_is);
        Ok(page)
    }

    /// When the counters were taken, in milliseconds since 1970.
    pub(super) fn taken_ms(&self) -> u64 {
        self.written_ms.saturating_sub(self.age_ms)
    }
}

/// Takes out of a text what a terminal would take for a command.
fn print_as_it_is(text: &mut String) {
    *text = text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect();
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A page of a PE with two rails and one peer, after so many operations.
    pub(in crate::top) fn page(pe: u32, written_ms: u64, posted: u64) -> Page {
        let text = format!(
            r#"{{"format":1,"version":"0.1.0","pe":{pe},"pid":{pid},"program":"a b","provider":"tcp",
                "written_ms":{written_ms},"age_ms":100,"lanes":[{{"lane":"proxy","peers_left_out":3,
                "rails":[{{"name":"lo \"0\"","posted":{posted},"bytes":{bytes},"queued":1,"bytes_per_second":5}},
                         {{"name":"lo1","posted":0,"bytes":0}}],
                "peers":[{{"pe":{peer},"writes":{posted},"reads":2,"sent":3,"received":4}}]}}]}}"#,
            pid = 100 + pe,
            bytes = posted * 1000,
            peer = 1 - pe,
        );
        Page::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn pages_are_read_and_others_refused_with_the_reason() {
        assert_eq!(page(0, 1000, 7).lanes[0].rails[0].counters["posted"], 7);
        for (text, said) in [
            ("", "no page"),
            ("{", "no page"),
            ("[1]", "no format"),
            (r#"{"format":2}"#, "format 2"),
            (r#"{"format":1,"pe":-1}"#, "no page"),
        ] {
            let refused = Page::parse(text.as_bytes()).unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }

    #[test]
    fn a_pipe_is_no_page_and_nobody_waits_for_it() {
        let pipe = std::env::temp_dir().join(format!("tool-page-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (read, done) = std::sync::mpsc::channel();
        let path = pipe.clone();
        std::thread::spawn(move || read.send(Page::read(&path).map(drop)));
        let read = done.recv_timeout(std::time::Duration::from_secs(60));
        std::fs::remove_file(&pipe).unwrap();
        assert_eq!(read.expect("it waits for the pipe"), Err(String::from("it is no file")));
    }

    #[test]
    fn a_page_sends_no_commands_to_a_terminal() {
        let mut text = String::from("a\x1b]0;b\x07\n\u{9b}2J ü");
        print_as_it_is(&mut text);
        assert_eq!(text, "a?]0;b???2J ü");
    }
}
