//! Records that PEs exchange to connect. Inputs: step, number of PEs, hellos, and all addresses.

use engine::port::packet::MAX_LONG_MESSAGE;
use engine::wire::handle::MAX_RAILS;
use engine::wire::handshake::{Addresses, HELLO_BYTES, Hello, MAX_ADDRESS, RailAddress, SetupStep};

use crate::Target;

const MAX_PES: u8 = 3;

pub(crate) const TARGET: Target = Target { name: "handshake", short: 100, run, seeds };

fn run(input: &[u8]) {
    let [step, n_pes, records @ ..] = input else { return };
    let step = if step % 2 == 0 { SetupStep::Open } else { SetupStep::Ready };
    let n_pes = usize::from(1 + n_pes % MAX_PES);
    let (hellos, addresses) = records.split_at(records.len().min(n_pes * HELLO_BYTES));
    let Ok(hellos) = Hello::agree(step, hellos) else { return };
    assert!(hellos.len() <= n_pes);
    for hello in &hellos {
        assert!(hello.step == step && hello.failure.is_none());
        assert!((1..=MAX_RAILS).contains(&hello.rails.into()));
        // Text that is no text is read as well as can be, and written as it was read.
        let read = Hello::decode(&hello.encode()).unwrap();
        assert_eq!(Hello::decode(&read.encode()), Some(read));
    }
    let Ok(all) = Addresses::decode_all(&hellos, addresses) else { return };
    for (addresses, hello) in all.iter().zip(&hellos) {
        assert_eq!(addresses.0.len(), usize::from(hello.rails));
        assert!(addresses.0.iter().all(|rail| (1..=MAX_ADDRESS).contains(&rail.address.len())));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let hello = |step, rails: u8, failure: Option<&str>| Hello {
        step,
        provider: String::from("tcp"),
        rails,
        immediate_data: 8,
        longest_message: MAX_LONG_MESSAGE as u16,
        longest_address: 16,
        unheard: 0,
        failure: failure.map(String::from),
        share: *b"0123456789abcdef",
    };
    let rail = RailAddress { fabric: 7, address: vec![0x11; 16], name: String::from("eth0") };
    let good = [hello(SetupStep::Open, 2, None), hello(SetupStep::Open, 1, None)];
    let addresses =
        good.iter().flat_map(|of| Addresses(vec![rail.clone(); of.rails.into()]).encode(&good));
    let all = good.iter().flat_map(|of| of.encode().to_vec()).chain(addresses);
    vec![
        [0, 1].into_iter().chain(all).collect(),
        [&[1, 0], &hello(SetupStep::Ready, 1, Some("no room")).encode()[..]].concat(),
        [&[1, 0], &hello(SetupStep::Ready, 1, None).encode()[..]].concat(),
    ]
}
