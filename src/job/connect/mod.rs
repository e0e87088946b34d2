//! Connection of a job: opens the rails and exchanges the PEs' addresses.

mod agreement;
pub(crate) mod collectives;
pub(crate) mod nics;
mod proof;
mod spread;

use std::fs;
use std::num::NonZero;

use log::{info, warn};

use self::agreement::Agreement;
use self::collectives::{Collectives, Shape};
use self::proof::Proof;
use self::spread::spread;
use crate::job::connected::Connected;
use crate::job::error::JobError;
use crate::job::memory::consistency::Consistency;
use crate::job::memory::shared_bounce;
use crate::job::memory::{ProcessMemory, memory_kinds};
use crate::job::yielding::Yielding;
use crate::logging;
use crate::settings::Settings;
use engine::Watchdog;
use engine::ids::{LaneKind, MAX_PES, Pe, RailId};
use engine::lane::host::HostLane;
use engine::lane::host::handover::handover;
use engine::lane::{Lane, LaneConfig};
use engine::port::DataPath;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::rails::pairing::{leads, remote_rail, senders};
use engine::rails::paths::{Path, PathTable};
use engine::regions::RegionTable;
use engine::wire::cookie::{Cookie, SHARE_BYTES};
use engine::wire::handshake::{Addresses, Hello, RailAddress, SetupStep, fabric_hash};
use ofi::posix_signals::Blocked;
use ofi::topology::NicPlan;
use ofi::{Discovery, OfiError, OfiPort, Opened, Provider};

/// Opens the rails and connects all PEs, as [`Job::connect`](super::pe::Job::connect) describes.
pub(crate) fn connect(
    settings: &Settings,
    discovery: &Discovery,
    collectives: &dyn Collectives,
    chosen: &[usize],
) -> Result<Connected, JobError> {
    let Shape { n_pes, me, here } = collectives.shape()?;
    // Every PE sees the same number, so all of them fail here.
    if n_pes > MAX_PES {
        return Err(JobError::TooManyPes { n_pes });
    }
    let (plan, near, networks) =
        nics::rails(settings, discovery.devices(), collectives, me, chosen)?;
    let here = if settings.host_id.is_some() { near.here } else { here.min(near.here) };
    let opened = open(settings, discovery, &plan, (here, near.on_loopback), n_pes);
    let locations = match &opened {
        Ok(opened) => locations(opened),
        Err(_) => Addresses(Vec::new()),
    };
    let hello = first_hello(&opened, &locations);
    let hellos = Hello::agree(SetupStep::Open, &collectives.allgather(&hello.encode())?)?;
    // The agreement has failed if any PE did, this one included.
    let mut opened = opened?;

    let records = collectives.allgather(&locations.encode(&hellos))?;
    let agreement = Agreement::of(&hellos);
    let cookie = Cookie::of(hellos.iter().map(|hello| hello.share));
    let peers = Addresses::decode_all(&hellos, &records).map_err(JobError::from);
    let mut inserted = peers.and_then(|peers| {
        let mine = &locations.0[..];
        let proxy = insert_lane(&mut opened.proxy, LaneKind::Proxy, me, mine, &peers)?;
        // The host lane is on the device of the first proxy rail.
        let host = insert_lane(&mut opened.host, LaneKind::Host, me, &mine[..1], &peers)?;
        let paths = Paths { host, proxy };
        Ok((paths, Proof::new((me, cookie), &networks, opened.report.over_sockets, peers)))
    });
    let mut offer = shared_bounce::Offer::new(settings, me, n_pes, near);
    let records = collectives.allgather(&offer.record())?;
    offer.meet(&records);
    // Warnings about a slow host are logged by one of its PEs.
    let speaks = offer.is_first_of_host(&records);
    // All PEs have inserted all addresses by now.
    if let Ok((paths, proof)) = &mut inserted {
        proof.exchange(&mut opened, paths, false);
    }
    let ready = Hello {
        step: SetupStep::Ready,
        unheard: inserted.as_ref().map_or(0, |(_, proof)| proof.unheard().len() as u16),
        failure: inserted.as_ref().err().map(ToString::to_string),
        ..hello
    };
    let readies = Hello::agree(SetupStep::Ready, &collectives.allgather(&ready.encode())?)?;
    // All PEs have sent their memory by now.
    let (processes, shares) = offer.open();
    opened.proxy.watch_processes(processes);
    let (mut paths, mut proof) = inserted?;
    let most = readies.iter().map(|ready| usize::from(ready.unheard)).max().unwrap_or(0);
    if most > 0 {
        // Again, now that nobody is late: a PE may have been stopped, or have left with messages
        // that only its progress delivers.
        proof.exchange(&mut opened, &paths, true);
        paths.proxy = proof.leave_out(collectives, most, paths.proxy)?;
    }
    let chained = agreement.chains(immediate_data(&opened));
    let connected = assemble(settings, opened, paths, (me, cookie), here, agreement)?;
    if speaks {
        connected.regions.memory().speak();
        warn_of_slowness(discovery, chained);
    }
    if let Some(shares) = shares {
        connected.regions.memory().staging.share(shares);
    }
    Ok(connected)
}

fn first_hello(opened: &Result<Opened, JobError>, locations: &Addresses) -> Hello {
    let longest = locations.longest();
    let failure = opened.as_ref().err().map(ToString::to_string);
    let too_long = longest.as_ref().err().map(ToString::to_string);
    let mut share = [0; SHARE_BYTES];
    let no_share = getrandom::fill(&mut share).err();
    let no_share = no_share.map(|error| format!("no random bytes for the job's cookie: {error}"));
    Hello {
        step: SetupStep::Open,
        provider: opened.as_ref().map_or_else(|_| String::new(), |o| o.report.common.clone()),
        rails: locations.0.len() as u8,
        immediate_data: opened.as_ref().map_or(0, immediate_data),
        longest_message: opened.as_ref().map_or(MAX_MESSAGE as u16, longest_message),
        longest_address: longest.unwrap_or(0),
        unheard: 0,
        failure: failure.or(too_long).or(no_share),
        share,
    }
}

fn warn_of_slowness(discovery: &Discovery, chained: bool) {
    if let Some(idle) = discovery.idle_nics() {
        warn!(target: logging::TOPO, "{idle}");
    }
    if chained {
        warn!(
            target: logging::TRANSPORT,
            "signals wait for their data to be delivered, which the NICs of this host need not: those of another PE carry no \
             immediate data. The same libfabric, provider and settings on all hosts help"
        );
    }
}

fn open(
    settings: &Settings,
    discovery: &Discovery,
    plan: &NicPlan,
    (here, on_loopback): (u32, bool),
    n_pes: u32,
) -> Result<Opened, JobError> {
    // Also for threads that providers start.
    let _blocked = Blocked::here();
    if discovery.is_for_one_host() && here < n_pes {
        let provider = discovery.provider();
        return Err(JobError::OtherHosts { provider, here, n_pes });
    }
    let peers = n_pes as usize;
    // Init has searched as if all PEs were on this host.
    if discovery.depends_on_hosts() && (here < n_pes || !on_loopback) {
        let discovery = Discovery::run(&discovery.options, false, memory_kinds())?;
        // SAFETY: as below.
        return Ok(unsafe { discovery.open(&discovery.default_rails(), peers, here as usize)? });
    }
    if settings.provider == Provider::Auto {
        info!(
            target: logging::TOPO,
            "NVSHMEM_LIBFABRIC_PROVIDER is auto: provider {} is the first that works",
            discovery.provider()
        );
    }
    // SAFETY: callers of this crate vouch for the addresses that they pass: NVSHMEM by the rules in
    // `abi`, and a channel's user by the contracts of registering memory in `channel`.
    let open = |rails: &[usize]| unsafe { discovery.open(rails, peers, here as usize) };
    let planned: Vec<usize> = plan.nics.iter().map(|(nic, _)| *nic).collect();
    // As many at a time.
    let mut spare = plan.spare.chunks(planned.len().max(1));
    let mut opened = open(&planned);
    loop {
        match (opened, spare.next()) {
            (Err(error @ OfiError::NoRail { .. }), Some(others)) => {
                warn!("other NICs are used in place of this PE's own: {error}");
                opened = open(others);
            }
            (opened, _) => return Ok(opened?),
        }
    }
}

fn immediate_data(opened: &Opened) -> u8 {
    let all = opened.proxy.limits().iter().all(|rail| rail.immediate_data);
    if all { opened.report.immediate_data.bytes } else { 0 }
}

fn longest_message(opened: &Opened) -> u16 {
    let longest = opened.proxy.limits().iter().map(|rail| rail.longest_message).min();
    longest.unwrap_or(MAX_MESSAGE).clamp(MAX_MESSAGE, MAX_LONG_MESSAGE) as u16
}

fn locations(opened: &Opened) -> Addresses {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let rails = opened.report.rails.iter().enumerate().map(|(at, rail)| RailAddress {
        fabric: fabric_hash(&rail.fabric),
        address: opened.proxy.address(RailId(at as u8)).to_vec(),
        name: format!("{} of {}", rail.name, host.trim_end()),
    });
    Addresses(rails.collect())
}

struct Paths {
    host: PathTable,
    proxy: PathTable,
}

/// Inserts the peers' addresses for a lane, in one call per rail.
///
/// Only peers' proxy rails are addressed: their proxy threads always poll them.
fn insert_lane(
    port: &mut OfiPort,
    kind: LaneKind,
    me: Pe,
    mine: &[RailAddress],
    peers: &[Addresses],
) -> Result<PathTable, JobError> {
    let mut columns = Vec::with_capacity(mine.len());
    for rail in (0..mine.len()).map(|at| RailId(at as u8)) {
        let remotes: Vec<RailId> =
            peers.iter().map(|peer| remote_rail(me, mine, rail, &peer.0)).collect();
        let mut addresses: Vec<&[u8]> = peers
            .iter()
            .zip(&remotes)
            .map(|(peer, remote)| peer.0[remote.index()].address.as_slice())
            .collect();
        if kind == LaneKind::Proxy {
            // Host rails, which send to this rail and are never sent to. Some providers look up
            // senders: shm of libfabric 2.5 crashes on a message from an unknown one, and
            // efa-direct requires initiators of writes to be known.
            addresses
                .extend(senders(mine, rail, peers, &remotes).map(|sender| &sender.address[..]));
        }
        let inserted = port.insert(rail, &addresses)?;
        let column: Vec<Path> =
            inserted.into_iter().zip(remotes).map(|(to, remote)| Path { to, remote }).collect();
        columns.push(column);
    }
    let paths = (0..peers.len()).flat_map(|pe| columns.iter().map(move |column| column[pe]));
    let mut table = PathTable::new(&paths.collect::<Vec<_>>(), mine.len());
    for (pe, peer) in (0..).map(Pe).zip(peers) {
        let rails = (0..mine.len() as u8).map(RailId).filter(|rail| !leads(mine, *rail, &peer.0));
        table = rails.fold(table, |table, rail| table.without(pe, rail));
    }
    Ok(table)
}

fn assemble(
    settings: &Settings,
    opened: Opened,
    paths: Paths,
    (me, cookie): (Pe, Cookie),
    here: u32,
    agreement: Agreement,
) -> Result<Connected, JobError> {
    let Opened { host, proxy, memory, report, .. } = opened;
    let memory = ProcessMemory::new(memory, settings);
    // A process with device memory has loaded CUDA by now.
    let devices = memory.uses_devices();
    if devices {
        info!(
            target: logging::MEM,
            "this process uses CUDA: memory of devices goes through {} bounce buffers of {} bytes each way, \
             unless the fabric takes it",
            settings.staging_depth,
            settings.staging_chunk,
        );
    }
    let regions = RegionTable::new(memory, me);
    let config = |kind, paths| LaneConfig {
        me,
        cookie,
        kind,
        paths,
        regions: regions.directory(),
        watchdog: Watchdog::new(settings.warn_after, settings.fail_after),
        signals: settings.signals,
        counted: agreement.counted(),
        immediate_bytes: agreement.immediate_data,
        longest_message: agreement.longest_message,
        spread: spread(settings, report.striping, report.rails.iter().any(|rail| rail.bulk > 0)),
        devices,
    };
    let n_pes = paths.proxy.n_pes();
    let leads = |pe: &Pe| paths.proxy.leads(*pe, RailId(0));
    let detours: Vec<Pe> = (0..n_pes).map(Pe).filter(|pe| !leads(pe)).collect();
    let host = Lane::new(host, config(LaneKind::Host, paths.host));
    let proxy = Lane::new(proxy, config(LaneKind::Proxy, paths.proxy));
    let (outbox, inbox) = handover(n_pes, settings.warn_after, settings.fail_after);
    let host = HostLane::new(host).with_outbox(outbox).with_detours(detours);
    let proxy = proxy.with_inbox(inbox);
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let yielding = Yielding::new(settings.yield_when, cores, here as usize);
    info!(
        target: logging::TRANSPORT,
        "{} with a host lane and {} proxy rail(s); the proxy thread progresses the host lane too; idle progress {}",
        me,
        report.rails.len(),
        if yielding.has_core() { "keeps the core while nobody else wants it" } else { "yields the core" },
    );
    info!(
        target: logging::TRANSPORT,
        "signal protocol {:?}; {}",
        settings.signals,
        agreement.reason(),
    );
    let consistency = Consistency::new(settings.consistency);
    let report = (report, agreement.rails);
    Ok(Connected::new(regions, host, proxy, yielding, report, consistency))
}

#[cfg(test)]
mod tests;
