//! What the rails of two processes do when the link between them is down for a while:
//!
//! ```text
//! flap LIBRARY PROVIDER HERE THERE SECONDS both|one DOWN UP
//! ```
//!
//! Ports on the devices HERE and THERE, in one process, send each other one operation of each kind
//! every 5 ms; with `one`, THERE sends nothing until 40 s after the link is back. Commands take the
//! link down and up. What was posted, and how it ended, is compared with what arrived.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use engine::ids::{RailId, WrId};
use engine::lane::segments_for;
use engine::port::packet::LongPacket;
use engine::port::*;
use ofi::{Devices, Discovery, MemoryKinds, Opened, Options, Provider};

/// Writes of the proxy lane and of the user threads', messages, and writes with immediate data.
const KINDS: [&str; 4] = ["write", "user_write", "message", "counted_write"];
const MOST: usize = 40_000;
/// Most writes of a kind under way.
const DEPTH: usize = 32;
const SLOT: usize = 16;
const RAIL: RailId = RailId(0);
/// Where operations have their sources in the memory: behind a place for each of the peer's.
const SOURCES: usize = KINDS.len() * MOST * SLOT;
/// Behind the link's coming back, what is posted, and what is waited for.
const AFTER: (f64, f64) = (80.0, 90.0);

#[derive(Clone, Copy, Default)]
struct Sent {
    done: Option<f64>,
    error: i32,
    /// When it arrived, and how often.
    arrived: f64,
    times: usize,
}

struct End {
    opened: Opened,
    memory: *mut u8,
    desc: [Desc; 2],
    peer: [PeerAddr; 2],
    key: u64,
    /// What peers add to offsets into the memory.
    base: u64,
    posted: [Vec<Sent>; 4],
    /// Calls that found no room, or failed, by kind and code: how many, when first and last.
    refused: BTreeMap<(usize, i32), (usize, f64, f64)>,
}

fn open(library: &str, provider: &str, device: &str) -> End {
    let provider = match provider {
        "verbs" => Provider::Verbs,
        "tcp" => Provider::Tcp,
        "tcp;ofi_rxm" => Provider::TcpRxm,
        other => panic!("{other} is not verbs, tcp or tcp;ofi_rxm"),
    };
    let devices = Devices::Include(vec![device.to_owned()]);
    let options = Options { library: library.to_owned(), provider, devices, ..Options::default() };
    let found = Discovery::run(&options, false, MemoryKinds::Host).expect("a device");
    // SAFETY: the memory stays for ever.
    let opened = unsafe { found.open(&[0], 2, 1) }.expect("a rail");
    println!("{}", opened.report);
    let memory = vec![0_u8; SOURCES + KINDS.len() * DEPTH * SLOT].leak();
    let (at, len) = (memory.as_ptr() as usize, memory.len());
    let access = Access::LocalAndRemote;
    let registered = Box::leak(Box::new(opened.memory.register(at, len, access).expect("keys")));
    let by_address = registered.addressing == Addressing::Virtual;
    End {
        memory: memory.as_mut_ptr(),
        desc: [registered.proxy_descs[0], registered.host_descs[0]],
        peer: [PeerAddr(0); 2],
        key: registered.keys[0],
        base: if by_address { at as u64 } else { 0 },
        posted: Default::default(),
        refused: BTreeMap::new(),
        opened,
    }
}

impl End {
    fn meet(&mut self, other: &Self) {
        let address = [other.opened.proxy.address(RAIL).to_vec()];
        self.peer[0] = self.opened.proxy.insert(RAIL, &address).expect("an address")[0];
        self.peer[1] = self.opened.host.insert(RAIL, &address).expect("an address")[0];
    }

    fn post(&mut self, kind: usize, to: (u64, u64), now: f64) {
        let number = self.posted[kind].len();
        let before = number.checked_sub(DEPTH).map(|before| self.posted[kind][before].done);
        let counts = self.opened.proxy.limits()[0].immediate_data;
        if number == MOST || before == Some(None) || kind == 3 && !counts {
            return;
        }
        let lane = usize::from(kind == 1);
        let source = SOURCES + (kind * DEPTH + number % DEPTH) * SLOT;
        let words = [kind as u64, number as u64 + 1];
        // SAFETY: this operation's alone.
        unsafe { self.memory.add(source).cast::<[u64; 2]>().write_unaligned(words) };
        let local = Local::Memory { addr: self.memory as usize + source, desc: self.desc[lane] };
        let remote = to.0 + ((kind * MOST + number) * SLOT) as u64;
        let (direction, key) = (Direction::Write, to.1);
        let transfer = Transfer { direction, local, len: SLOT, remote, key };
        let wr_id = WrId((kind / 2 * DEPTH + number % DEPTH) as u32);
        let Self { opened: Opened { proxy, host, .. }, peer, .. } = self;
        let posted = match kind {
            0 => proxy.post(RAIL, peer[0], wr_id, Operation::Transfer(&transfer)),
            1 => host.post(RAIL, peer[1], wr_id, Operation::Transfer(&transfer)),
            2 => {
                let bytes = words.map(u64::to_le_bytes).concat();
                proxy.send(RAIL, peer[0], WrId(1 << 31 | number as u32), &bytes)
            }
            _ => {
                let data = Operation::WriteWithImmediate(&transfer, number as u64);
                proxy.post(RAIL, peer[0], wr_id, data)
            }
        };
        let code = match posted {
            Ok(Posted::Yes) => {
                let done = (kind == 2).then_some(now);
                return self.posted[kind].push(Sent { done, ..Sent::default() });
            }
            Ok(Posted::Again) => libc::EAGAIN,
            Err(error) => error.code,
        };
        let all = self.refused.entry((kind, code)).or_insert((0, now, now));
        (all.0, all.2) = (all.0 + 1, now);
    }

    /// Notes which operations have ended. Returns the kind and number of what has come in.
    fn poll(&mut self, now: f64) -> Vec<(usize, usize)> {
        let (mut packet, mut come) = (LongPacket::EMPTY, vec![]);
        for lane in 0..2 {
            let Opened { proxy, host, .. } = &mut self.opened;
            let port = if lane == 0 { proxy } else { host };
            let (mut done, segments) = (Vec::new(), segments_for(port.limits()));
            let polled = port.drain(RAIL, &mut |index: usize| {
                let is_known = index < segments as usize;
                done.extend(is_known.then_some(WrId(index as u32)));
                is_known
            });
            let (ended, error) = match polled {
                Polled::Empty | Polled::Completed(_) => (done, 0),
                Polled::Failed(failure) if failure.wr_id.is_none() => {
                    println!("the rail: {}", failure.error);
                    continue;
                }
                Polled::Failed(failure) => {
                    (failure.wr_id.into_iter().collect(), failure.error.code)
                }
            };
            loop {
                match port.receive(RAIL, &mut packet) {
                    Incoming::Message => {
                        let number: [u8; 8] = packet.bytes()[8..16].try_into().expect("ours");
                        come.push((2, u64::from_le_bytes(number) as usize - 1));
                    }
                    Incoming::ImmediateData(data) => come.push((3, data as usize)),
                    Incoming::Broken { code } => println!("a receive: error {code}"),
                    Incoming::Nothing => break,
                }
            }
            for wr_id in ended {
                let at = wr_id.0 as usize;
                let kind = if at >> 31 != 0 { 2 } else { lane + at / DEPTH * 3 };
                let is_it = |(number, it): &(usize, &mut Sent)| match kind {
                    2 => *number == at & (MOST.next_power_of_two() - 1),
                    _ => number % DEPTH == at % DEPTH && it.done.is_none(),
                };
                let it = self.posted[kind].iter_mut().enumerate().rev().find(is_it);
                let (_, it) = it.expect("it was posted");
                (it.done, it.error) = (Some(now), error);
            }
        }
        come
    }

    fn arrives(&mut self, kind: usize, number: usize, now: f64) {
        let it = &mut self.posted[kind][number];
        it.times += 1;
        if it.times == 1 {
            it.arrived = now;
        }
    }

    /// Notes which of its writes are in the peer's memory.
    fn look(&mut self, memory: *const u8, now: f64) {
        for kind in 0..2 {
            for number in 0..self.posted[kind].len() {
                let at = (kind * MOST + number) * SLOT + 8;
                // SAFETY: within the memory, which the fabric writes.
                let word = unsafe { memory.add(at).cast::<u64>().read_volatile() };
                if word != 0 && self.posted[kind][number].times == 0 {
                    self.arrives(kind, number, now);
                }
            }
        }
    }

    fn report(&self, name: &str, (down, up): (f64, f64)) {
        for (kind, what) in KINDS.iter().enumerate() {
            let all = &self.posted[kind];
            let count = |of: fn(&&Sent) -> bool| all.iter().filter(of).count();
            let say = |what: String| println!("MEASURE flap_{name}_{} {what}", KINDS[kind]);
            if all.is_empty() {
                say(String::from("none"));
                continue;
            }
            let (open, lost) = (
                count(|it| it.done.is_none()),
                count(|it| it.done.is_some() && it.error == 0 && it.times == 0),
            );
            let (twice, failed) =
                (count(|it| it.times > 1), count(|it| it.error != 0 && it.times > 0));
            let late =
                count(|it| it.error != 0 && it.done.is_some_and(|done| it.arrived > done + 0.1));
            say(format!(
                "of {}: unanswered {open}, lost {lost}, twice {twice}, failed and arrived {failed}, \
                 arrived after failing {late}",
                all.len()
            ));
            let mut ends = BTreeMap::new();
            for ((_, code), all) in self.refused.iter().filter(|((of, _), _)| *of == kind) {
                ends.insert(("refused", *code), *all);
            }
            for it in all.iter().filter(|it| it.error != 0) {
                let at = it.done.unwrap_or_default();
                let (count, first, _) = *ends.get(&("failed", it.error)).unwrap_or(&(0, at, at));
                ends.insert(("failed", it.error), (count + 1, first, at));
            }
            for ((how, code), (count, first, last)) in ends {
                let (first, last) = (first - down, last - down);
                say(format!("{how} with {code}: {count}, {first:.1} to {last:.1} s after down"));
            }
            let mut times: Vec<f64> =
                all.iter().map(|it| it.arrived).filter(|at| *at > 0.0).collect();
            times.sort_by(f64::total_cmp);
            let gaps = times.windows(2).filter(|gap| gap[1] > down);
            let gap = gaps.max_by(|a, b| (a[1] - a[0]).total_cmp(&(b[1] - b[0])));
            say(match gap {
                Some(gap) => {
                    format!("silent {:.1} s, until {:.1} s after up", gap[1] - gap[0], gap[1] - up)
                }
                None => format!("never comes back: {what}"),
            });
        }
    }
}

/// In place of libibverbs': NICs give up. libfabric asks for 7 attempts, which rdma_rxe takes for
/// no end of them. The attempts are at byte 131 of `ibv_qp_attr`, and bit 10 of the mask sets them.
///
/// # Safety
/// As libibverbs has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut c_void, attr: *mut u8, mask: c_int) -> c_int {
    type Modify = unsafe extern "C" fn(*mut c_void, *mut u8, c_int) -> c_int;
    // SAFETY: the library's own function, of this type; the attributes are the caller's.
    unsafe {
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
        let own = libc::dlvsym(library, c"ibv_modify_qp".as_ptr(), c"IBVERBS_1.1".as_ptr());
        if mask >> 10 & 1 != 0 {
            attr.add(131).write(6);
        }
        std::mem::transmute::<*mut c_void, Modify>(own)(qp, attr, mask)
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [library, provider, here, there, seconds, who, down, up] = words[..] else {
        panic!("arguments: see flap.rs");
    };
    let mut ends = [open(library, provider, here), open(library, provider, there)];
    let [one, other] = &mut ends;
    one.meet(other);
    other.meet(one);
    let seconds: f64 = seconds.parse().expect("seconds");
    let times @ (down_at, up_at) = (5.0, 5.0 + seconds);
    let commands = [(down_at, down.to_owned()), (up_at, up.to_owned())];
    let began = Instant::now();
    thread::spawn(move || {
        for (at, command) in commands {
            thread::sleep(Duration::from_secs_f64(at).saturating_sub(began.elapsed()));
            let ended = Command::new("sh").args(["-c", &command]).status();
            println!("{command}: {ended:?}");
        }
    });
    let mut now = 0.0;
    while now < up_at + AFTER.1 {
        now = began.elapsed().as_secs_f64();
        for at in 0..2 {
            let (base, key, memory) = (ends[1 - at].base, ends[1 - at].key, ends[1 - at].memory);
            let starts = if who == "one" && at == 1 { up_at + 40.0 } else { 0.0 };
            if now >= starts && now < up_at + AFTER.0 {
                (0..KINDS.len()).for_each(|kind| ends[at].post(kind, (base, key), now));
            }
            for (kind, number) in ends[at].poll(now) {
                ends[1 - at].arrives(kind, number, now);
            }
            ends[at].look(memory, now);
        }
        thread::sleep(Duration::from_millis(5));
    }
    println!("MEASURE flap {library} {provider} {seconds} s {who}");
    ends[0].report("here", times);
    ends[1].report("there", times);
}
