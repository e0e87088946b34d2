//! Frames and greetings of the channel's bootstrap. The first byte of an input says which.

use std::time::Duration;

use nvshmem_transport_libfabric::bootstrap::frame::{Deadline, GREETING, Greeting, Kind, receive};

use crate::{Target, part};

pub(crate) const TARGET: Target = Target { name: "bootstrap-frame", short: 100, run, seeds };

fn run(input: &[u8]) {
    let Some((what, mut bytes)) = input.split_first() else { return };
    if what % 4 == 0 {
        let bytes: [u8; GREETING] = part(bytes, 0);
        match Greeting::decode(&bytes) {
            Ok(greeting) => assert_eq!(greeting.encode(), bytes),
            Err(why) => assert!(!why.is_empty()),
        }
        return;
    }
    let deadline = Deadline::within(Duration::from_secs(60));
    loop {
        let all = bytes;
        let Ok(frame) = receive(&mut bytes, &deadline) else { return };
        let taken = &all[..all.len() - bytes.len()];
        let mut again = vec![frame.kind as u8];
        again.extend(frame.number.to_le_bytes());
        again.extend((frame.bytes.len() as u32).to_le_bytes());
        assert_eq!([again, frame.bytes].concat(), taken);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let greeting = Greeting { me: 1, n_pes: 3, nonce: [7; 16] };
    let frame = |kind: Kind, number: u8, bytes: &[u8]| {
        [&[kind as u8, number, 0, 0, 0, bytes.len() as u8, 0, 0, 0], bytes].concat()
    };
    let frames = [
        frame(Kind::Welcome, 0, &[]),
        frame(Kind::Gather, 1, b"what a PE gives"),
        frame(Kind::Refusal, 0, b"there is a PE 1 already"),
    ];
    let endless = [1, 3, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x3f];
    vec![
        [&[0], &greeting.encode()[..]].concat(),
        [vec![1], frames.concat()].concat(),
        endless.to_vec(),
    ]
}
