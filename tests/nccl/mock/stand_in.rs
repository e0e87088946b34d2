//! A plugin of one PE that copies memory, right or wrong on purpose: what is wrong with a plugin
//! has to be noticed by the tests.
//!
//! It executes what it is given in random order, as far as the interface leaves that free.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use test_support::random::Random;

use nccl_abi::{
    Config, DEVICE_GIN_PROXY, Logger, PTR_CUDA, PTR_HOST, Properties, RmaProperties, SIGNAL_INC,
    Status, Table16, VirtualDevices, level, subsystem,
};

/// Has a job use this, with that fault.
pub(crate) const STAND_IN: &str = "NCCL_TEST_STAND_IN";

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// What is wrong.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

faults! {
    Nothing
    /// Strong signals are behind their own data alone.
    StrongIsWeak
    /// They are behind all puts, but not behind signals.
    StrongForgetsSignals
    /// Signals come before their data.
    SignalFirst
    LostByte
    /// One byte more than was asked for.
    LongPut
    ShortGet
    /// Signals to add one add the value.
    IncByValue
    AddTwice
    /// An operation is complete before its source was read.
    DoneEarly
    /// What signals are is remembered, though it was set back.
    Shadow
    NullRequest
}

impl Fault {
    fn of_process() -> Option<Self> {
        let name = std::env::var(STAND_IN).ok()?;
        Self::ALL.iter().copied().find(|fault| fault.name() == name)
    }
}

/// The table, if this job wants it.
pub(crate) fn of_process() -> Option<&'static Table16> {
    Fault::of_process().map(|fault| {
        lock().fault = fault;
        &TABLE
    })
}

/// A region, and an offset in it.
type At = (*mut c_void, u64);

struct Pending {
    number: usize,
    block: usize,
    context: c_int,
    from: usize,
    to: usize,
    len: usize,
    is_get: bool,
    /// Where, how much, whether it is strong.
    signal: Option<(usize, u64, bool)>,
    /// The data was moved, and the signal is still to come.
    is_half: bool,
}

struct State {
    fault: Fault,
    /// First bytes of registered memory, by handle.
    regions: Vec<usize>,
    next: usize,
    pending: Vec<Pending>,
    shadow: HashMap<usize, u64>,
    random: Random,
    blocks: usize,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

struct Locked(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("made by lock()")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("made by lock()")
    }
}

fn lock() -> Locked {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.get_or_insert_with(|| State {
        fault: Fault::Nothing,
        regions: Vec::new(),
        next: 0,
        pending: Vec::new(),
        shadow: HashMap::new(),
        random: Random::new(u64::from(test_support::seeds::draw())),
        blocks: 0,
    });
    Locked(state)
}

impl State {
    fn place(&self, region: *mut c_void, offset: u64) -> usize {
        match region as usize {
            0 => 0,
            handle => self.regions[handle - 1] + offset as usize,
        }
    }

    /// Starts an operation of a context of a block, between places of regions.
    fn start(
        &mut self,
        (block, context): (*mut c_void, c_int),
        (from, to, len): (At, At, usize),
        is_get: bool,
        signal: Option<(usize, u64, bool)>,
    ) -> *mut c_void {
        self.next += 1;
        let (number, block, is_half) = (self.next, block as usize, false);
        let (from, to) = (self.place(from.0, from.1), self.place(to.0, to.1));
        let pending = Pending { number, block, context, from, to, len, is_get, signal, is_half };
        self.pending.push(pending);
        let null = self.fault == Fault::NullRequest && self.random.once_in(16);
        if null { ptr::null_mut() } else { number as *mut c_void }
    }

    /// Executes some of what may be next.
    fn work(&mut self, block: usize) {
        // Less than comes in, so that there is something to choose from.
        for _ in 0..self.random.below(4) {
            let may = |at: &usize| self.pending[*at].block == block && self.may_be_next(*at);
            let next: Vec<usize> = (0..self.pending.len()).filter(may).collect();
            if next.is_empty() {
                return;
            }
            let at = next[self.random.below(next.len())];
            let one = self.pending.remove(at);
            if let Some(rest) = self.execute(one) {
                self.pending.insert(at, rest);
            }
        }
    }

    fn may_be_next(&self, at: usize) -> bool {
        let one = &self.pending[at];
        let strong = one.signal.is_some_and(|(_, _, strong)| strong);
        // Its data may go ahead.
        if !strong || (!one.is_half && one.len > 0) || self.fault == Fault::StrongIsWeak {
            return true;
        }
        let same = |other: &&Pending| (other.block, other.context) == (one.block, one.context);
        let mut before = self.pending[..at].iter().filter(same);
        match self.fault {
            Fault::StrongForgetsSignals => before.all(|other| other.is_half || other.len == 0),
            _ => before.next().is_none(),
        }
    }

    /// Moves the data, or adds the signal. Returns what is left.
    fn execute(&mut self, mut one: Pending) -> Option<Pending> {
        let is_first = self.fault == Fault::SignalFirst && one.signal.is_some() && one.len > 0;
        if one.is_half != is_first || one.len == 0 {
            self.signal(&one);
            // What comes behind it is its data.
            let data = is_first && !one.is_half;
            one.signal = None;
            one.is_half = false;
            return data.then_some(one);
        }
        let len = match self.fault {
            Fault::LostByte if !one.is_get && self.random.once_in(16) => one.len - 1,
            Fault::LongPut if !one.is_get && self.random.once_in(16) => one.len + 1,
            Fault::ShortGet if one.is_get => one.len - 1,
            _ => one.len,
        };
        // SAFETY: registered memory, or one byte more of an area with guards.
        unsafe { ptr::copy(one.from as *const u8, one.to as *mut u8, len) };
        one.is_half = true;
        one.signal.is_some().then_some(one)
    }

    fn signal(&mut self, one: &Pending) {
        let Some((place, value, _)) = one.signal else { return };
        let value = if self.fault == Fault::AddTwice && self.random.once_in(16) {
            2 * value
        } else {
            value
        };
        // SAFETY: a word of registered memory.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(place as *mut u64) };
        if self.fault == Fault::Shadow {
            let shadow = self.shadow.entry(place).or_insert(0);
            *shadow += value;
            word.store(*shadow, std::sync::atomic::Ordering::Release);
        } else {
            word.fetch_add(value, std::sync::atomic::Ordering::AcqRel);
        }
    }
}

static TABLE: Table16 = Table16 {
    name: c"stand-in".as_ptr(),
    init,
    devices,
    get_rma_properties,
    get_properties,
    listen,
    connect,
    create_context,
    reg_mr_sym,
    reg_mr_sym_dma_buf,
    dereg_mr_sym,
    destroy_context: nothing,
    close_coll: nothing,
    close_listen: nothing,
    iput,
    iput_signal,
    iget,
    iflush,
    test,
    progress,
    query_last_error,
    finalize: nothing,
};

const NAME: *mut c_void = 8 as *mut c_void;

unsafe extern "C" fn init(ctx: *mut *mut c_void, _: u64, logger: Logger) -> Status {
    // SAFETY: a place for the result, as below.
    unsafe { *ctx = NAME };
    if let Some(logger) = logger {
        let (file, text) = (c"stand_in.rs".as_ptr(), c"in place of a plugin".as_ptr());
        // SAFETY: strings, and the argument that the format asks for.
        unsafe { logger(level::INFO, subsystem::INIT, file, 0, c"%s".as_ptr(), text) };
    }
    Status::SUCCESS
}

unsafe extern "C" fn devices(count: *mut c_int) -> Status {
    // SAFETY: see `init`.
    unsafe { *count = 1 };
    Status::SUCCESS
}

unsafe extern "C" fn get_rma_properties(_: *mut c_void, into: *mut RmaProperties) -> Status {
    // SAFETY: see `init`.
    unsafe { *into = RmaProperties { flushes_all_puts_on_any_signal: false } };
    Status::SUCCESS
}

unsafe extern "C" fn get_properties(_: c_int, into: *mut Properties) -> Status {
    let properties = Properties {
        name: c"memory".as_ptr(),
        pci_path: ptr::null::<c_char>(),
        guid: 0,
        ptr_support: PTR_HOST | PTR_CUDA,
        reg_is_global: 0,
        force_flush: 0,
        speed: 1,
        port: 0,
        latency: 0.0,
        max_comms: 1,
        max_recvs: 1,
        net_device_type: DEVICE_GIN_PROXY,
        net_device_version: 0,
        virtual_devices: VirtualDevices { count: 1, devices: [0; 8] },
        max_p2p_bytes: usize::MAX,
        max_coll_bytes: usize::MAX,
        max_multi_request_size: 1,
        rail_id: -1,
        plane_id: -1,
    };
    // SAFETY: see `init`.
    unsafe { *into = properties };
    Status::SUCCESS
}

unsafe extern "C" fn listen(
    _: *mut c_void,
    _: c_int,
    _: *mut c_void,
    listening: *mut *mut c_void,
) -> Status {
    // SAFETY: see `init`.
    unsafe { *listening = NAME };
    Status::SUCCESS
}

unsafe extern "C" fn connect(
    _: *mut c_void,
    _: *const *const c_void,
    ranks: c_int,
    _: c_int,
    _: *mut c_void,
    group: *mut *mut c_void,
) -> Status {
    assert_eq!(ranks, 1);
    // SAFETY: see `init`.
    unsafe { *group = NAME };
    Status::SUCCESS
}

unsafe extern "C" fn create_context(
    _: *mut c_void,
    _: *mut Config,
    contexts: *mut *mut c_void,
) -> Status {
    let mut state = lock();
    state.blocks += 1;
    // SAFETY: see `init`.
    unsafe { *contexts = state.blocks as *mut c_void };
    Status::SUCCESS
}

unsafe extern "C" fn reg_mr_sym(
    _: *mut c_void,
    data: *mut c_void,
    _: usize,
    _: c_int,
    _: u64,
    handle: *mut *mut c_void,
) -> Status {
    let mut state = lock();
    state.regions.push(data as usize);
    // SAFETY: see `init`.
    unsafe { *handle = state.regions.len() as *mut c_void };
    Status::SUCCESS
}

unsafe extern "C" fn reg_mr_sym_dma_buf(
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: u64,
    _: c_int,
    _: u64,
    _: *mut *mut c_void,
) -> Status {
    Status::INVALID_USAGE
}

unsafe extern "C" fn dereg_mr_sym(_: *mut c_void, _: *mut c_void) -> Status {
    Status::SUCCESS
}

unsafe extern "C" fn nothing(_: *mut c_void) -> Status {
    Status::SUCCESS
}

unsafe extern "C" fn iput(
    block: *mut c_void,
    context: c_int,
    source_offset: u64,
    source: *mut c_void,
    len: usize,
    target_offset: u64,
    target: *mut c_void,
    _: u32,
    _: u32,
    request: *mut *mut c_void,
) -> Status {
    let mut state = lock();
    let (from, to) = ((source, source_offset), (target, target_offset));
    // SAFETY: see `init`.
    unsafe { *request = state.start((block, context), (from, to, len), false, None) };
    Status::SUCCESS
}

unsafe extern "C" fn iput_signal(
    block: *mut c_void,
    context: c_int,
    source_offset: u64,
    source: *mut c_void,
    len: usize,
    target_offset: u64,
    target: *mut c_void,
    _: u32,
    signal_offset: u64,
    signal: *mut c_void,
    value: u64,
    operation: u32,
    strong: bool,
    _: u32,
    request: *mut *mut c_void,
) -> Status {
    let mut state = lock();
    let (from, to) = ((source, source_offset), (target, target_offset));
    let is_inc = operation == SIGNAL_INC && state.fault != Fault::IncByValue;
    let signal = Some((state.place(signal, signal_offset), if is_inc { 1 } else { value }, strong));
    // SAFETY: see `init`.
    unsafe { *request = state.start((block, context), (from, to, len), false, signal) };
    Status::SUCCESS
}

unsafe extern "C" fn iget(
    block: *mut c_void,
    context: c_int,
    remote_offset: u64,
    remote: *mut c_void,
    len: usize,
    local_offset: u64,
    local: *mut c_void,
    _: u32,
    _: u32,
    request: *mut *mut c_void,
) -> Status {
    let mut state = lock();
    let (from, to) = ((remote, remote_offset), (local, local_offset));
    // SAFETY: see `init`.
    unsafe { *request = state.start((block, context), (from, to, len), true, None) };
    Status::SUCCESS
}

unsafe extern "C" fn iflush(
    _: *mut c_void,
    _: c_int,
    _: *mut c_void,
    _: u32,
    request: *mut *mut c_void,
) -> Status {
    // SAFETY: see `init`.
    unsafe { *request = ptr::null_mut() };
    Status::SUCCESS
}

unsafe extern "C" fn test(_: *mut c_void, request: *mut c_void, done: *mut c_int) -> Status {
    let mut state = lock();
    let is_pending = state.pending.iter().any(|one| one.number == request as usize);
    let is_early = state.fault == Fault::DoneEarly && state.random.once_in(16);
    // SAFETY: see `init`.
    unsafe { *done = c_int::from(!is_pending || is_early) };
    Status::SUCCESS
}

unsafe extern "C" fn progress(block: *mut c_void) -> Status {
    lock().work(block as usize);
    Status::SUCCESS
}

unsafe extern "C" fn query_last_error(_: *mut c_void, has_error: *mut bool) -> Status {
    // SAFETY: see `init`.
    unsafe { *has_error = false };
    Status::SUCCESS
}
