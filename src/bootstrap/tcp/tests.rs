use std::io::{Read, Write};

use std::cell::Cell;

use super::*;
use crate::bootstrap::guesses::{FREE_GUESSES, PENALTY};

thread_local! {
    /// Threads that are still refused to the PE 0 of this thread.
    static REFUSED: Cell<u32> = const { Cell::new(0) };
}

pub(super) fn refuse_some(builder: thread::Builder) -> thread::Builder {
    match REFUSED.get() {
        0 => builder,
        left => {
            REFUSED.set(left - 1);
            builder.stack_size(1 << 60)
        }
    }
}

fn options(at: SocketAddr, me: u32, n_pes: u32) -> TcpOptions {
    let patience = Duration::from_secs(20);
    TcpOptions { address: at.to_string(), me, n_pes, job: 7, patience }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

type Center<'scope> = thread::ScopedJoinHandle<'scope, TcpBootstrap>;

fn center<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    (listener, at): (TcpListener, SocketAddr),
    n_pes: u32,
) -> Center<'scope> {
    scope.spawn(move || TcpBootstrap::center(options(at, 0, n_pes), listener, &|_| true).unwrap())
}

fn others_come(center: Center<'_>, at: SocketAddr) {
    thread::scope(|scope| {
        let join = |me| scope.spawn(move || TcpBootstrap::join(options(at, me, 3)).unwrap());
        let others = [1, 2].map(join).map(|other| other.join().unwrap());
        all_meet(others.into_iter().chain([center.join().unwrap()]));
    });
}

fn all_meet(pes: impl IntoIterator<Item = TcpBootstrap>) {
    thread::scope(|scope| {
        let meets = |mut pe: TcpBootstrap| drop(scope.spawn(move || pe.barrier().unwrap()));
        pes.into_iter().for_each(meets);
    });
}

fn job<R: Send>(n_pes: u32, pe: impl Fn(TcpBootstrap) -> R + Sync) -> Vec<R> {
    let (listener, at) = listener();
    thread::scope(|scope| {
        let others: Vec<_> = (1..n_pes)
            .map(|me| {
                let pe = &pe;
                scope.spawn(move || pe(TcpBootstrap::join(options(at, me, n_pes)).unwrap()))
            })
            .collect();
        let center = TcpBootstrap::center(options(at, 0, n_pes), listener, &|_| true).unwrap();
        let first = pe(center);
        std::iter::once(first)
            .chain(others.into_iter().map(|other| other.join().unwrap()))
            .collect()
    })
}

#[test]
fn missing_pes_are_named() {
    let (listener, at) = listener();
    let impatient = |me| TcpOptions { patience: Duration::from_millis(400), ..options(at, me, 6) };
    thread::scope(|scope| {
        let third = scope.spawn(move || TcpBootstrap::join(impatient(3)));
        let failed =
            TcpBootstrap::center(impatient(0), listener, &|_| true).unwrap_err().to_string();
        assert!(failed.contains("missing"), "{failed}");
        assert!(
            failed.contains("PE 1, PE 2, PE 4, PE 5") || failed.contains("PEs 1 to 5"),
            "{failed}"
        );
        assert!(third.join().unwrap().is_err());
    });
    assert_eq!(ranks([1, 2, 3, 5, 8, 9].into_iter()), "PEs 1 to 3, PE 5, PE 8, PE 9");
}

#[test]
fn unreachable_center_names_address() {
    let (listener, at) = listener();
    drop(listener);
    let impatient = TcpOptions { patience: Duration::from_millis(200), ..options(at, 1, 2) };
    let failed = TcpBootstrap::join(impatient).unwrap_err().to_string();
    assert!(failed.contains("PE 1 could not connect to PE 0") && failed.contains(&at.to_string()));
    let nameless = TcpOptions { address: String::from("host"), ..options(at, 1, 2) };
    let alone = TcpOptions { n_pes: 1, me: 0, ..nameless.clone() };
    assert_eq!(TcpBootstrap::join(alone).unwrap().allgather(&[5]).unwrap(), [5], "needs no port");
    let failed = TcpBootstrap::join(nameless).unwrap_err().to_string();
    assert!(failed.contains("HOST:PORT is accepted"), "{failed}");
    assert!(TcpBootstrap::join(options(at, 2, 2)).is_err());
    let failed = TcpBootstrap::join(options(at, 0, u32::MAX)).unwrap_err().to_string();
    assert!(failed.contains("at most 65536"), "{failed}");
}

#[test]
fn strangers_are_refused_without_harm() {
    let (listener, at) = listener();
    let refusal = |options| TcpBootstrap::join(options).unwrap_err().to_string();
    thread::scope(|scope| {
        let center = center(scope, (listener, at), 3);
        let mut browser = TcpStream::connect(at).unwrap();
        browser.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // A reset is an end as well.
        let _ = browser.read_to_end(&mut answer);
        assert!(answer.is_empty());
        drop(TcpStream::connect(at).unwrap());

        let other_size = refusal(options(at, 1, 4));
        assert!(other_size.contains("of a job of 4 PEs, and this one has 3"), "{other_size}");
        let other_job = refusal(TcpOptions { job: 8, ..options(at, 1, 3) });
        assert!(other_job.contains("another job"), "{other_job}");

        // Which of two PEs 1 is first does not matter: one of them is refused, the other waits.
        let (tell, told) = mpsc::channel();
        for _ in 0..2 {
            let tell = tell.clone();
            scope.spawn(move || tell.send(TcpBootstrap::join(options(at, 1, 3))).unwrap());
        }
        let refused = told.recv().unwrap().unwrap_err().to_string();
        assert!(refused.contains("a PE 1 already"), "{refused}");
        let second = TcpBootstrap::join(options(at, 2, 3)).unwrap();
        all_meet([center.join().unwrap(), told.recv().unwrap().unwrap(), second]);
    });
}

/// More of them than are greeted at a time, each of which may take its five seconds.
#[test]
fn silent_connections_delay_nobody() {
    let (listener, at) = listener();
    thread::scope(|scope| {
        let center = center(scope, (listener, at), 3);
        let connect = |_| TcpStream::connect(at).unwrap();
        let _silent: Vec<TcpStream> = (0..2 * GREETINGS).map(connect).collect();
        others_come(center, at);
    });
}

fn half_join(at: SocketAddr, me: u32, job: u64) -> (TcpStream, bool) {
    let mut stream = TcpStream::connect(at).unwrap();
    let mine = Greeting::new(me, 3).unwrap();
    stream.write_all(&mine.encode()).unwrap();
    let mut theirs = [0; GREETING];
    stream.read_exact(&mut theirs).unwrap();
    let theirs = Greeting::decode(&theirs).unwrap();
    let proof = Handshake { greetings: [theirs, mine], job }.proof(false);
    stream.write_all(&proof).unwrap();
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).unwrap();
    let right = Handshake { greetings: [theirs, mine], job: 7 };
    (stream, right.is_proven(true, &proof))
}

#[test]
fn ended_pe_may_join_again() {
    let (listener, at) = listener();
    thread::scope(|scope| {
        let center = center(scope, (listener, at), 3);
        assert!(!half_join(at, 1, 8).1, "a stranger is shown what follows from the job's number");
        let (ended, proven) = half_join(at, 1, 7);
        assert!(proven);
        drop(ended);
        others_come(center, at);
    });
}

#[test]
fn foreign_listener_is_named() {
    let (listener, at) = listener();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut greeting = [0; GREETING];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(b"SSH-2.0-OpenSSH_9.9 and a word or two").unwrap();
        });
        let failed = TcpBootstrap::join(options(at, 1, 2)).unwrap_err().to_string();
        assert!(failed.contains("SSH-2.0-"), "{failed}");
    });
}

/// One address leads to PE 0; nobody answers at another, and something else at a third.
#[test]
fn join_tries_every_address() {
    let (closed, nobody) = listener();
    drop(closed);
    let (other, something) = listener();
    let (listener, at) = listener();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            let _ = stream.write_all(&[b'x'; GREETING]);
        });
        let first = center(scope, (listener, at), 2);
        let address = format!("{nobody},{something},{at}");
        let joined = TcpBootstrap::join(TcpOptions { address, ..options(at, 1, 2) });
        assert_eq!(joined.unwrap().me(), 1);
        first.join().unwrap();
    });
}

#[test]
fn lost_or_differing_pe_is_named() {
    let failures = job(3, |mut bootstrap| {
        bootstrap.barrier().unwrap();
        match bootstrap.me() {
            2 => String::new(),
            _ => bootstrap.barrier().unwrap_err().to_string(),
        }
    });
    assert!(failures[0].contains("with PE 2"), "{failures:?}");
    assert!(failures[1].contains("with PE 0"), "{failures:?}");
    let failures = job(2, |mut bootstrap| {
        let bytes = if bootstrap.me() == 0 { 4 } else { 6 };
        bootstrap.allgather(&vec![0; bytes]).err().map(|failed| failed.to_string())
    });
    assert!(failures[0].as_deref().is_some_and(|why| why.contains("PE 1 sent 6 bytes, not 4")));
}

#[test]
fn refused_thread_ends_no_job() {
    let (listener, at) = listener();
    thread::scope(|scope| {
        let center = scope.spawn(move || {
            REFUSED.set(3);
            let center = TcpBootstrap::center(options(at, 0, 2), listener, &|_| true).unwrap();
            assert_eq!(REFUSED.get(), 0, "nothing was refused");
            center
        });
        let mut first = TcpBootstrap::join(options(at, 1, 2)).unwrap();
        let mut center = center.join().unwrap();
        scope.spawn(move || first.barrier().unwrap());
        center.barrier().unwrap();
    });
}

/// Who tries one number after the other is answered so often, and the job starts all the same.
#[test]
fn limited_guesses_delay_no_pe() {
    let (listener, at) = listener();
    thread::scope(|scope| {
        let started = Instant::now();
        let center = center(scope, (listener, at), 3);
        // Until some had to wait.
        for _ in 0..FREE_GUESSES + 20 {
            assert!(!half_join(at, 1, 8).1);
        }
        // Each beyond the free ones has waited for those before it, but for those on their way.
        assert!(started.elapsed() >= 15 * PENALTY, "{:?}", started.elapsed());
        others_come(center, at);
    });
}
