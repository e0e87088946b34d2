//! One of the two PEs of a job. PE 0 measures the cases, PE 1 serves it until it ends them. All of
//! it happens on the proxy threads, each on a core of its own if there are two: where the scheduler
//! puts them is worth more than a factor of two.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use nvshmem_abi::{Major, c};
use nvshmem_sim::{Amo, BoxError, Job, Local, Ops, Pattern, Piece, PlannedAmo, Scenario, SymAddr};

use crate::control::{Command, commands, connect, nvshmem_bench_mark};
use crate::plan::{Case, MAIL, MEASURED, Op, PLAN, Plan, Side, WORD};
use crate::raw::{RECORD, Raw, RawOp};
use crate::rounds::Rounds;

/// The scenario of all jobs that a [`Plan`] describes.
pub const SCENARIO: (&str, Scenario) = ("bench", scenario);

/// Operations of the two sections whose instructions are counted. Their difference is free of what
/// begins and ends a section. Multiples of what one acknowledgement covers.
pub const SECTIONS: [u64; 2] = [16 * 64, 144 * 64];

const BATCH: usize = 32;

const WARM: u64 = 4;

type Result<T> = std::result::Result<T, BoxError>;

fn scenario(job: &mut Job) -> Result<()> {
    let plan: Plan = serde_json::from_str(&job.param::<String>(PLAN)?)?;
    let me = job.pe;
    let host = job.init()?;
    let mut memories = Vec::new();
    for _ in 0..plan.chunks {
        let (from, area) = (host.alloc(plan.chunk(), 4096)?, plan.area());
        let mail = from.plus(2 * area);
        let [counter, signal, fetched, result] =
            [0, 1, 2, 3].map(|word| mail.plus(plan.mail() + word * WORD));
        let to = from.plus(area);
        memories.push(Memory { from, to, mail, counter, signal, fetched, result });
    }
    let mut raw = None;
    if let Some(options) = &plan.raw {
        let window = plan.cases.iter().map(|case| case.window as usize).max().unwrap_or(1);
        let heap = host.local(SymAddr(0), plan.chunks * plan.chunk())?;
        // SAFETY: the heap is given back in `finalize` or at the end of the process. The proxy
        // thread's closure owns the raw side and ends before.
        let opened = unsafe { Raw::open(options, window, heap.as_ptr(), heap.len() as usize)? };
        let records = job.bootstrap.allgather(&opened.record()?)?;
        let of_peer = records[(1 - me as usize) * RECORD..].first_chunk();
        let raw = raw.insert(opened);
        raw.connect(of_peer.ok_or("a record is missing")?)?;
        if plan.mail() > 0 {
            receive(raw, memories[0].mail)?;
        }
    }
    // Both have posted what they receive into before the first message.
    host.barrier()?;
    let control = plan.is_controlled.then(|| connect(job)).transpose()?;
    if me == 0 || control.is_some() {
        let rounds = host.proxy.run(move |ops| -> Result<Vec<Rounds>> {
            if control.is_some() {
                bind(me as usize)?;
            }
            let (signals, served, number, sum) = (vec![0; memories.len()], None, 0, 0);
            let peer = 1 - me;
            let pe = Pe { ops, raw, memories, peer, control, served, number, signals, sum };
            if me == 0 { pe.measure(&plan) } else { pe.serve(&plan).map(|()| Vec::new()) }
        })??;
        job.report(MEASURED, serde_json::to_string(&rounds)?)?;
    }
    // Until here the proxy thread of a PE 1 without control progresses the plugin by itself.
    job.bootstrap.barrier()?;
    host.finalize()?;
    Ok(())
}

/// Binds the calling thread to one of the cores that this process may use, if there are two.
fn bind(index: usize) -> std::io::Result<()> {
    // SAFETY: all bits zero is an empty set; it has the size given; 0 is the calling thread; the
    // cores asked about and set are those that a set has bits for.
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&set);
        let status = libc::sched_getaffinity(0, size, &mut set);
        let mut cores = (0..8 * size).filter(|&cpu| libc::CPU_ISSET(cpu, &set));
        match (status, [cores.next(), cores.next()]) {
            (0, cores @ [Some(_), Some(_)]) => {
                set = std::mem::zeroed();
                cores[index].iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
                libc::sched_setaffinity(0, size, &set)
            }
            (status, _) => status,
        }
    };
    if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    from: SymAddr,
    to: SymAddr,
    mail: SymAddr,
    counter: SymAddr,
    /// Set by signals of messages and behind fences.
    signal: SymAddr,
    fetched: SymAddr,
    /// Where PE 0 receives a word and the flag behind it.
    result: SymAddr,
}

/// The messages of a case, ready to be issued. The last word of a message and the signal behind it
/// are the message's number, so a signal that overtakes its data is found.
struct Exchange<'a> {
    side: Side,
    bytes: u64,
    piece: Piece,
    signal: PlannedAmo,
    sent: Local<'a>,
    data: Local<'a>,
    arrived: Local<'a>,
}

struct Window {
    side: Side,
    pieces: Vec<Piece>,
    /// Added to the peer's counter behind each put with signal.
    signal: Option<PlannedAmo>,
}

struct Pe<'a> {
    ops: &'a Ops,
    raw: Option<Raw>,
    memories: Vec<Memory>,
    peer: u32,
    /// To the other PE. None where PE 1 does nothing but progress the plugin.
    control: Option<TcpStream>,
    /// The side that PE 1 was last told to progress.
    served: Option<Option<Side>>,
    number: u64,
    signals: Vec<u64>,
    /// Expected value of the word that is fetched and added to.
    sum: u64,
}

fn receive(raw: &mut Raw, mail: SymAddr) -> Result<()> {
    // SAFETY: the mail is in the heap, and no other receive is posted.
    unsafe { raw.post(RawOp::Receive, 0, mail.0, 0, MAIL as usize) }
}

impl<'a> Pe<'a> {
    fn index(&self, side: Side) -> usize {
        if side == Side::Host { self.memories.len() - 1 } else { 0 }
    }

    fn memory(&self, side: Side) -> Memory {
        self.memories[self.index(side)]
    }

    fn raw(&mut self) -> Result<&mut Raw> {
        Ok(self.raw.as_mut().ok_or("there is no raw side")?)
    }

    #[inline]
    fn progress(&self) -> Result<()> {
        Ok(self.ops.progress()?)
    }

    #[inline]
    fn turn(&mut self, side: Side) -> Result<()> {
        if side == Side::Raw { self.raw()?.turn() } else { self.progress() }
    }

    fn word(&self, at: SymAddr) -> Result<Local<'a>> {
        Ok(self.ops.local(at, 8)?)
    }

    #[inline]
    fn quiet_all(&self) -> Result<()> {
        Ok((0..2).try_for_each(|pe| self.ops.quiet_pe(pe))?)
    }

    fn piece(&self, remote: SymAddr, local: SymAddr, bytes: u64) -> Result<Piece> {
        let pieces = self.ops.plan(self.peer, remote, local, bytes)?;
        // No operation crosses a chunk.
        Ok(*pieces.first().ok_or("an operation without bytes")?)
    }

    fn amo(&self, op: i32, word: SymAddr) -> Result<PlannedAmo> {
        Ok(self.ops.plan_amo(self.peer, word, &Amo::new(op, 8, 1))?)
    }

    #[inline]
    fn put_signal(&self, side: Side, piece: &Piece, signal: &PlannedAmo) -> Result<()> {
        let ops = self.ops;
        if side != Side::Reference && ops.layout().major() != Major::V3 {
            return Ok(ops.issue_put_signal(piece, signal)?);
        }
        ops.issue_put(piece)?;
        match side {
            Side::Reference => self.quiet_all()?,
            // Layouts 3a and 3b have no such call.
            _ => ops.fence()?,
        }
        Ok(ops.issue_amo(signal)?)
    }

    fn exchange(&self, case: &Case, side: Side) -> Result<Exchange<'a>> {
        let (memory, bytes, last) = (self.memory(side), case.bytes, case.bytes - 8);
        let data = if side == Side::Raw { memory.mail } else { memory.to };
        Ok(Exchange {
            side,
            bytes,
            piece: self.piece(memory.to, memory.from, bytes)?,
            signal: self.amo(c::NVT_AMO_SIGNAL_SET, memory.signal)?,
            sent: self.word(memory.from.plus(last))?,
            data: self.word(data.plus(last))?,
            arrived: self.word(memory.signal)?,
        })
    }

    #[inline]
    fn send(&mut self, exchange: &Exchange<'_>, number: u64) -> Result<()> {
        exchange.sent.store_release(number)?;
        if exchange.side != Side::Raw {
            let signal = exchange.signal.with_value(number);
            return self.put_signal(exchange.side, &exchange.piece, &signal);
        }
        while self.raw()?.in_flight > 0 {
            self.raw()?.turn()?;
        }
        let from = self.memory(Side::Raw).from.0;
        // SAFETY: the bytes are in the heap; the message before has gone.
        unsafe { self.raw()?.post(RawOp::Send, 0, from, 0, exchange.bytes as usize) }
    }

    #[inline]
    fn wait(&mut self, exchange: &Exchange<'_>, number: u64) -> Result<()> {
        if exchange.side == Side::Raw {
            while !std::mem::take(&mut self.raw()?.arrived) {
                self.raw()?.turn()?;
            }
        } else {
            while exchange.arrived.load_acquire()? != number {
                self.progress()?;
            }
        }
        let found = exchange.data.load_acquire()?;
        if found != number {
            return Err(format!("signal {number} before its data, which is {found}").into());
        }
        if exchange.side == Side::Raw {
            let mail = self.memory(Side::Raw).mail;
            receive(self.raw()?, mail)?;
        }
        Ok(())
    }

    fn serve(mut self, plan: &Plan) -> Result<()> {
        let mut control = self.control.take().ok_or("there is no control")?;
        let commands = commands(&control)?;
        let mut served = Some(Side::Plugin);
        loop {
            match served {
                Some(side) => self.turn(side)?,
                None => std::thread::yield_now(),
            }
            let command = match commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => continue,
                // PE 0 is done, or has failed and says so itself.
                Err(TryRecvError::Disconnected) => return Ok(()),
            };
            match command {
                Command::Serve(side) => served = side,
                Command::Await { word, value, extra } => {
                    let word = self.word(word)?;
                    while word.load_acquire()? < value {
                        self.progress()?;
                    }
                    (0..extra).try_for_each(|_| self.progress())?;
                }
                Command::Answer { case, side, first, count } => {
                    let exchange = self.exchange(&plan.cases[case], side)?;
                    for number in first..first + count {
                        self.wait(&exchange, number)?;
                        self.send(&exchange, number)?;
                    }
                    served = Some(side);
                }
                Command::Mark => nvshmem_bench_mark(),
            }
            control.write_all(&[0])?;
        }
    }

    fn ask(&self, command: Command) -> Result<()> {
        self.begin(command)?;
        self.finish()
    }

    /// Sends a command that PE 1 executes together with this PE.
    fn begin(&self, command: Command) -> Result<()> {
        let Some(mut control) = self.control.as_ref() else { return Ok(()) };
        Ok(control.write_all((serde_json::to_string(&command)? + "\n").as_bytes())?)
    }

    /// Waits until the command is executed; what PE 1 waits for may need progress.
    fn finish(&self) -> Result<()> {
        let Some(mut control) = self.control.as_ref() else { return Ok(()) };
        loop {
            match control.read(&mut [0]) {
                Ok(1) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.progress()?,
                _ => return Err("PE 1 has failed".into()),
            }
        }
    }

    fn have_served(&mut self, side: Option<Side>) -> Result<()> {
        let side = side.map(|side| if side == Side::Raw { side } else { Side::Plugin });
        if self.served != Some(side) {
            self.ask(Command::Serve(side))?;
            self.served = Some(side);
        }
        Ok(())
    }

    fn measure(mut self, plan: &Plan) -> Result<Vec<Rounds>> {
        let mut measured = Vec::new();
        for (at, case) in plan.cases.iter().enumerate() {
            let named = |error: BoxError| -> BoxError { format!("{case}: {error}").into() };
            let Some(schedule) = plan.schedule else {
                self.count(case).map_err(named)?;
                continue;
            };
            let windows = case.sides.iter().map(|&side| self.window(case, side));
            let windows: Vec<Window> = windows.collect::<Result<_>>()?;
            windows.iter().try_for_each(|window| self.prove(case, window)).map_err(named)?;
            let rounds = schedule.run(windows.len(), case.ops(), |side, repeats| {
                let took = self.round(at, case, &windows[side], repeats);
                took.map_err(|error| -> BoxError {
                    format!("{}: {error}", case.sides[side]).into()
                })
            });
            windows.iter().try_for_each(|window| self.prove(case, window)).map_err(named)?;
            measured.push(rounds.map_err(named)?);
        }
        Ok(measured)
    }

    fn window(&self, case: &Case, side: Side) -> Result<Window> {
        let memory = self.memory(side);
        let (local, remote) = match case.op {
            Op::Get => (memory.to, memory.from),
            _ => (memory.from, memory.to),
        };
        let places = (0..case.window).map(|slot| slot * case.bytes);
        let piece = |at| self.piece(remote.plus(at), local.plus(at), case.bytes);
        let pieces = places.map(piece).collect::<Result<_>>()?;
        let counts = case.op == Op::PutSignal;
        let signal = counts.then(|| self.amo(c::NVT_AMO_SIGNAL_ADD, memory.counter)).transpose()?;
        Ok(Window { side, pieces, signal })
    }

    #[inline]
    fn issue(&mut self, case: &Case, window: &Window) -> Result<()> {
        if window.side == Side::Raw {
            return self.issue_raw(case);
        }
        let ops = self.ops;
        for (at, piece) in window.pieces.iter().enumerate() {
            match (case.op, &window.signal) {
                (Op::Get, _) => ops.issue_get(piece)?,
                (_, Some(signal)) => self.put_signal(window.side, piece, signal)?,
                _ => ops.issue_put(piece)?,
            }
            if at % BATCH == BATCH - 1 {
                self.progress()?;
            }
        }
        if window.signal.is_some() {
            let at = self.index(window.side);
            self.signals[at] += case.window;
        }
        Ok(ops.quiet_pe(1)?)
    }

    fn issue_raw(&mut self, case: &Case) -> Result<()> {
        let memory = self.memory(Side::Raw);
        let (op, local, remote) = match case.op {
            Op::Get => (RawOp::Read, memory.to, memory.from),
            _ => (RawOp::Write, memory.from, memory.to),
        };
        let raw = self.raw()?;
        for slot in 0..case.window as usize {
            let offset = slot as u64 * case.bytes;
            let (local, remote) = (local.0 + offset, remote.0 + offset);
            // SAFETY: the slots are inside the heap on both PEs. Nothing is in flight when a window
            // begins, and it uses each slot once.
            unsafe { raw.post(op, slot, local, remote, case.bytes as usize)? };
            if slot % BATCH == BATCH - 1 {
                raw.turn()?;
            }
        }
        while raw.in_flight > 0 {
            raw.turn()?;
        }
        Ok(())
    }

    fn copy(&mut self, op: Op, remote: SymAddr, local: SymAddr, len: u64) -> Result<()> {
        self.have_served(Some(Side::Plugin))?;
        let ops = self.ops;
        match op {
            Op::Get => ops.get_nbi(1, remote, local, len)?,
            _ => ops.put_nbi(1, remote, local, len)?,
        }
        Ok(ops.quiet_pe(1)?)
    }

    /// Shows that a side moves every byte of a window: a new pattern goes there and back, one of
    /// the two ways by the side.
    fn prove(&mut self, case: &Case, window: &Window) -> Result<()> {
        if !matches!(case.op, Op::Put | Op::Get | Op::PutSignal) {
            return Ok(());
        }
        let (side, is_get, len) = (window.side, case.op == Op::Get, case.bytes * case.window);
        let memory = self.memory(side);
        let here = if is_get { memory.to } else { memory.from };
        self.number += 1;
        let (local, pattern) = (self.ops.local(here, len)?, Pattern::new(self.number));
        local.fill(pattern, 0)?;
        if is_get {
            self.copy(Op::Put, memory.from, here, len)?;
            local.set(0)?;
        }
        self.have_served(Some(side))?;
        self.issue(case, window)?;
        if !is_get {
            local.set(0)?;
            self.copy(Op::Get, memory.to, here, len)?;
        }
        local.verify(pattern, 0).map_err(|error| format!("{side}: wrong bytes: {error}"))?;
        if window.signal.is_some() {
            self.copy(Op::Get, memory.counter, memory.result, 8)?;
            let found = self.word(memory.result)?.load_acquire()?;
            let sent = self.signals[self.index(side)];
            if found != sent {
                return Err(format!("{side}: {found} signals have arrived, not {sent}").into());
            }
        }
        Ok(())
    }

    fn round(&mut self, at: usize, case: &Case, window: &Window, repeats: u64) -> Result<Duration> {
        match (case.op, window.side) {
            (Op::PingPong, side) | (Op::FetchAdd, side @ Side::Raw) => {
                return self.ping_pong(at, case, side, repeats);
            }
            (_, side) => self.have_served(Some(side))?,
        }
        match case.op {
            Op::FetchAdd => return self.fetch_add(repeats),
            Op::Fence => return self.fences(window, repeats),
            _ => {}
        }
        // Untimed: wakes the peer, and brings this side's own state back into the caches.
        self.issue(case, window)?;
        let start = Instant::now();
        (0..repeats).try_for_each(|_| self.issue(case, window))?;
        Ok(start.elapsed())
    }

    /// Returns the time of so many turns behind some that warm up. Each has a new number.
    fn turns(
        &mut self,
        count: u64,
        mut turn: impl FnMut(&mut Self, u64) -> Result<()>,
    ) -> Result<Duration> {
        let first = self.number + 1;
        self.number += WARM + count;
        (first..first + WARM).try_for_each(|number| turn(self, number))?;
        let start = Instant::now();
        (first + WARM..=self.number).try_for_each(|number| turn(self, number))?;
        Ok(start.elapsed())
    }

    fn ping_pong(&mut self, at: usize, case: &Case, side: Side, count: u64) -> Result<Duration> {
        let exchange = self.exchange(case, side)?;
        let (first, all) = (self.number + 1, WARM + count);
        self.begin(Command::Answer { case: at, side, first, count: all })?;
        let took = self.turns(count, |pe, number| {
            pe.send(&exchange, number)?;
            pe.wait(&exchange, number)
        })?;
        self.finish()?;
        self.served = None;
        Ok(took)
    }

    fn fetch_add(&mut self, count: u64) -> Result<Duration> {
        let memory = self.memory(Side::Plugin);
        let amo = Amo { fetch_to: Some(memory.result), ..Amo::new(c::NVT_AMO_FETCH_ADD, 8, 1) };
        let amo = self.ops.plan_amo(1, memory.fetched, &amo)?;
        let [value, flag] = [self.word(memory.result)?, self.word(memory.result.plus(8))?];
        let took = self.turns(count, |pe, number| {
            pe.ops.issue_amo(&amo.with_flag(number))?;
            while flag.load_acquire()? != number {
                pe.progress()?;
            }
            let (found, sum) = (value.load_acquire()?, pe.sum);
            if found != sum {
                return Err(format!("fetched {found}, not {sum}").into());
            }
            pe.sum += 1;
            Ok(())
        })?;
        self.quiet_all()?;
        Ok(took)
    }

    fn fences(&mut self, window: &Window, count: u64) -> Result<Duration> {
        let signal = self.amo(c::NVT_AMO_SIGNAL_SET, self.memory(window.side).signal)?;
        let mut counted = Duration::ZERO;
        for _ in 0..count {
            window.pieces.iter().try_for_each(|piece| self.ops.issue_put(piece))?;
            let start = Instant::now();
            match window.side {
                Side::Reference => self.quiet_all()?,
                _ => self.ops.fence()?,
            }
            self.ops.issue_amo(&signal)?;
            counted += start.elapsed();
            self.quiet_all()?;
        }
        Ok(counted)
    }

    fn count(&mut self, case: &Case) -> Result<()> {
        let window = self.window(case, Side::Host)?;
        self.have_served(Some(Side::Plugin))?;
        // What is opened at first use.
        (0..4).try_for_each(|_| self.issue(case, &window))?;
        for repeats in SECTIONS {
            self.have_served(Some(Side::Plugin))?;
            self.quiet_all()?;
            if case.op == Op::PutSignal {
                // From here on the peer polls only until a window's signals are there.
                self.have_served(None)?;
                self.count_windows(case, &window, 4 * case.window)?;
            }
            self.ask(Command::Mark)?;
            nvshmem_bench_mark();
            match case.op {
                Op::Quiet => (0..repeats).try_for_each(|_| self.ops.quiet_pe(1))?,
                Op::Progress => (0..repeats).try_for_each(|_| self.progress())?,
                _ => self.count_windows(case, &window, repeats)?,
            }
            self.ask(Command::Mark)?;
            nvshmem_bench_mark();
        }
        Ok(())
    }

    fn count_windows(&mut self, case: &Case, window: &Window, count: u64) -> Result<()> {
        let (ops, memory) = (self.ops, self.memory(window.side));
        let last = (case.window - 1) * case.bytes;
        for _ in 0..count / case.window {
            self.number += 1;
            let stamp = self.word(memory.from.plus(last))?;
            stamp.store_release(self.number)?;
            let mut pieces = window.pieces.iter();
            let delivered = match &window.signal {
                Some(signal) => {
                    pieces.try_for_each(|piece| ops.issue_put_signal(piece, signal))?;
                    let at = self.index(window.side);
                    let signals = &mut self.signals[at];
                    *signals += case.window;
                    Command::Await { word: memory.counter, value: *signals, extra: 0 }
                }
                None => {
                    pieces.try_for_each(|piece| ops.issue_put(piece))?;
                    // Whatever tells PE 0 of the delivery has left after some turns.
                    Command::Await { word: memory.to.plus(last), value: self.number, extra: 500 }
                }
            };
            self.ask(delivered)?;
            ops.progress().and_then(|()| ops.progress())?;
            if window.signal.is_none() {
                ops.quiet_pe(1)?;
            }
        }
        Ok(())
    }
}
