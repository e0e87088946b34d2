//! Publishers whose proxy thread is the test.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::job::asked::tests::alone;
use crate::logging::heard::heard;
use engine::ids::Pe;
use engine::rails::counters::{RailCounters, StagedCounters};

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(60);

fn scratch(name: &str) -> PathBuf {
    let name = format!("nvshmem-publisher-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).unwrap();
    path
}

fn lane(lane: &'static str, posted: u64) -> LaneCounters {
    let rails = vec![(String::from("eth0"), RailCounters { posted, ..RailCounters::default() })];
    let peer = PeerCounters { pe: Pe(7), writes: 1, reads: 2, sent: 3, received: 4 };
    let staged = StagedCounters::default();
    LaneCounters { lane, me: Pe(3), rails, peers: vec![peer], staged }
}

fn snapshot(posted: u64) -> Snapshot {
    Snapshot { proxy: lane("proxy", posted), host: lane("host", 1) }
}

/// Answers what is asked until it is so.
fn answer_until(publisher: &Publisher, posted: u64, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        publisher.answer(|_| snapshot(posted));
        assert!(begun.elapsed() < DEADLINE, "it does not come");
        std::thread::yield_now();
    }
}

fn posted(counters: &Value) -> Option<u64> {
    counters["lanes"][0]["rails"][0]["posted"].as_u64()
}

/// The one page of a directory.
fn page_in(directory: &Path) -> Option<Value> {
    let pages = page::list(directory).unwrap_or_default();
    let whole: Vec<_> = pages.iter().filter(|(path, _)| page::is_whole(path)).collect();
    assert!(whole.len() < 2, "{pages:?}");
    let text = fs::read_to_string(&whole.first()?.0).ok()?;
    serde_json::from_str(&text).ok()
}

#[test]
fn a_page_is_there_while_a_job_runs_and_has_what_its_proxy_thread_answers() {
    let _alone = alone();
    let directory = scratch("page");
    let pages = directory.join("pages");
    let settings =
        Settings { counters_page: CountersPage::In(pages.clone()), ..Settings::default() };
    let (publisher, said) = heard(|| Publisher::new(&settings, None, "some", snapshot(5)).unwrap());
    assert!(said.contains(&format!("counters are published in {}", pages.display())), "{said}");
    let begun = Instant::now();
    while page_in(&pages).and_then(|page| posted(&page)) != Some(5) {
        assert!(begun.elapsed() < DEADLINE, "no page is written at once");
        std::thread::yield_now();
    }
    answer_until(&publisher, 9, || page_in(&pages).and_then(|page| posted(&page)) == Some(9));
    let page = page_in(&pages).unwrap();
    let number = |name: &str| page[name].as_u64().unwrap();
    assert_eq!((number("pe"), number("pid")), (3, std::process::id().into()));
    assert_eq!((page["provider"].as_str(), number("interval_ms")), (Some("some"), 500));
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(page["program"].as_str(), Some(name.trim_end()));
    assert_eq!(page["version"].as_str(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(page["lanes"][1]["peers_left_out"].as_u64(), Some(0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(now - number("written_ms") < 2 * DEADLINE.as_millis() as u64);
    assert!(number("age_ms") < 2 * DEADLINE.as_millis() as u64);

    publisher.end();
    assert_eq!(page::list(&pages).unwrap(), []);
    publisher.answer(|_| panic!("nobody asks any more"));
    drop(publisher);
    // Without an end before.
    let publisher = Publisher::new(&settings, None, "some", snapshot(5)).unwrap();
    let shared = Arc::clone(&publisher.shared);
    drop(publisher);
    assert_eq!(Arc::strong_count(&shared), 1, "its thread has ended");
    assert_eq!(page::list(&pages).unwrap(), []);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_is_written_at_each_signal_and_not_before() {
    let _alone = alone();
    let directory = scratch("signal");
    let file = directory.join("counters.json");
    let counters_signal = CountersSignal::Usr2;
    let counters_page = CountersPage::None;
    let settings = Settings { counters_page, counters_signal, ..Settings::default() };
    let publisher = Publisher::new(&settings, Some(file.clone()), "some", snapshot(5)).unwrap();
    let latest = || publisher.shared.state().latest.proxy.rails[0].1.posted;
    answer_until(&publisher, 9, || latest() == 9);
    assert!(!file.exists());
    let came = signal::came();
    // Twice the same is listened to once.
    signal::listen(counters_signal).unwrap();
    // SAFETY: the publisher has a handler for it.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    assert_eq!(signal::came(), came + 1);
    answer_until(&publisher, 9, || file.exists());
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((posted(&written), written["pe"].as_u64()), (Some(9), Some(3)));
    drop(publisher);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_cannot_be_published_is_a_warning_and_what_nobody_asks_for_is_none() {
    let none = Settings {
        counters_page: CountersPage::None,
        counters_signal: CountersSignal::None,
        ..Settings::default()
    };
    let file = || Some(PathBuf::from("/nowhere/counters.json"));
    // Ignored by the program, which has a reason.
    // SAFETY: a disposition that calls nothing, of a signal that nobody sends.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
    let page = CountersPage::In(PathBuf::from("/nowhere/pages"));
    for (settings, file, part) in [
        (none.clone(), file(), ""),
        (Settings { counters_page: page, ..none.clone() }, file(), "no counters are published in"),
        (
            Settings { counters_signal: CountersSignal::Usr2, ..none.clone() },
            None,
            "COUNTERS_SIGNAL has no effect",
        ),
        (
            Settings { counters_signal: CountersSignal::Usr1, ..none },
            file(),
            "is not listened to: the program has a handler of its own",
        ),
    ] {
        let (publisher, said) = heard(|| Publisher::new(&settings, file, "some", snapshot(5)));
        assert!(publisher.is_none(), "{part}");
        assert!(said.contains(part) && said.is_empty() == part.is_empty(), "{said}");
    }
    // SAFETY: what it was before.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_DFL) };
}

#[test]
fn the_log_has_every_rail_and_peer_and_what_was_staged_if_anything_was() {
    let ((), said) = heard(|| snapshot(5).log());
    for part in [
        "PE 3, proxy lane, rail 0 (eth0): 5 segments posted",
        "PE 3, host lane, rail 0 (eth0): 1 segments posted",
        "PE 3, proxy lane, with PE 7: 1 writes, 2 reads, 3 messages sent, 4 received",
        "PE 3, host lane, with PE 7",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert!(!said.contains("staged:"), "{said}");
    let mut staged = snapshot(5);
    staged.host.staged.by_cpu = 17;
    let ((), said) = heard(|| staged.log());
    assert!(said.contains("PE 3, host lane, staged: ") && said.contains("17 copied"), "{said}");
}

#[test]
fn the_largest_page_has_room_and_the_busiest_peers() {
    let rail = RailCounters {
        posted: u64::MAX,
        bytes: u64::MAX,
        completed: u64::MAX,
        again: u64::MAX,
        queued: u64::MAX,
        by_load: u64::MAX,
        bulk_bytes: u64::MAX,
        rate: u64::MAX,
        max_in_flight: u32::MAX,
        failures: u64::MAX,
        reissued: u64::MAX,
        resent: u64::MAX,
        foreign: u64::MAX,
    };
    let peer = |pe: u32| {
        // The later, the busier.
        let (writes, rest) = (u32::MAX - 20_000 + pe, u32::MAX);
        PeerCounters { pe: Pe(pe), writes, reads: rest, sent: rest, received: rest }
    };
    let lane = LaneCounters {
        lane: "proxy",
        me: Pe(u32::MAX),
        rails: vec![("x".repeat(64), rail); 32],
        peers: (0..10_000).map(peer).collect(),
        staged: StagedCounters {
            by_fabric: u64::MAX,
            in_messages: u64::MAX,
            shared: u64::MAX,
            by_cpu: u64::MAX,
        },
    };
    let (cut, left_out) = busiest(&lane);
    assert_eq!((cut.peers.len(), left_out), (MOST_PEERS, 10_000 - MOST_PEERS));
    assert_eq!(cut.peers[0].pe.0 as usize, 10_000 - MOST_PEERS);
    let text = cut.to_json().to_string();
    assert!((text.len() as u64) < page::MOST_BYTES / 2 - 1000, "{}", text.len());
}
