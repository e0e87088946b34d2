//! Proof of the rails: before a job starts, PEs on different hosts exchange a message over each
//! path, and paths over which none comes are left out at both ends.
//!
//! A host here is a network namespace of a machine: its PEs see the same interfaces and routes, and
//! PEs of one host prove nothing to each other. Which rail reaches which is a matter of interfaces,
//! routes and firewalls, not of processes. So PEs of a host with the same NICs and the same choice
//! among a peer's are a group, one of which proves its rails to one of each group on other hosts;
//! if that is to more than [`PEERS`], the pairs of groups take turns. What one PE has not heard
//! holds for all PEs of both hosts, by the names of the rails.

use std::collections::{BTreeSet, HashMap};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, warn};

use super::Paths;
use super::collectives::Collectives;
use super::nics::number;
use crate::job::error::JobError;
use crate::logging;
use engine::ids::{MAX_PES, Pe, RailId};
use engine::port::packet::LongPacket;
use engine::port::{DataPath, Incoming, Messaging, Posted};
use engine::rails::pairing::{leads, remote_rail};
use engine::rails::paths::PathTable;
use engine::wire::cookie::Cookie;
use engine::wire::handle::MAX_RAILS;
use engine::wire::handshake::{Addresses, RailAddress};
use engine::wire::probe::{PROBE, probe, prober};
use engine::wire::seal::Seal;
use ofi::Opened;

/// Silence after which a round ends. TCP sends a SYN again after a second, in the next round.
const SILENCE: Duration = Duration::from_secs(1);

/// The most of an iteration's time that counts as silence: the process may have been stopped.
const ITERATION: Duration = Duration::from_millis(10);

/// Pause between attempts: a provider that connects lazily refuses until it is connected.
const PAUSE: Duration = Duration::from_micros(200);

/// Peers to which a PE proves its rails at most, about. A rail has more buffers for messages, which
/// a provider may keep that cannot deliver them.
const PEERS: usize = 64;

/// A PE in 24 bits, and its rails and host lane.
const UNHEARD_BYTES: usize = 8;
const _: () = assert!(MAX_PES <= 1 << 24 && MAX_RAILS < 40);

/// Maximum number of paths that are described.
const DESCRIBED: usize = 32;

/// The PEs' hosts and groups, by which they choose to whom they prove their rails.
struct Groups {
    /// Host and PEs of each group, in the order of the first PEs.
    groups: Vec<(usize, Vec<Pe>)>,
    /// Group of each PE.
    of: Vec<usize>,
    /// One in so many pairs of groups is proven.
    turns: usize,
}

impl Groups {
    /// Places PEs by their networks. A PE whose network is not known, 0, is a host of its own.
    fn of(networks: &[u64], all: &[Addresses]) -> Self {
        let (mut hosts, mut known) = (HashMap::new(), HashMap::new());
        let (mut groups, mut of) = (Vec::new(), Vec::new());
        let alike = |Addresses(rails): &Addresses| {
            let count = |of: &RailAddress| rails.iter().filter(|r| r.fabric == of.fabric).count();
            rails.iter().map(count).max()
        };
        // A PE chooses among a peer's rails on one fabric by its number, see `remote_rail`.
        let choices = all.iter().filter_map(alike).max().unwrap_or(1);
        for (pe, (network, Addresses(rails))) in networks.iter().zip(all).enumerate() {
            let alone = if *network == 0 { pe } else { 0 };
            let next = hosts.len();
            let host = *hosts.entry((*network, alone)).or_insert(next);
            let names: Vec<&str> = rails.iter().map(|rail| &rail.name[..]).collect();
            let choice = pe / rails.len() % choices;
            let group = *known.entry((host, names, choice)).or_insert(groups.len());
            if group == groups.len() {
                groups.push((host, Vec::new()));
            }
            groups[group].1.push(Pe(pe as u32));
            of.push(group);
        }
        let least = groups.iter().map(|(_, pes)| pes.len()).min().unwrap_or(1);
        let turns = groups.len().div_ceil(least * PEERS);
        Self { groups, of, turns }
    }

    fn host(&self, pe: Pe) -> usize {
        self.groups[self.of[pe.index()]].0
    }

    fn first(&self, host: usize) -> Pe {
        self.groups.iter().find(|(of, _)| *of == host).map_or(Pe(0), |(_, pes)| pes[0])
    }

    /// Returns the PEs to which a PE proves its rails, and they theirs to it.
    fn peers(&self, me: Pe) -> impl Iterator<Item = Pe> {
        let mine = self.of[me.index()];
        let (here, pes) = &self.groups[mine];
        let is_due = move |other: usize, size: usize| {
            let turn = mine / pes.len() + other / size;
            pes[other % pes.len()] == me && turn % self.turns == 0
        };
        let others = self.groups.iter().enumerate();
        let others = others.filter(move |(at, (host, pes))| host != here && is_due(*at, pes.len()));
        others.map(move |(_, (_, pes))| pes[mine % pes.len()])
    }
}

/// Number of the host lane among a PE's rails. Over TCP it has connections of its own, which peers
/// never open: a firewall that lets only one side connect is seen by it.
const HOST_LANE: RailId = RailId(MAX_RAILS as u8);

/// A peer, and its rails that were not heard, one bit each.
type Unheard = (Pe, u64);

struct Peer {
    pe: Pe,
    /// Own rails that lead to it, and those of them over which nothing has left yet.
    leading: u64,
    unsent: u64,
    unheard: u64,
}

fn rails(mask: u64) -> impl Iterator<Item = RailId> {
    (0..=HOST_LANE.0).map(RailId).filter(move |rail| mask >> rail.0 & 1 != 0)
}

/// Proof of this PE's rails and its peers'.
pub(super) struct Proof {
    seal: Seal,
    groups: Groups,
    all: Vec<Addresses>,
    peers: Vec<Peer>,
}

impl Proof {
    pub(super) fn new(
        (me, cookie): (Pe, Cookie),
        networks: &[u64],
        over_sockets: bool,
        all: Vec<Addresses>,
    ) -> Self {
        let groups = Groups::of(networks, &all);
        let leading = |from: Pe, to: Pe| {
            let (from, to) = (&all[from.index()].0, &all[to.index()].0);
            let rails = (0..from.len() as u8).filter(|rail| leads(from, RailId(*rail), to));
            let mask = rails.fold(0, |mask, rail| mask | 1 << rail);
            // Other providers may not take messages of host lanes, whose addresses peers do not
            // know.
            mask | (mask & u64::from(over_sockets)) << HOST_LANE.0
        };
        let peer = |pe| {
            let (mine, theirs) = (leading(me, pe), leading(pe, me));
            Peer { pe, leading: mine, unsent: mine, unheard: theirs }
        };
        let peers = groups.peers(me).map(peer).collect();
        Self { seal: Seal::new(cookie, me), groups, all, peers }
    }

    /// Exchanges probes over all rails until nothing is heard for a second, or earlier if none is
    /// missing and nobody else `waits`.
    pub(super) fn exchange(&mut self, opened: &mut Opened, paths: &Paths, waits: bool) {
        let Opened { host, proxy, .. } = opened;
        let Self { seal, peers, .. } = self;
        let mut packet = LongPacket::EMPTY;
        let (start, mut silence) = (Instant::now(), Duration::ZERO);
        let mut last = start;
        // What left before may be lost with its connection.
        peers.iter_mut().for_each(|peer| peer.unsent = peer.leading);
        while silence < SILENCE && (waits || peers.iter().any(|of| of.unsent | of.unheard != 0)) {
            for Peer { pe, unsent, .. } in &mut *peers {
                for rail in rails(*unsent) {
                    let frame = probe(seal, *pe, rail);
                    let (port, paths, on) = match rail {
                        HOST_LANE => (&mut *host, &paths.host, RailId(0)),
                        _ => (&mut *proxy, &paths.proxy, rail),
                    };
                    let sent = port.send(on, paths.address(*pe, on), PROBE, frame.bytes());
                    // After a refusal the next attempt may make another connection.
                    *unsent &= !(u64::from(matches!(sent, Ok(Posted::Yes))) << rail.0);
                }
            }
            let mut is_idle = true;
            // What fails here is a probe, or is not heard.
            let _ = host.drain(RailId(0), &mut |_| false);
            for rail in (0..proxy.limits().len() as u8).map(RailId) {
                let _ = proxy.drain(rail, &mut |_| false);
                // What is no message leaves the last one in the packet, which was taken.
                while proxy.receive(rail, &mut packet) != Incoming::Nothing {
                    let Some((from, theirs)) = prober(seal, packet.bytes()) else { continue };
                    let bit = 1u64.checked_shl(theirs.0.into()).unwrap_or(0);
                    let mut senders = peers.iter_mut().filter(|peer| peer.pe == from);
                    // A probe heard before may be a stranger's replay.
                    if let Some(peer) = senders.find(|peer| peer.unheard & bit != 0) {
                        peer.unheard &= !bit;
                        is_idle = false;
                    }
                }
            }
            if is_idle {
                thread::sleep(PAUSE);
                silence += last.elapsed().min(ITERATION);
            } else {
                silence = Duration::ZERO;
            }
            last = Instant::now();
        }
        debug!("rails proven with {} peer(s) in {:?}", peers.len(), start.elapsed());
    }

    /// Returns the peers that were not heard over all rails.
    pub(super) fn unheard(&self) -> Vec<Unheard> {
        let unheard = self.peers.iter().filter(|peer| peer.unheard != 0);
        unheard.map(|peer| (peer.pe, peer.unheard)).collect()
    }

    /// Leaves out the paths over which a PE has heard nothing. Collective. No PE has more than
    /// `most` peers that it has not heard.
    ///
    /// # Errors
    /// Two PEs that no rail joins, with the rails of their hosts that do not reach one another.
    pub(super) fn leave_out(
        &self,
        collectives: &dyn Collectives,
        most: usize,
        paths: PathTable,
    ) -> Result<PathTable, JobError> {
        let reports = collectives.allgather(&encode(&self.unheard(), most))?;
        let dead = self.dead(reports.chunks_exact(most * UNHEARD_BYTES).map(decode));
        let (paths, lost) = self.without(&dead, paths);
        let lost = collectives.allgather(&lost.map_or(u32::MAX, |pe| pe.0).to_le_bytes())?;
        let mut lost = (0..).map(Pe).zip(lost.chunks(4).map(|pe| Pe(number(pe) as u32)));
        if let Some((pe, other)) = lost.find(|(_, other)| other.0 < paths.n_pes()) {
            let both = [pe, other].map(|pe| self.groups.host(pe));
            let dead = self.describe(&dead, |hosts| hosts.iter().all(|host| both.contains(host)));
            let what = format!("no rail joins {pe} and {other}: {dead}");
            return Err(JobError::Collectives { what });
        }
        let me = self.seal.me();
        let here = self.groups.host(me);
        let dead = self.describe(&dead, |hosts| hosts.contains(&here));
        if self.groups.first(here) == me && !dead.is_empty() {
            warn!(target: logging::TRANSPORT, "rails left out, as no message came over them: {dead}");
        }
        Ok(paths)
    }

    fn dead(&self, reports: impl Iterator<Item = Vec<Unheard>>) -> BTreeSet<Ends<'_>> {
        let mut dead = BTreeSet::new();
        for (to, unheard) in (0..).map(Pe).zip(reports) {
            for (from, unheard) in unheard {
                dead.extend(rails(unheard).filter_map(|rail| self.ends(from, rail, to)));
            }
        }
        dead
    }

    /// Returns the ends of a path, if the rail exists.
    fn ends(&self, from: Pe, rail: RailId, to: Pe) -> Option<Ends<'_>> {
        let (mine, theirs) = (&self.all.get(from.index())?.0, &self.all[to.index()].0);
        let (mine, rail) = match rail {
            HOST_LANE => (&mine[..1], RailId(0)),
            _ => (&mine[..], rail),
        };
        let [near, far] = [from, to].map(|pe| self.groups.host(pe));
        let name = &mine.get(rail.index())?.name[..];
        Some([(near, name), (far, &theirs[remote_rail(from, mine, rail, theirs).index()].name)])
    }

    /// Removes this PE's paths that are dead in either direction. Returns a PE to which none is
    /// left, if any.
    fn without(&self, dead: &BTreeSet<Ends>, mut paths: PathTable) -> (PathTable, Option<Pe>) {
        let (me, mut lost) = (self.seal.me(), None);
        for pe in (0..paths.n_pes()).map(Pe) {
            let is_path_dead = |rail| {
                let ends = self.ends(me, rail, pe);
                ends.is_some_and(|[near, far]| {
                    dead.contains(&[near, far]) || dead.contains(&[far, near])
                })
            };
            // Without its first rail a host lane takes detours.
            let is_dead =
                |rail: &RailId| is_path_dead(*rail) || rail.0 == 0 && is_path_dead(HOST_LANE);
            let mine = (0..self.all[me.index()].0.len() as u8).map(RailId);
            let leading = mine.filter(|rail| paths.leads(pe, *rail));
            let (dead, alive): (Vec<RailId>, Vec<RailId>) = leading.partition(is_dead);
            lost = lost.or(alive.is_empty().then_some(pe));
            paths = dead.into_iter().fold(paths, |paths, rail| paths.without(pe, rail));
        }
        (paths, lost)
    }

    /// Describes the paths between hosts that are of interest.
    fn describe(&self, dead: &BTreeSet<Ends>, of: impl Fn(&[usize; 2]) -> bool) -> String {
        let end = |(host, rail): &(usize, &str)| format!("{rail} ({})", self.groups.first(*host));
        let ends = dead.iter().filter(|ends| of(&ends.map(|(host, _)| host)));
        let mut lines: Vec<String> =
            ends.map(|[from, to]| format!("{} does not reach {}", end(from), end(to))).collect();
        let more = lines.split_off(lines.len().min(DESCRIBED)).len();
        lines.extend((more > 0).then(|| format!("and {more} more")));
        lines.join("; ")
    }
}

/// The ends of a path: for each the host, and the name of its rail.
type Ends<'a> = [(usize, &'a str); 2];

fn encode(unheard: &[Unheard], most: usize) -> Vec<u8> {
    let word = |(pe, rails): &Unheard| (u64::from(pe.0) | rails << 24).to_le_bytes();
    let mut bytes: Vec<u8> = unheard.iter().flat_map(word).collect();
    bytes.resize(most * UNHEARD_BYTES, 0);
    bytes
}

fn decode(record: &[u8]) -> Vec<Unheard> {
    let words = record.chunks(UNHEARD_BYTES).map(number);
    words.map(|word| (Pe(word as u32 & 0xff_ffff), word >> 24)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::port::PeerAddr;
    use engine::rails::paths::Path;

    /// So many hosts of so many PEs, each with one of so many kinds of NICs.
    fn even(hosts: usize, pes: usize, kinds: usize, fabrics: &[u64]) -> (Vec<u64>, Vec<Addresses>) {
        let rails = |pe: usize| {
            let rail = |(at, fabric): (usize, &u64)| {
                let name = format!("{}{} of node{}", ["eth", "tun"][at], pe % kinds, pe / pes);
                RailAddress { fabric: *fabric, address: vec![1], name }
            };
            Addresses(fabrics.iter().enumerate().map(rail).collect())
        };
        let all = 0..hosts * pes;
        (all.clone().map(|pe| (pe / pes) as u64 + 7).collect(), all.map(rails).collect())
    }

    /// Each path of any PE, by its host, NICs and choice, is one of a pair that proves it.
    #[test]
    fn each_pair_of_groups_is_proven() {
        let uneven = (vec![1, 0, 1, 2, 3, 3, 3, 2, 0, 1], even(1, 10, 1, &[1, 2]).1);
        for (known, groups) in [
            (even(1, 8, 1, &[1, 2]), 1),
            (even(3, 2, 1, &[1, 2]), 3),
            (even(2, 32, 1, &[1, 2]), 2),
            // These choose among a peer's rails in turn.
            (even(2, 32, 1, &[1, 1]), 4),
            (even(4, 8, 8, &[1]), 32),
            (even(130, 3, 1, &[1]), 130),
            (even(130, 1, 1, &[1]), 130),
            (uneven, 5),
        ] {
            let of = Groups::of(&known.0, &known.1);
            assert_eq!(of.groups.len(), groups);
            let mut proven = Vec::new();
            for me in (0..known.0.len() as u32).map(Pe) {
                assert!(of.peers(me).count() <= PEERS);
                for peer in of.peers(me) {
                    assert!(of.peers(peer).any(|pe| pe == me), "both know of it");
                    proven.push([me, peer].map(|pe| of.of[pe.index()]));
                }
            }
            let all = (0..groups).flat_map(|one| (0..groups).map(move |other| [one, other]));
            let apart = |[one, other]: &[usize; 2]| of.groups[*one].0 != of.groups[*other].0;
            let pairs: BTreeSet<[usize; 2]> = all.filter(apart).collect();
            // By one pair of PEs each, unless they are too many.
            let (count, proven) = (proven.len(), BTreeSet::from_iter(proven));
            let is_all = known.0.len() != 130;
            assert_eq!((proven.len(), proven == pairs), (count, is_all), "{groups}");
        }
    }

    #[test]
    fn reports_decode_as_encoded() {
        let unheard = vec![(Pe(MAX_PES - 1), 1 << HOST_LANE.0 | 5), (Pe(7), 1)];
        assert_eq!(decode(&encode(&unheard, 3)), [unheard, vec![(Pe(0), 0)]].concat());
    }

    /// Two hosts of two PEs with two rails each; a PE of the second host has not heard these.
    fn outcome(unheard: &[(u32, Unheard)]) -> (Vec<Vec<bool>>, Vec<Option<Pe>>, String) {
        let proof = |me| {
            let (networks, all) = even(2, 2, 1, &[1, 2]);
            Proof::new((Pe(me), Cookie::of([])), &networks, true, all)
        };
        let report = |pe| unheard.iter().filter(|(of, _)| *of == pe).map(|(_, u)| *u).collect();
        let path = |at: u8| Path { to: PeerAddr(0), remote: RailId(at % 2) };
        let paths = || PathTable::new(&(0..8).map(path).collect::<Vec<_>>(), 2);
        let (mut leads, mut lost, mut described) = (Vec::new(), Vec::new(), String::new());
        for proof in (0..4).map(proof) {
            let dead = proof.dead((0..4).map(report));
            let (table, to) = proof.without(&dead, paths());
            leads.push((0..4).map(|pe| table.leads(Pe(pe), RailId(1))).collect());
            lost.push(to);
            described = proof.describe(&dead, |_| true);
        }
        (leads, lost, described)
    }

    #[test]
    fn dead_pairs_hold_for_whole_hosts() {
        let near = [vec![true, true, false, false], vec![false, false, true, true]];
        let expected: Vec<Vec<bool>> = [0, 0, 1, 1].map(|host| near[host].clone()).to_vec();
        let [there, back] = [
            "tun0 of node0 (PE 0) does not reach tun0 of node1 (PE 2)",
            "tun0 of node1 (PE 2) does not reach tun0 of node0 (PE 0)",
        ];
        for (unheard, text) in [
            (vec![(2, (Pe(0), 2))], there),
            (vec![(1, (Pe(3), 2))], back),
            (vec![(0, (Pe(2), 2)), (2, (Pe(0), 2))], &format!("{there}; {back}")),
        ] {
            assert_eq!(outcome(&unheard), (expected.clone(), vec![None; 4], text.to_owned()));
        }
        // The first rail, or the host lane on it.
        for rails in [3, 2 | 1 << HOST_LANE.0] {
            let (_, lost, described) = outcome(&[(2, (Pe(0), rails))]);
            assert_eq!(lost, [2, 2, 0, 0].map(|pe| Some(Pe(pe))));
            assert!(described.contains("eth0 of node0") && described.contains("; tun0 of node0"));
        }
        // What makes no sense is dropped.
        let (leads, lost, described) = outcome(&[(2, (Pe(9), 1)), (3, (Pe(0), 1 << 7))]);
        assert_eq!((lost, described.as_str()), (vec![None; 4], ""));
        assert!(leads.concat().iter().all(|leads| *leads));
    }
}
