//! Memory handles, which NVSHMEM carries from one PE to another.

use engine::ids::Pe;
use engine::port::Addressing;
use engine::wire::handle::{Handle, MAX_RAILS};

use crate::{Target, part};

pub(crate) const TARGET: Target = Target {
    name: "handle",
    short: 200,
    run: |input| {
        let Ok(handle) = Handle::decode(&part(input, 0)) else { return };
        assert!(handle.keys.len() <= MAX_RAILS && handle.len > 0);
        assert!(handle.base.checked_add(handle.len).is_some());
        assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
    },
    seeds: || [None, Some(4096)].map(|staged| sample(staged).encode().to_vec()).to_vec(),
};

fn sample(staged: Option<u64>) -> Handle {
    Handle {
        owner: Pe(1),
        base: 1 << 36,
        len: 1 << 20,
        region: 0,
        stamp: 1,
        addressing: Addressing::Offset,
        keys: if staged.is_none() { vec![1, 2] } else { Vec::new() },
        staged,
        direct: staged.is_none(),
    }
}
