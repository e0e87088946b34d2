//! Text of sysfs. The first byte of an input says what it is read as.

use ofi::topology::{PciAddress, cpus, numa_node};

use crate::Target;

pub(crate) const TARGET: Target = Target { name: "sysfs", short: 200, run, seeds };

fn run(input: &[u8]) {
    let Some((what, text)) = input.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    match what % 3 {
        0 => {
            let Ok(address) = text.parse::<PciAddress>() else { return };
            assert!(address.device < 32 && address.function < 8);
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        1 => {
            let node = numa_node(&text);
            assert!(node.is_none_or(|node| numa_node(&node.to_string()) == Some(node)));
        }
        _ => assert!(cpus(&text, 1024).iter().all(|cpu| *cpu < 1024)),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let texts: [(u8, &str); 7] = [
        (0, "0000:3b:00.1\n"),
        (0, "10000:e1:1f.7"),
        (0, "00000000:3B:00.1"),
        (1, "1\n"),
        (1, "-1\n"),
        (2, "0-3,8,10-11\n"),
        (2, "0-1023,5-2,x"),
    ];
    texts.iter().map(|(what, text)| [&[*what], text.as_bytes()].concat()).collect()
}
