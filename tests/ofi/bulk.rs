//! Bulk connections. `tests/plugin` has what they move.

use std::thread;
use std::time::Instant;

use engine::ids::{RailId, WrId};
use engine::port::{Access, DataPath, Operation, Posted};
use ofi::{BulkChoice, Options, Provider};

use crate::process::{HANG, Lane, Memory, completed, open, options};

/// Without a thread of its own the peer answers when it is polled.
#[test]
fn unreached_peer_gets_nothing_by_bulk() {
    const RAIL: RailId = RailId(0);
    const LEN: usize = 1 << 20;
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let with = |count| Options { bulk: BulkChoice::Each(count), ..options(provider) };
        let [mut from, mut to] = [2, 0].map(|connections| open(&with(connections)));
        let (there, here) = (to.proxy.address(RAIL).to_vec(), from.proxy.address(RAIL).to_vec());
        let peer = from.proxy.insert(RAIL, &[there]).expect("the second's")[0];
        to.proxy.insert(RAIL, &[here]).expect("the first's");
        let near = Memory::new(&from, vec![7; LEN], Access::Local);
        let far = Memory::new(&to, vec![0; LEN], Access::LocalAndRemote);
        let write = far.write(RAIL, 0, near.local(0, Lane::Proxy, RAIL), LEN);
        let port = &mut from.proxy;
        for _ in 0..300 {
            let answer = port.post_bulk(RAIL, peer, WrId(1), Operation::Transfer(&write));
            assert_eq!(answer, Ok(None), "{provider:?}");
            assert!(completed(port, RAIL).is_empty());
            thread::yield_now();
        }
        let (begun, mut posted) = (Instant::now(), false);
        loop {
            let by_bulk = |port: &mut ofi::OfiPort| {
                port.post_bulk(RAIL, peer, WrId(1), Operation::Transfer(&write)).expect("a post")
            };
            posted = posted || by_bulk(port) == Some(Posted::Yes);
            assert!(completed(&mut to.proxy, RAIL).is_empty(), "it has posted nothing");
            if completed(port, RAIL) == [WrId(1)] {
                break;
            }
            assert!(begun.elapsed() < HANG, "it is reached when it goes on");
            thread::yield_now();
        }
        assert_eq!(far.now_all(), near.bytes);
    }
}
