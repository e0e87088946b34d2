//! The fake fabric, as tests use it: they have it misbehave, and look at what it has done.

use std::hash::Hash;
use std::sync::Arc;

use crate::baton::Baton;
use crate::prelude::*;
use crate::world::mail::Letter;

fn toggle<T: Hash + Eq>(set: &mut HashSet<T>, what: T, is_in: bool) {
    if is_in {
        set.insert(what);
    } else {
        set.remove(&what);
    }
}

/// The fabric that fake ports post to. Clones are the same fabric.
#[derive(Clone, Debug)]
pub struct FakeFabric {
    world: Arc<Mutex<World>>,
    baton: Arc<Baton>,
}

impl FakeFabric {
    pub fn new(seed: u64, n_pes: u32, script: Script) -> Self {
        let world = Arc::new(Mutex::new(World::new(seed, n_pes, script)));
        Self { world, baton: Arc::default() }
    }

    /// The address of a PE's rail, the same in every port's address table.
    pub fn address(pe: Pe, rail: RailId) -> PeerAddr {
        PeerAddr(u64::from(pe.0) << 8 | u64::from(rail.0))
    }

    /// Everything behind the lock, for what a test wants to change or to look at.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn alloc(&self, pe: Pe, len: usize) -> usize {
        self.alloc_reached(pe, len, Reach::Direct)
    }

    /// As [`FakeFabric::alloc`], memory that is reached in this way. The fake panics when the
    /// fabric or a lane touches it in another.
    pub fn alloc_reached(&self, pe: Pe, len: usize, reach: Reach) -> usize {
        self.world().memory.alloc(pe, len, reach)
    }

    pub fn store(&self, pe: Pe, addr: usize, bytes: &[u8]) {
        self.world().memory.any_bytes_mut(pe, addr, bytes.len()).copy_from_slice(bytes);
    }

    pub fn load(&self, pe: Pe, addr: usize, len: usize) -> Vec<u8> {
        self.world().memory.any_bytes_mut(pe, addr, len).to_vec()
    }

    pub fn forge_message(&self, to: Pe, rail: RailId, bytes: &[u8]) {
        self.world().deliver(to, rail, Mail::Message(bytes.to_vec()));
    }

    /// Something comes to a PE's rail that cannot be received, with this error.
    pub fn break_message(&self, to: Pe, rail: RailId, code: i32) {
        self.world().deliver(to, rail, Mail::Broken(code));
    }

    pub fn messages_to(&self, pe: Pe) -> Vec<Vec<u8>> {
        let world = self.world();
        let bytes = |letter: &Letter| match &letter.mail {
            Mail::Message(bytes) if letter.to == pe => Some(bytes.clone()),
            _ => None,
        };
        world.letters.values().filter_map(bytes).collect()
    }

    /// From now on nothing sent to or read from the PE is delivered, until [`FakeFabric::resume`].
    pub fn stall(&self, pe: Pe) {
        toggle(&mut self.world().links.stalled, pe, true);
    }

    pub fn resume(&self, pe: Pe) {
        toggle(&mut self.world().links.stalled, pe, false);
    }

    /// From now on, or no longer, the fabric has no room for anything to the PE.
    pub fn refuse(&self, pe: Pe, refuses: bool) {
        toggle(&mut self.world().unreachable, pe, refuses);
    }

    pub fn hold_up_messages(&self, pe: Pe, nanoseconds: u64) {
        self.world().held_up.insert(pe, nanoseconds);
    }

    /// From now on, or no longer, targets are not told of writes that have landed.
    pub fn hold_immediate_data(&self, hold: bool) {
        self.world().links.holds_data = hold;
    }

    /// From now on nothing goes from one PE's rail to another's, or all does again: what does not
    /// is neither delivered nor refused, and what is under way is delivered late.
    pub fn set_link(&self, from: (Pe, RailId), to: (Pe, RailId), up: bool) {
        toggle(&mut self.world().links.down, (from, to), !up);
    }

    pub fn set_rail(&self, pe: Pe, rail: RailId, up: bool) {
        toggle(&mut self.world().links.down_rails, (pe, rail), !up);
    }

    /// A PE's rail fails as a whole: its next poll says so.
    pub fn fail_rail(&self, pe: Pe, rail: RailId) {
        self.world().report(pe, rail, None, "the rail is gone");
    }

    /// As [`FakeFabric::fail_rail`], where no poll says so, but the rail when it is asked.
    pub fn trouble(&self, pe: Pe, rail: RailId) {
        self.world().troubled.push((pe, rail));
    }

    /// Tells a PE's rail, as immediate data, what no lane has sent.
    pub fn forge_immediate_data(&self, to: Pe, rail: RailId, data: u64) {
        self.world().deliver(to, rail, Mail::ImmediateData(data));
    }

    /// After `after` calls of this kind, of any PE, the next `count` fail.
    pub fn fail_calls(&self, call: PortCall, after: u32, count: u32) {
        if count > 0 {
            self.world().failing_calls.push((call, after, count));
        }
    }

    /// Runs one function per lane, each on a thread of its own, exactly one at a time: where a lane
    /// waits, the seed picks who goes on. Gives their results in order.
    ///
    /// A lane whose function has ended goes on making progress until all have, as a proxy thread
    /// does: the function does that itself, with [`FakeFabric::step`].
    pub fn race<R: Send>(
        &self,
        seed: u64,
        runners: Vec<Box<dyn FnOnce() -> R + Send + '_>>,
    ) -> Vec<std::thread::Result<R>> {
        self.baton.start(runners.len(), seed);
        std::thread::scope(|scope| {
            let threads: Vec<_> = runners
                .into_iter()
                .enumerate()
                .map(|(number, run)| {
                    let baton = &self.baton;
                    scope.spawn(move || {
                        baton.enter(number);
                        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                        baton.leave(number);
                        result
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().and_then(|result| result)).collect()
        })
    }

    pub fn step(&self) {
        self.baton.pass();
    }

    pub fn deliveries(&self) -> Vec<Delivery> {
        let delivered = |event: &Event| match event {
            Event::Delivered(delivery) => Some(*delivery),
            Event::Applied { .. } | Event::Copied { .. } => None,
        };
        self.world().events.iter().filter_map(delivered).collect()
    }

    pub fn events(&self) -> Vec<Event> {
        self.world().events.clone()
    }

    /// From now on what lanes ask of their ports is written down, for [`FakeFabric::calls`].
    pub fn trace_calls(&self) {
        self.world().calls = Some(Vec::new());
    }

    pub fn bounce_memory(&self, pe: Pe) -> usize {
        let world = self.world();
        let mut bounces = world.memory.bounces.iter();
        bounces.find(|(of, ..)| *of == pe).expect("it stages").1
    }

    pub fn calls(&self) -> Vec<Call> {
        self.world().calls.clone().unwrap_or_default()
    }

    pub fn in_flight(&self) -> usize {
        self.world().in_flight()
    }

    pub fn now(&self) -> u64 {
        self.world().now
    }

    pub fn pass_time(&self, nanoseconds: u64) {
        self.world().now += nanoseconds;
    }
}
