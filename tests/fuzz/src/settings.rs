//! The text of settings. Each line of an input is the number of a setting and its value, or, from a
//! certain number on, what follows our prefix in the name of a variable.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use nvshmem_transport_libfabric::settings::{Settings, Source};

use crate::Target;

pub(crate) const TARGET: Target = Target { name: "settings", short: 20, run, seeds };

fn run(input: &[u8]) {
    let known: Vec<&str> = Settings::default().describe().iter().map(|row| row.name).collect();
    let variable = |line: &[u8]| {
        let (number, value) = line.split_first()?;
        let name = match known.get(usize::from(*number)) {
            Some(name) => (*name).to_owned(),
            None => format!("NVSHMEM_LIBFABRIC_{}", String::from_utf8_lossy(value)),
        };
        Some((name, OsStr::from_bytes(value).to_owned()))
    };
    let lines = input.split(|byte| *byte == b'\n');
    match Settings::load(lines.filter_map(variable)) {
        Ok((settings, notices)) => {
            assert!(notices.iter().all(|notice| !notice.text.is_empty()));
            // What is shown, is what a user would write for it.
            let shown = settings.describe();
            let set = shown.iter().filter(|row| row.source == Source::Environment);
            let again = Settings::load(set.map(|row| (row.name, &row.value)));
            let (again, _) = again.unwrap_or_else(|error| panic!("{error}: {shown:?}"));
            let values = |settings: &Settings| -> Vec<String> {
                settings.describe().into_iter().map(|row| row.value).collect()
            };
            assert_eq!(values(&again), values(&settings));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let rows = Settings::default().describe();
    let own = rows.iter().zip(0u8..).map(|(row, at)| [&[at], row.value.as_bytes()].concat());
    let others = ["64K", "1.5", "^eth0,eth1", "eth0,eth0", "-1", "4G", "127.0.0.1", "true"];
    let all = (0..rows.len() as u8).zip(others.iter().cycle());
    own.chain(all.map(|(at, value)| [&[at], value.as_bytes()].concat()))
        .chain([b"\xffPROVIDR".to_vec()])
        .collect()
}
