//! NICs that this PE opens, by the location of its GPU among those of this machine's PEs.

use std::fs;

use log::{info, warn};

use super::collectives::Collectives;
use crate::job::error::JobError;
use crate::logging;
use crate::settings::Settings;
use cuda::{Device, Driver};
use engine::ids::Pe;
use engine::wire::handshake::fabric_hash;
use ofi::topology::{NicInputs, NicPlan, PciAddress, Topology};
use ofi::{Device as Nic, Devices, namespace};

const SEAT_BYTES: usize = 16 + GPU_BYTES;

const GPU_BYTES: usize = 24;

/// The number of PEs of this machine, and whose networks they share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Neighbours {
    pub(crate) here: u32,
    /// All PEs of the job are in this network namespace.
    pub(crate) on_loopback: bool,
    /// Some PEs of this machine may be in another.
    pub(crate) apart: bool,
}

/// Returns this PE's NICs, its neighbours, and a number for the network of each PE.
pub(crate) fn rails(
    settings: &Settings,
    devices: &[Nic],
    collectives: &dyn Collectives,
    me: Pe,
    picked: &[usize],
) -> Result<(NicPlan, Neighbours, Vec<u64>), JobError> {
    let machine = machine(settings);
    let network = network(machine, namespace("net"));
    let gpu = gpu();
    let seats = collectives.allgather(&encode([machine, network], gpu))?;
    let (place_here, gpus) = same_host(&seats, machine, me);
    let (on_loopback, apart) = networks(&seats, [machine, network]);
    let near = Neighbours { here: gpus.len() as u32, on_loopback, apart };

    let place = |nic: &Nic| PciAddress::of_path(nic.pci_path.as_deref()?);
    let nics: Vec<Option<PciAddress>> = devices.iter().map(place).collect();
    let plan = plan(&Topology::system(), settings, &nics, (place_here, &gpus), picked);
    let name = |nic: usize| devices.get(nic).map_or("?", |device| device.name.as_str());
    if nics.iter().any(Option::is_some) {
        let described: Vec<String> = plan
            .nics
            .iter()
            .map(|(nic, distance)| match distance {
                Some(distance) => format!("{} ({distance})", name(*nic)),
                None => name(*nic).to_owned(),
            })
            .collect();
        let gpu = gpu.map_or_else(|| String::from("not known"), |gpu| gpu.to_string());
        info!(
            target: logging::TOPO,
            "GPU {gpu}; NICs {}: {}", plan.decided, described.join(", ")
        );
    }
    if let Some((nic, distance)) = plan.passed_over {
        warn!(
            target: logging::TOPO,
            "{} is nearer to this PE's GPU ({distance}) than the NICs in use, {}",
            name(nic),
            plan.decided
        );
    }
    let networks = seats.chunks_exact(SEAT_BYTES).map(|seat| number(&seat[8..16])).collect();
    Ok((plan, near, networks))
}

fn plan(
    topology: &Topology,
    settings: &Settings,
    nics: &[Option<PciAddress>],
    (me, gpus): (usize, &[Option<PciAddress>]),
    picked: &[usize],
) -> NicPlan {
    let named = matches!(settings.devices, Devices::Include(_));
    let known = NicInputs { nics, gpus, me, named, picked };
    NicPlan::make(topology, &known, usize::from(settings.max_nic_per_pe))
}

fn same_host(seats: &[u8], machine: u64, me: Pe) -> (usize, Vec<Option<PciAddress>>) {
    let seats = seats.chunks_exact(SEAT_BYTES).map(decode).enumerate();
    let here = seats.filter(|(_, ([other, _], _))| *other == machine);
    let (pes, gpus): (Vec<usize>, Vec<Option<PciAddress>>) =
        here.map(|(pe, (_, gpu))| (pe, gpu)).unzip();
    (pes.iter().position(|pe| *pe == me.index()).unwrap_or(0), gpus)
}

fn gpu() -> Option<PciAddress> {
    let driver = Driver::of_process().ok()?;
    Device::current(driver)?.pci_address().ok()?.parse().ok()
}

pub(crate) fn machine(settings: &Settings) -> u64 {
    if let Some(named) = &settings.host_id {
        return fabric_hash(named);
    }
    fabric_hash(&booted())
}

/// Returns the kernel's boot id, which containers share; the host name in case that is hidden.
fn booted() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let boot = read("/proc/sys/kernel/random/boot_id");
    if boot.is_empty() { read("/proc/sys/kernel/hostname") } else { boot }
}

/// Identifies a network namespace; 0 if its number is unknown. Hosts have the same numbers, and the
/// user may have given them one name.
fn network(machine: u64, number: u64) -> u64 {
    let known = (number != 0).then(|| fabric_hash(&format!("{machine} {} {number}", booted())));
    known.unwrap_or(0)
}

/// Returns whether all PEs are in this network, and whether any of this machine may not be.
fn networks(seats: &[u8], [machine, network]: [u64; 2]) -> (bool, bool) {
    let all = || seats.chunks_exact(SEAT_BYTES).map(|seat| decode(seat).0);
    let is_in = |other: u64| network != 0 && other == network;
    (all().all(|[_, other]| is_in(other)), all().any(|[of, other]| of == machine && !is_in(other)))
}

fn encode([machine, network]: [u64; 2], gpu: Option<PciAddress>) -> [u8; SEAT_BYTES] {
    let mut bytes = [0; SEAT_BYTES];
    bytes[..8].copy_from_slice(&machine.to_le_bytes());
    bytes[8..16].copy_from_slice(&network.to_le_bytes());
    let text = gpu.map_or_else(String::new, |gpu| gpu.to_string());
    // An address has 20 characters at most.
    let len = text.len().min(GPU_BYTES);
    bytes[16..16 + len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

fn decode(bytes: &[u8]) -> ([u64; 2], Option<PciAddress>) {
    let text = std::str::from_utf8(&bytes[16..]).unwrap_or_default();
    let numbers = [number(&bytes[..8]), number(&bytes[8..16])];
    (numbers, text.trim_end_matches('\0').parse().ok())
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use test_support::scratch::Scratch;
    use test_support::topology::lay_out;

    use super::*;

    #[test]
    fn machine_is_known_by_boot_id() {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux has one");
        assert_eq!(machine(&Settings::default()), fabric_hash(&boot));
        assert_ne!(machine(&Settings::default()), fabric_hash(""));
        let host_id = Some(String::from("node 7"));
        assert_eq!(machine(&Settings { host_id, ..Settings::default() }), fabric_hash("node 7"));
    }

    #[test]
    fn seats_decode_as_encoded() {
        for gpu in ["", "0000:3b:00.0", "10000:e1:1f.7", "ffffffff:ff:1f.7"] {
            let gpu: Option<PciAddress> = gpu.parse().ok();
            let numbers = [0x0123_4567_89ab_cdef, 0x1f2f_3f4f_5f6f_7f8f];
            assert_eq!(decode(&encode(numbers, gpu)), (numbers, gpu));
        }
    }

    #[test]
    fn nics_are_shared_per_machine() {
        let gpu = |number: u32| format!("0000:{number:02x}:00.0").parse::<PciAddress>().ok();
        let told = [(7, gpu(1)), (9, gpu(1)), (7, gpu(2)), (9, None), (7, gpu(3))];
        let seats: Vec<u8> =
            told.iter().flat_map(|(machine, gpu)| encode([*machine, 0], *gpu)).collect();
        for (pe, place) in [(0, 0), (2, 1), (4, 2)] {
            let expected = (place, vec![gpu(1), gpu(2), gpu(3)]);
            assert_eq!(same_host(&seats, 7, Pe(pe)), expected, "PE {pe}");
        }
        for (pe, place) in [(1, 0), (3, 1)] {
            assert_eq!(same_host(&seats, 9, Pe(pe)), (place, vec![gpu(1), None]), "PE {pe}");
        }
    }

    #[test]
    fn loopback_takes_one_known_network() {
        for (seats, mine, expected) in [
            (&[[1, 5], [1, 5]][..], [1, 5], (true, false)),
            (&[[1, 5], [1, 6]], [1, 5], (false, true)),
            (&[[1, 5], [2, 6]], [1, 5], (false, false)),
            (&[[1, 0], [1, 0]], [1, 0], (false, true)),
            (&[[1, 5], [1, 0]], [1, 5], (false, true)),
        ] {
            let told: Vec<u8> = seats.iter().flat_map(|seat| encode(*seat, None)).collect();
            assert_eq!(networks(&told, mine), expected, "{seats:?}");
        }
        assert_eq!(network(1, 0), 0);
        // Not by the host's given name alone.
        assert_ne!(network(1, 5), fabric_hash("1 5"));
        assert!(network(1, 5) != network(1, 6) && network(1, 5) != network(2, 5));
    }

    fn opened(settings: &Settings, me: usize, picked: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let root = Scratch::new();
        let devices = lay_out("p5-32-nics", &root);
        let all = |kind: &str| -> Vec<Option<PciAddress>> {
            let named = devices.iter().filter(|(name, _)| name.starts_with(kind));
            named.map(|(_, address)| address.parse().ok()).collect()
        };
        let topology = Topology::at(&*root);
        let plan = plan(&topology, settings, &all("nic"), (me, &all("gpu")), picked);
        (plan.nics.into_iter().map(|(nic, _)| nic).collect(), plan.spare)
    }

    #[test]
    fn nearest_picked_nic_comes_first() {
        let settings = Settings::default();
        let (picked, spare) = opened(&settings, 0, &[31, 5, 2]);
        assert_eq!((picked, spare.len()), (vec![2, 5, 31], 29));
        let few = Settings { max_nic_per_pe: 2, ..settings.clone() };
        assert_eq!(opened(&few, 0, &[31, 5, 2]).0, [2, 5]);
        // Left to the transport: those of its own GPU.
        assert_eq!(opened(&settings, 1, &[]).0, [4, 5, 6, 7]);
        // The user's word is the last, in his order and without others in their place.
        let devices = Devices::Include(vec![String::from("some")]);
        assert_eq!(opened(&Settings { devices, ..few }, 1, &[31]), (vec![0, 1], vec![]));
    }
}
