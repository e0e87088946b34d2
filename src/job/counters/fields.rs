//! The counters by name, each with what it counts: for files, pages and whoever reads them.

use engine::rails::counters::{PeerCounters, RailCounters, StagedCounters};

/// A counter of something.
pub struct Field<T: 'static> {
    /// Its name in files.
    pub name: &'static str,
    /// What it counts. No full stop.
    pub doc: &'static str,
    /// It may fall: it is no sum.
    pub is_gauge: bool,
    /// Its value.
    pub(super) of: fn(&T) -> u64,
}

impl<T> std::fmt::Debug for Field<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! fields {
    ($type:ty: $($name:ident $what:ident $doc:literal)*) => {
        &[$(Field {
            name: fields!(@name $name),
            doc: $doc,
            is_gauge: fields!(@$what),
            of: |counters: &$type| u64::from(counters.$name),
        }),*]
    };
    // The file has a unit in the name.
    (@name rate) => { "bytes_per_second" };
    (@name $name:ident) => { stringify!($name) };
    (@sum) => { false };
    (@gauge) => { true };
}

/// Those of a rail.
pub const RAIL: &[Field<RailCounters>] = fields! { RailCounters:
    posted sum "segments that the fabric has taken"
    bytes sum "bytes of these"
    completed sum "segments that have completed, with or without an error"
    queued sum "segments that had to wait in the queue of the rail"
    again sum "times that the fabric had no room"
    max_in_flight gauge "most segments in flight at a time"
    by_load sum "segments that the rail was given by its load, rather than in turn"
    bulk_bytes sum "bytes of those that threads of their own move"
    rate gauge "the rate that it has lately shown to such segments, in bytes per second"
    failures sum "times that a path over it was taken out of service"
    reissued sum "segments that had to be posted again, on this rail or another"
    resent sum "messages that had to be sent again"
    foreign sum "messages that no PE of the job has written"
};

/// Those of a peer. They are modulo 2^32.
pub const PEER: &[Field<PeerCounters>] = fields! { PeerCounters:
    writes sum "segments written to it, and messages, which write there as well"
    reads sum "segments read from it"
    sent sum "numbered messages to it: atomics, signals, requests about staged memory"
    received sum "numbered messages from it"
};

/// Those of staged operations.
pub const STAGED: &[Field<StagedCounters>] = fields! { StagedCounters:
    by_fabric sum "bytes of staged operations that this PE has read or written through the fabric"
    in_messages sum "bytes of staged operations that went in messages of this PE"
    shared sum "bytes copied in from bounce buffers that a peer shares, which no processor has touched"
    by_cpu sum "bytes that the processor has copied between memory of this PE and bounce buffers"
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use engine::ids::Pe;

    fn values<T>(fields: &[Field<T>], of: &T) -> BTreeSet<u64> {
        fields.iter().map(|field| (field.of)(of)).collect()
    }

    #[test]
    fn no_counter_is_left_out() {
        let rail = RailCounters {
            posted: 1,
            bytes: 2,
            completed: 3,
            again: 4,
            queued: 5,
            by_load: 6,
            bulk_bytes: 13,
            rate: 7,
            max_in_flight: 8,
            failures: 9,
            reissued: 10,
            resent: 11,
            foreign: 12,
        };
        assert_eq!(values(RAIL, &rail), (1..=13).collect());
        let peer = PeerCounters { pe: Pe(9), writes: 1, reads: 2, sent: 3, received: 4 };
        assert_eq!(values(PEER, &peer), (1..=4).collect());
        let staged = StagedCounters { by_fabric: 1, in_messages: 2, shared: 3, by_cpu: 4 };
        assert_eq!(values(STAGED, &staged), (1..=4).collect());
    }
}
