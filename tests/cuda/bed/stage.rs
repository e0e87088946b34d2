//! A stager in the hands of a test.

use std::sync::Arc;
use std::time::Duration;

use cuda::{StagedRegion, Staging, StagingContext, StagingError, StagingOptions, WordsOptions};
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::port::copies::{
    Bounce, Copied, Copy, CopyDirection, CopyPort, OrderedStep, Stager, TaggedCopy,
};
use engine::port::{Access, PortError, Posted};

use crate::bed::{Bed, GRANULARITY, fill, peek, until};
use crate::words::stream_only;

pub(crate) const OUT: CopyDirection = CopyDirection::Out;
pub(crate) const IN: CopyDirection = CopyDirection::In;

pub(crate) const CHUNK: usize = 64 << 10;

const RESIDENT: Duration = Duration::from_micros(100);

pub(crate) fn options(bounces: u16, words: WordsOptions) -> StagingOptions {
    let (bounce_len, context, resident) = (CHUNK, StagingContext::Auto, Some(RESIDENT));
    StagingOptions { bounce_len, bounces, words, context, resident }
}

pub(crate) fn register(
    staging: &Arc<Staging>,
    bed: &Bed,
    addr: usize,
    len: usize,
) -> Result<StagedRegion, StagingError> {
    staging.register(addr, bed.range(addr, len), None, Access::LocalAndRemote)
}

pub(crate) fn atomic(op: AtomicOp, width: Width, operand: u64) -> Atomic {
    Atomic { op, width, float: false, operand, compare: 0 }
}

pub(crate) struct Stage {
    pub(crate) port: Box<dyn CopyPort>,
    pub(crate) bounce: Bounce,
    pub(crate) staging: Arc<Staging>,
}

impl Stage {
    pub(crate) fn new(bed: &Bed, addr: usize, len: usize) -> (Self, StagedRegion) {
        Self::with(bed, addr, len, options(4, stream_only()))
    }

    pub(crate) fn on_heap(bed: &Bed, allocations: usize) -> (Self, StagedRegion, usize) {
        let heap = bed.heap(allocations);
        let (stage, region) = Self::new(bed, heap, allocations * GRANULARITY);
        (stage, region, heap)
    }

    pub(crate) fn with(
        bed: &Bed,
        addr: usize,
        len: usize,
        options: StagingOptions,
    ) -> (Self, StagedRegion) {
        Self::of(bed, (addr, len), Access::LocalAndRemote, options)
    }

    pub(crate) fn of(
        bed: &Bed,
        (addr, len): (usize, usize),
        access: Access,
        options: StagingOptions,
    ) -> (Self, StagedRegion) {
        let staging = Staging::new(options);
        assert!(staging.take_stager().is_none(), "nothing is staged yet");
        let region =
            staging.register(addr, bed.range(addr, len), None, access).expect("it can be staged");
        (Self::take(staging), region)
    }

    pub(crate) fn take(staging: Arc<Staging>) -> Self {
        let Stager { copies, bounce } = staging.take_stager().expect("something is staged");
        assert!(staging.take_stager().is_none(), "there is one");
        Self { port: copies, bounce, staging }
    }

    pub(crate) fn register(&self, bed: &Bed, addr: usize, len: usize) -> StagedRegion {
        register(&self.staging, bed, addr, len).expect("it can be staged")
    }

    /// The address of a bounce buffer: those for bytes on their way out come first.
    pub(crate) fn bounce(&self, direction: CopyDirection, number: u16) -> usize {
        let before = match direction {
            OUT => 0,
            IN => self.bounce.out,
        };
        self.bounce.addr + usize::from(before + number) * self.bounce.bounce_len
    }

    pub(crate) fn start(
        &mut self,
        direction: CopyDirection,
        memory: usize,
        number: u16,
        len: usize,
        tag: u32,
    ) {
        let copy = Copy { direction, memory, bounce: self.bounce(direction, number), len };
        assert_eq!(self.give(copy, tag), Ok(Posted::Yes));
    }

    pub(crate) fn give(&mut self, copy: Copy, tag: u32) -> Result<Posted, PortError> {
        self.port.start_all(&[TaggedCopy { copy, tag }])
    }

    pub(crate) fn wait(&mut self) -> Copied {
        until(|| self.port.poll())
    }

    pub(crate) fn ends(&mut self, tag: u32) {
        let copied = self.wait();
        assert_eq!(copied.tag, tag);
        copied.result.expect("it goes well");
    }

    pub(crate) fn run_in_order(&mut self, steps: &[OrderedStep]) {
        let started = self.port.start_in_order(steps, 3);
        assert_eq!(started, Ok(Some(Posted::Yes)), "{steps:?}");
        self.ends(3);
    }

    pub(crate) fn run(&mut self, copy: Copy) {
        assert_eq!(self.give(copy, 76), Ok(Posted::Yes));
        self.ends(76);
    }

    #[track_caller]
    pub(crate) fn carries(&mut self, memory: usize, bytes: &[u8]) {
        self.copy_in(memory, bytes);
        assert!(
            self.copy_out(memory, bytes.len()) == bytes,
            "{} bytes at {memory:#x}",
            bytes.len()
        );
    }

    pub(crate) fn word(&mut self, addr: usize) -> u64 {
        let mut word = [0; 8];
        self.port.load(addr, &mut word).expect("a word of it");
        u64::from_le_bytes(word)
    }

    pub(crate) fn copy_out(&mut self, memory: usize, len: usize) -> Vec<u8> {
        self.start(OUT, memory, 0, len, 77);
        self.ends(77);
        peek(self.bounce(OUT, 0), len)
    }

    pub(crate) fn copy_in(&mut self, memory: usize, bytes: &[u8]) {
        fill(self.bounce(IN, 1), bytes);
        self.start(IN, memory, 1, bytes.len(), 78);
        self.ends(78);
    }
}
