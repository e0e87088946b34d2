use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::format::Recording;
use super::*;

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
    let recorder = Recorder::create(&path, 1000, Pe(2), 5, "na\u{ef}ve").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    recorder.registered(4096, 100, true);
    let begun = recorder.begin(put(1));
    let seen = read(&path);
    assert_eq!((seen.pe, seen.n_pes, seen.ended), (2, 5, None));
    assert_eq!((seen.provider.as_str(), seen.pid), ("na\u{ef}ve", std::process::id()));
    assert_eq!(seen.version, env!("CARGO_PKG_VERSION"));
    assert_eq!((seen.regions[0].base, seen.regions[0].local_only), (4096, true));
    assert_eq!((seen.records[0].took, seen.records[0].pe), (None, 1), "it has not returned");
    recorder.end(begun, -3, true);
    let seen = read(&path).records[0];
    assert!(seen.took.is_some());
    assert_eq!((seen.status, seen.pe, seen.bytes, seen.ahead), (-3, 1, 8, true));
    drop(recorder);
    assert!(read(&path).ended.is_some());
    assert_eq!(fs::metadata(&path).unwrap().len(), file_bytes(MOST_REGIONS, 1));
    fs::remove_file(&path).unwrap();
}

#[test]
fn the_newest_are_kept_and_what_returns_late_changes_no_other() {
    let path = scratch("newest");
    let recorder = Recorder::create(&path, 4, Pe(0), 1, "").unwrap();
    let begun: Vec<Begun> = (0..10).map(|pe| recorder.begin(put(pe))).collect();
    begun.iter().for_each(|begun| recorder.end(*begun, 1, false));
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
fn ends_are_recorded_once_and_for_what_was_begun() {
    let path = scratch("ends");
    let recorder = Recorder::create(&path, 64, Pe(0), 4, "").unwrap();
    recorder.begin(put(1));
    recorder.begin(Record { op: 9, ..Record::new(Kind::Amo, Caller::Proxy, 1) });
    recorder.begin(Record::new(Kind::Get, Caller::Proxy, 2));
    // Of the host's lane nobody looks.
    recorder.begin(Record::new(Kind::Get, Caller::Host, 3));
    let left = |puts, words, gets| UnderWay { puts, words, gets, held_back: false };
    recorder.look(|_| left(true, true, true));
    recorder.look(|_| left(false, true, true));
    recorder.look(|_| left(false, true, false));
    recorder.look(|_| left(false, false, false));
    recorder.look(|_| left(false, false, false));
    let seen: Vec<(u32, u8)> = read(&path)
        .records
        .iter()
        .filter(|record| record.kind == Kind::Done)
        .map(|record| (record.pe, record.op))
        .collect();
    assert_eq!(seen, [(1, done::PUTS), (2, done::GETS), (1, done::WORDS)]);
    drop(recorder);
    fs::remove_file(&path).unwrap();
}

#[test]
fn threads_record_beside_one_another() {
    let path = scratch("threads");
    let recorder = Recorder::create(&path, 10_000, Pe(0), 1, "").unwrap();
    std::thread::scope(|scope| {
        for pe in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || {
                for _ in 0..1000 {
                    let begun = recorder.begin(Record::new(Kind::Fence, Caller::Host, pe));
                    recorder.end(begun, 0, false);
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
fn a_file_that_cannot_be_made_is_no_recording() {
    let settings = |path: &str| Settings { trace: Some(path.into()), ..Settings::default() };
    assert!(Recorder::of(&settings("/nowhere/at-all/%p"), Pe(0), 1, "").is_none());
    assert!(Recorder::of(&Settings::default(), Pe(0), 1, "").is_none());
}

/// Marks in the file have 32 bits, which calls fill within the hour.
#[test]
fn numbers_of_records_go_round_and_none_is_that_of_an_open_one() {
    let path = scratch("round");
    let recorder = Recorder::create(&path, 4, Pe(0), 2, "").unwrap();
    let last = u64::from(u32::MAX);
    recorder.words()[at::RECORDS].store(last - 3, Ordering::Relaxed);
    for at in 0..6 {
        let put = Record { bytes: at, ..Record::new(Kind::Put, Caller::Proxy, 1) };
        recorder.end(recorder.begin(put), 0, false);
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
