use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::*;
use nvshmem_recording::{Caller, Kind, Recording};

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("nvshmem-recording-{name}-{}", std::process::id()))
}

fn read(path: &Path) -> Recording {
    Recording::decode(&fs::read(path).unwrap()).unwrap()
}

fn put(pe: u32) -> Record {
    Record { bytes: 8, ..Record::new(Kind::Put, Caller::Proxy, pe) }
}

#[test]
fn what_is_recorded_is_in_the_file_at_once_and_the_file_is_as_long_as_that_in_the_end() {
    let path = scratch("at-once");
    fs::write(&path, "what was there before").unwrap();
    let recorder = Recorder::create(&path, 1000, (2, 5), "na\u{ef}ve").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    recorder.registered(4096, 100, true);
    let begun = recorder.begin(put(1));
    let seen = read(&path);
    assert_eq!((seen.pe, seen.n_pes, seen.ended), (2, 5, None));
    assert_eq!((seen.transport.as_str(), seen.pid), ("na\u{ef}ve", std::process::id()));
    assert_eq!(seen.version, env!("CARGO_PKG_VERSION"));
    assert_eq!((seen.regions[0].base, seen.regions[0].local_only), (4096, true));
    assert_eq!((seen.records[0].took, seen.records[0].pe), (None, 1), "it has not returned");
    recorder.end(begun, -3);
    let seen = read(&path).records[0];
    assert!(seen.took.is_some());
    assert_eq!((seen.status, seen.pe, seen.bytes), (-3, 1, 8));
    drop(recorder);
    assert!(read(&path).ended.is_some());
    assert_eq!(fs::metadata(&path).unwrap().len(), file_bytes(MOST_REGIONS, 1));
    fs::remove_file(&path).unwrap();
}

#[test]
fn the_newest_are_kept_and_what_returns_late_changes_no_other() {
    let path = scratch("newest");
    let recorder = Recorder::create(&path, 4, (0, 1), "").unwrap();
    let begun: Vec<Begun> = (0..10).map(|pe| recorder.begin(put(pe))).collect();
    begun.iter().for_each(|begun| recorder.end(*begun, 1));
    (0..2000).for_each(|at| recorder.registered(at, 1, false));
    drop(recorder);
    let seen = read(&path);
    assert_eq!((seen.overwritten, seen.torn), (6, 0));
    assert_eq!(seen.records.iter().map(|record| record.pe).collect::<Vec<_>>(), [6, 7, 8, 9]);
    assert!(seen.records.iter().all(|record| record.status == 1));
    assert_eq!((seen.regions.len(), seen.regions_left_out), (1024, 976));
    fs::remove_file(&path).unwrap();
}

#[test]
fn threads_record_beside_one_another() {
    let path = scratch("threads");
    let recorder = Recorder::create(&path, 10_000, (0, 1), "").unwrap();
    std::thread::scope(|scope| {
        for pe in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || {
                for _ in 0..1000 {
                    let begun = recorder.begin(Record::new(Kind::Fence, Caller::Host, pe));
                    recorder.end(begun, 0);
                }
            });
        }
    });
    drop(recorder);
    let seen = read(&path);
    let of =
        |pe| seen.records.iter().filter(move |record| record.pe == pe && record.took.is_some());
    assert!((0..4).all(|pe| of(pe).count() == 1000), "{}", seen.torn);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_child_of_fork_does_not_end_its_parents_recording() {
    let path = scratch("fork");
    let recorder = Recorder::create(&path, 1000, (0, 1), "").unwrap();
    crate::entries::notice_children();
    let whole = fs::metadata(&path).unwrap().len();
    // SAFETY: the child lets go of a file and a mapping, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(recorder);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: a child of this process, and a place for how it ended.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!((fs::metadata(&path).unwrap().len(), read(&path).ended), (whole, None));
    drop(recorder);
    assert!(read(&path).ended.is_some());
    fs::remove_file(&path).unwrap();
}

#[test]
fn what_cannot_be_recorded_is_told() {
    let why = |file, records, n_pes| Recorder::of(file, records, (0, n_pes), "").unwrap_err();
    let path = scratch("no-%p").display().to_string();
    assert!(why(None, None, 1).contains("names no file"));
    assert!(why(Some("all.trace"), None, 2).contains("no %p in all.trace"));
    assert!(why(Some("/nowhere/at-all/%p"), None, 1).contains("/nowhere/at-all/0 cannot be made"));
    for records in ["", "1K", "1023", "67108865", "-1"] {
        assert!(why(Some(&path), Some(records), 1).contains("from 1024 to 67108864"), "{records}");
    }
    assert!(!scratch("no-0").exists());
}

/// Marks in the file have 32 bits, which calls fill within the hour.
#[test]
fn numbers_of_records_go_round_and_none_is_that_of_an_open_one() {
    let path = scratch("round");
    let recorder = Recorder::create(&path, 4, (0, 2), "").unwrap();
    let last = u64::from(u32::MAX);
    recorder.words()[at::RECORDS].store(last - 3, Ordering::Relaxed);
    for at in 0..6 {
        let put = Record { bytes: at, ..Record::new(Kind::Put, Caller::Proxy, 1) };
        recorder.end(recorder.begin(put), 0);
        let read = Recording::decode(&fs::read(&path).unwrap()).unwrap();
        let kept: Vec<u64> = read.records.iter().map(|record| record.bytes).collect();
        assert_eq!(kept, (at.saturating_sub(3)..=at).collect::<Vec<_>>());
    }
    // The process ends in the middle of the one of the last number.
    let open = recorder.place(last).last().unwrap();
    open.store(0, Ordering::Relaxed);
    let read = Recording::decode(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((read.torn, read.records.len()), (1, 3));
    drop(recorder);
    fs::remove_file(path).unwrap();
}
