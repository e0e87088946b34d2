//! The plugin's library, as NCCL loads and calls it: one interface for the tables of all versions.

use std::ffi::{CStr, OsString, c_int, c_void};
use std::fmt;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::ptr;

use libloading::os::unix::Library;
use nvshmem_transport_libfabric::nccl::abi::{
    Config, HANDLE_BYTES, Properties, RmaProperties, Status, Table14, Table15, Table16,
};

use crate::mock::log;

pub(crate) const LIBRARY: &str = "NCCL_TEST_LIBRARY";
/// Names the symbol that they look for, see [`Version::of_process`].
pub(crate) const SYMBOL: &str = "NCCL_TEST_SYMBOL";

/// By which symbol NCCL finds the plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    V16,
    V15,
    V14,
}

impl Version {
    pub(crate) const ALL: [Self; 3] = [Self::V16, Self::V15, Self::V14];

    pub(crate) fn symbol(self) -> &'static str {
        nvshmem_transport_libfabric::nccl::abi::SYMBOLS
            [Self::ALL.iter().position(|version| *version == self).unwrap_or(0)]
    }

    pub(crate) fn of_process() -> Self {
        let Ok(name) = std::env::var(SYMBOL) else { return Self::V16 };
        Self::ALL.into_iter().find(|version| version.symbol() == name).expect("a known symbol")
    }

    pub(crate) fn has_flags(self) -> bool {
        matches!(self, Self::V15 | Self::V16)
    }
}

#[derive(Clone, Copy)]
enum Table {
    V14(&'static Table14),
    V15(&'static Table15),
    V16(&'static Table16),
}

macro_rules! any {
    ($self:expr, $table:ident => $call:expr) => {
        match $self.table {
            Table::V14($table) => $call,
            Table::V15($table) => $call,
            Table::V16($table) => $call,
        }
    };
}

/// A call of a table: behind what all versions take, what v14 and what later ones take.
macro_rules! by_version {
    ($self:ident.$call:ident($($both:expr),*), [$($v14:expr),*], [$($v15:expr),*]) => {
        match $self.table {
            Table::V14(table) => (table.$call)($($both,)* $($v14),*),
            Table::V15(table) => (table.$call)($($both,)* $($v15),*),
            Table::V16(table) => (table.$call)($($both,)* $($v15),*),
        }
    };
}

macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        // SAFETY: a name of what is the plugin's, which may be used on any thread.
        unsafe impl Send for $name {}
        // SAFETY: the same.
        unsafe impl Sync for $name {}
    )*};
}

opaque!(Instance Listening Group Block Region Request);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rank(pub(crate) u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Context(pub(crate) c_int);

/// A place in registered memory. Of a signal alone, no region and offset 0 is where its data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub(crate) region: Region,
    pub(crate) offset: u64,
}

impl At {
    pub(crate) const NOWHERE: Self = Self { region: Region(ptr::null_mut()), offset: 0 };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signal {
    pub(crate) at: At,
    pub(crate) value: u64,
    /// `SIGNAL_INC` or `SIGNAL_ADD` of the plugin's `nccl::abi`.
    pub(crate) operation: u32,
    /// Behind everything before it, not behind its own data alone.
    pub(crate) strong: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) addr: *mut u8,
    pub(crate) len: usize,
    /// `PTR_HOST` or `PTR_CUDA` of the plugin's `nccl::abi`.
    pub(crate) kind: c_int,
    pub(crate) flags: u64,
    pub(crate) dma_buf: Option<RawFd>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) call: &'static str,
    pub(crate) status: Status,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} returned {}", self.call, self.status.0)
    }
}

pub(crate) type Answer<T> = Result<T, Refused>;

fn check(call: &'static str, status: Status) -> Answer<()> {
    if status == Status::SUCCESS { Ok(()) } else { Err(Refused { call, status }) }
}

/// The library with a table of it, closed when dropped, as by NCCL after the last communicator.
///
/// Its functions get what the plugin gave, or what is wrong on purpose. Scenarios keep registered
/// memory until its registration ends.
pub(crate) struct Plugin {
    table: Table,
    pub(crate) version: Version,
    _library: Library,
}

/// A put or a get, as a method of [`Plugin`] with the table's function.
macro_rules! transfer {
    ($name:ident, $function:ident, $text:literal) => {
        pub(crate) fn $name(&self, on: On, from: At, len: usize, to: At) -> Answer<Request> {
            let On { block: Block(block), context: Context(context), rank: Rank(rank), flags } = on;
            let (source, target) = (from.region.0, to.region.0);
            let (from, to) = (from.offset, to.offset);
            let mut request = ptr::null_mut();
            let into = &raw mut request;
            // SAFETY: see the type; a place for the result.
            let status = unsafe {
                by_version!(
                    self.$function(block, context, from, source, len, to, target, rank),
                    [into],
                    [flags, into]
                )
            };
            check($text, status)?;
            assert!(!request.is_null(), "{} has succeeded with a null request", $text);
            Ok(Request(request))
        }
    };
}

/// Calls that take one object alone and answer with a status.
macro_rules! calls_of_one {
    ($($name:ident($type:ty) = $function:ident, $text:literal;)*) => {$(
        pub(crate) fn $name(&self, of: $type) -> Answer<()> {
            let function = any!(self, table => table.$function);
            // SAFETY: see the type.
            check($text, unsafe { function(of.0) })
        }
    )*};
}

/// Calls a function whose last argument is the place for its answer, which has a value before.
macro_rules! ask {
    ($self:ident, $text:literal, $function:ident($($argument:expr),*), $before:expr) => {{
        let mut answer = $before;
        let function = any!($self, table => table.$function);
        // SAFETY: see the type; a place for the answer.
        check($text, unsafe { function($($argument,)* &raw mut answer) }).map(|()| answer)
    }};
}

impl Plugin {
    pub(crate) fn of_process() -> Self {
        Self::open(Version::of_process())
    }

    pub(crate) fn open(newest: Version) -> Self {
        let path: OsString = std::env::var_os(LIBRARY).expect("a job says which library");
        // SAFETY: the plugin's initialisers are those of Rust's library.
        let library = unsafe { Library::open(Some(PathBuf::from(path)), libc::RTLD_NOW) }.unwrap();
        let known = Version::ALL.into_iter().skip_while(|version| *version != newest);
        let found = known.into_iter().find_map(|version| {
            let symbol = version.symbol().as_bytes();
            // SAFETY: tables are data of these types, by name, in the library that this keeps.
            let table = unsafe {
                match version {
                    Version::V16 => {
                        library.get::<*const Table16>(symbol).map(|at| Table::V16(&**at))
                    }
                    Version::V15 => {
                        library.get::<*const Table15>(symbol).map(|at| Table::V15(&**at))
                    }
                    Version::V14 => {
                        library.get::<*const Table14>(symbol).map(|at| Table::V14(&**at))
                    }
                }
            };
            Some((version, table.ok()?))
        });
        let (version, table) = found.expect("a symbol that this NCCL knows");
        Self { table, version, _library: library }
    }

    pub(crate) fn name(&self) -> String {
        // SAFETY: a string of the plugin's.
        let name = unsafe { CStr::from_ptr(any!(self, table => table.name)) };
        name.to_str().unwrap().to_owned()
    }

    pub(crate) fn init(&self, communicator: u64) -> Answer<Instance> {
        let mut ctx = ptr::null_mut();
        let init = any!(self, table => table.init);
        // SAFETY: a place for the result, and a logger that lives as long as the process.
        check("init", unsafe { init(&raw mut ctx, communicator, log::logger()) })?;
        Ok(Instance(ctx))
    }

    pub(crate) fn devices(&self) -> Answer<c_int> {
        ask!(self, "devices", devices(), 0)
    }

    pub(crate) fn properties(&self, device: c_int) -> Answer<Properties> {
        // SAFETY: numbers and pointers, for which zero is a value.
        let none: Properties = unsafe { std::mem::zeroed() };
        ask!(self, "getProperties", get_properties(device), none)
    }

    pub(crate) fn rma_properties(&self, group: Group) -> Option<Answer<RmaProperties>> {
        let Table::V16(table) = self.table else { return None };
        let mut properties = RmaProperties { flushes_all_puts_on_any_signal: false };
        // SAFETY: a place for the result.
        let status = unsafe { (table.get_rma_properties)(group.0, &raw mut properties) };
        Some(check("getRmaProperties", status).map(|()| properties))
    }

    pub(crate) fn listen(
        &self,
        instance: Instance,
        device: c_int,
    ) -> Answer<(Listening, [u8; HANDLE_BYTES])> {
        let (mut handle, mut listening) = ([0; HANDLE_BYTES], ptr::null_mut());
        let listen = any!(self, table => table.listen);
        let to = handle.as_mut_ptr().cast();
        // SAFETY: places for the results.
        check("listen", unsafe { listen(instance.0, device, to, &raw mut listening) })?;
        Ok((Listening(listening), handle))
    }

    /// `instance` is not always the plugin's own: see [`crate::mock::group`].
    pub(crate) fn connect(
        &self,
        instance: Instance,
        handles: &[Vec<u8>],
        rank: Rank,
        listening: Listening,
    ) -> Answer<Group> {
        assert!(handles.iter().all(|handle| handle.len() == HANDLE_BYTES));
        let places: Vec<*const c_void> =
            handles.iter().map(|handle| handle.as_ptr().cast()).collect();
        let (ranks, rank) = (places.len() as c_int, rank.0 as c_int);
        let (places, listening) = (places.as_ptr(), listening.0);
        let connected = ask!(
            self,
            "connect",
            connect(instance.0, places, ranks, rank, listening),
            ptr::null_mut()
        );
        connected.map(Group)
    }

    pub(crate) fn create_context(&self, group: Group, contexts: c_int) -> Answer<Block> {
        let mut config = Config { contexts, traffic_class: -1, rank_stride: 1 };
        let config = &raw mut config;
        ask!(self, "createContext", create_context(group.0, config), ptr::null_mut()).map(Block)
    }

    pub(crate) fn register(&self, group: Group, what: Registration) -> Answer<Region> {
        let Registration { addr, len, kind, flags, dma_buf } = what;
        let (group, addr, none) = (group.0, addr.cast(), ptr::null_mut());
        let handle = match dma_buf {
            None => ask!(self, "regMrSym", reg_mr_sym(group, addr, len, kind, flags), none),
            Some(fd) => {
                ask!(
                    self,
                    "regMrSymDmaBuf",
                    reg_mr_sym_dma_buf(group, addr, len, kind, 0, fd, flags),
                    none
                )
            }
        }?;
        assert!(!handle.is_null(), "NCCL takes no handle for a failure");
        Ok(Region(handle))
    }

    pub(crate) fn deregister(&self, group: Group, region: Region) -> Answer<()> {
        let deregister = any!(self, table => table.dereg_mr_sym);
        // SAFETY: see the type.
        check("deregMrSym", unsafe { deregister(group.0, region.0) })
    }

    calls_of_one! {
        close_listen(Listening) = close_listen, "closeListen";
        destroy_context(Block) = destroy_context, "destroyContext";
        close(Group) = close_coll, "closeColl";
        finalize(Instance) = finalize, "finalize";
        progress(Block) = progress, "rmaProgress";
    }

    transfer!(put, iput, "iput");
    transfer!(get, iget, "iget");

    pub(crate) fn put_signal(
        &self,
        on: On,
        from: At,
        len: usize,
        to: At,
        signal: Signal,
    ) -> Answer<Request> {
        let On { block: Block(block), context: Context(context), rank: Rank(rank), flags } = on;
        let Signal { at, value, operation, strong } = signal;
        let (source, target, word) = (from.region.0, to.region.0, at.region.0);
        let (from, to, at) = (from.offset, to.offset, at.offset);
        let mut request = ptr::null_mut();
        let into = &raw mut request;
        // SAFETY: see the type; a place for the result.
        let status = unsafe {
            by_version!(
                self.iput_signal(
                    block, context, from, source, len, to, target, rank, at, word, value, operation
                ),
                [strong, into],
                [strong, flags, into]
            )
        };
        check("iputSignal", status)?;
        assert!(!request.is_null(), "iputSignal has succeeded with a null request");
        Ok(Request(request))
    }

    pub(crate) fn flush(&self, on: On, region: Region) -> Answer<Option<Request>> {
        let On { block: Block(block), context: Context(context), rank: Rank(rank), .. } = on;
        let request =
            ask!(self, "iflush", iflush(block, context, region.0, rank), ptr::null_mut())?;
        Ok((!request.is_null()).then_some(Request(request)))
    }

    pub(crate) fn test(&self, group: Group, request: Request) -> Answer<bool> {
        ask!(self, "test", test(group.0, request.0), 0).map(|done| done != 0)
    }

    pub(crate) fn has_error(&self, block: Block) -> Answer<bool> {
        ask!(self, "queryLastError", query_last_error(block.0), false)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct On {
    pub(crate) block: Block,
    pub(crate) context: Context,
    pub(crate) rank: Rank,
    /// [`nvshmem_transport_libfabric::nccl::abi::MORE_FOLLOWS`], where the version has it.
    pub(crate) flags: u32,
}
