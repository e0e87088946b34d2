//! The search: queries providers in turn, until one has usable devices.

use std::net::IpAddr;
use std::path::Path;

use libfabric_sys::{FI_DELIVERY_COMPLETE, Library};
use log::{debug, info, warn};

use crate::discovery::device::Device;
use crate::discovery::interface::{Interface, is_local};
use crate::discovery::query::{Demand, EndpointModel, ProviderQuery, fallbacks};
use crate::discovery::selection::{DeviceSource, Listed, describe, select};
use crate::endpoint_files::{self, lack};
use crate::environment;
use crate::error::{OfiError, Refusal};
use crate::objects::info::Info;
use crate::options::{Devices, GpuDirect, MemoryKinds, Options};
use crate::provider::{Fact, Profile, Provider, candidates};
use crate::topology::sysfs;

#[derive(Debug)]
pub struct Discovery {
    pub(crate) library: &'static Library,
    pub(crate) profile: &'static Profile,
    pub options: Options,
    /// Returns the offers not taken, with the reasons.
    pub refusals: Vec<Refusal>,
    pub(crate) found: FoundDevices,
}

impl Discovery {
    /// Loads libfabric and finds the devices, in rail order, of the first provider that has any.
    ///
    /// With `single_host` all PEs are on this host, and providers over plain sockets default to
    /// loopback. `kinds` says whether to use device memory if the fabric reaches it.
    ///
    /// # Errors
    /// Libfabric cannot be loaded, a device that the user named does not exist, or no device is
    /// left, with the reasons of all refusals.
    pub fn run(options: &Options, single_host: bool, kinds: MemoryKinds) -> Result<Self, OfiError> {
        let library = Library::load(&options.library)?;
        environment::prepare(library, options, kinds);
        let mut refusals = Vec::new();
        for &profile in candidates(options.provider) {
            let found = examine(library, profile, options, single_host, kinds, &mut refusals)?;
            if let Some(found) = found {
                let options = options.clone();
                let discovery = Self { library, profile, options, refusals, found };
                discovery.log();
                return Ok(discovery);
            }
        }
        Err(OfiError::NoDevice { asked: options.provider, refusals })
    }

    /// Returns the libfabric provider, with its layers: `tcp;ofi_rxm`.
    pub fn provider(&self) -> &'static str {
        self.profile.name
    }

    /// Returns true if the provider joins only PEs of one host.
    pub fn is_for_one_host(&self) -> bool {
        *self.profile.one_host
    }

    /// Returns true if `single_host` affects the devices found.
    pub fn depends_on_hosts(&self) -> bool {
        *self.profile.interfaces && self.options.devices == Devices::Any
    }

    /// Returns true if direct access to device memory was requested and granted. Registering memory
    /// may still be refused.
    pub fn reaches_devices(&self) -> bool {
        self.found.devices[0].info.reaches_devices()
    }

    /// Returns the usable devices, at least one, in rail order.
    pub fn devices(&self) -> &[Device] {
        &self.found.devices
    }

    /// Returns the devices to open by default, as indices into [`Self::devices`]: all, up to
    /// `NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE`.
    pub fn default_rails(&self) -> Vec<usize> {
        (0..self.found.devices.len().min(usize::from(self.options.max_nic_per_pe))).collect()
    }

    /// Returns warnings about preferred providers that are not used although this machine has their
    /// NICs: the provider used may be much slower. None if the user has named devices.
    fn unused(&self, sysfs: &Path) -> Vec<String> {
        if matches!(self.options.devices, Devices::Include(_)) {
            return Vec::new();
        }
        let tried = candidates(self.options.provider).iter();
        let passed = tried.take_while(|profile| profile.name != self.profile.name);
        passed.filter_map(|profile| self.unused_of(profile, sysfs)).collect()
    }

    pub(crate) fn hmem_refused(&self) -> Option<String> {
        let said = self.found.hmem_refused.as_ref()?;
        let mut nics: Vec<String> =
            self.found.devices.iter().map(|device| device.domain.clone()).collect();
        nics.sort();
        nics.dedup();
        let by_name = self.profile.device_memory_by_name;
        let by_name = by_name.and_then(|names| names.help(self.library.version(), &nics));
        let help = by_name.unwrap_or_else(|| self.profile.device_memory_takes.to_string());
        Some(if help.is_empty() { said.clone() } else { format!("{said}; {help}") })
    }

    /// Returns warnings about NICs of this machine that could be used and are not.
    pub fn idle_nics(&self) -> Option<String> {
        if self.found.unlisted.is_empty() {
            return None;
        }
        let version = self.library.version();
        let by_name = self.profile.device_memory_by_name;
        let by_name = by_name.filter(|_| self.reaches_devices());
        let by_name = by_name.and_then(|names| names.help(version, &self.found.unlisted));
        let help = by_name.unwrap_or_else(|| {
            String::from(
                "an address of the port or a device file in /dev/infiniband may be missing, or a variable such as FI_EFA_IFACE \
                 hides them",
            )
        });
        Some(format!(
            "NICs of this host carry nothing: {}. Their ports are active, and libfabric {version} does not list them for \
             provider {}; {help}. NVSHMEM_LIBFABRIC_DEVICES with the NICs in use says that it is meant so",
            self.found.unlisted.join(", "),
            self.profile.name,
        ))
    }

    fn unused_of(&self, profile: &Profile, sysfs: &Path) -> Option<String> {
        let nics = profile.nic.filter(|_| !profile.missing.is_empty())?.of_machine(sysfs);
        if nics.is_empty() {
            return None;
        }
        let of = self.refusals.iter().filter(|refusal| refusal.provider == profile.name);
        let reasons: Vec<&str> = of.map(|refusal| refusal.reason.as_str()).collect();
        Some(format!(
            "this machine has NICs of {name} ({}), and provider {} is used in its place: {}; NVSHMEM_LIBFABRIC_PROVIDER={name} makes \
             that an error",
            nics.join(", "),
            self.profile.name,
            reasons.join("; "),
            name = profile.name,
        ))
    }

    fn log(&self) {
        let names: Vec<&str> =
            self.found.devices.iter().map(|device| device.name.as_str()).collect();
        info!(
            "libfabric {} ({}), API {}: provider {}{} with {} device(s): {}",
            self.library.version(),
            self.library.path(),
            self.library.api_version(),
            self.profile.name,
            if self.reaches_devices() { ", asked for FI_HMEM," } else { "" },
            names.len(),
            names.join(", ")
        );
        let cap = usize::from(self.options.max_nic_per_pe);
        if names.len() > cap {
            info!("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE={cap}: not used: {}", names[cap..].join(", "));
        }
        for refusal in &self.refusals {
            info!("not used: {refusal}");
        }
        for unused in self.unused(&sysfs()) {
            warn!("{unused}");
        }
        for (name, Fact { value, why, source }) in self.profile.facts() {
            debug!("provider {}: {name} is {value}: {why} ({source})", self.profile.name);
        }
    }
}

#[derive(Debug)]
pub(crate) struct FoundDevices {
    pub(crate) model: EndpointModel,
    devices: Vec<Device>,
    hmem_refused: Option<String>,
    /// NICs of the provider's kind that are active and not listed.
    unlisted: Vec<String>,
}

fn examine(
    library: &'static Library,
    profile: &'static Profile,
    options: &Options,
    single_host: bool,
    kinds: MemoryKinds,
    refusals: &mut Vec<Refusal>,
) -> Result<Option<FoundDevices>, OfiError> {
    let refusal = |device, reason| Refusal::new(profile, device, reason);
    if profile.endpoint_files.is_some() {
        endpoint_files::remove_left_behind();
    }
    if let Err(reason) = is_there(library, profile) {
        refusals.push(refusal(None, reason));
        return Ok(None);
    }
    let Some((asked, answer)) = ask_in_turn(library, profile, options, kinds, refusals) else {
        return Ok(None);
    };
    let Answer { reaches_devices, model, infos, hmem_refused } = answer;
    let mut usable = Vec::new();
    for info in infos {
        match reason_against(&info) {
            Some(reason) => refusals.push(refusal(Some(info.domain_name()), reason)),
            None => usable.push(Some(info)),
        }
    }
    let listed = list(&usable);

    let unknown = |entry: String, reason: String| OfiError::UnknownDevice {
        entry,
        provider: profile.name.to_owned(),
        reason,
        available: describe(&listed),
    };
    let (choices, passed_over) = match select(&options.devices, &listed, profile, single_host) {
        Ok(selection) => selection,
        Err(entry) => {
            let error = unknown(entry, String::from("nothing there has this name or address"));
            if options.provider != Provider::Auto {
                return Err(error);
            }
            refusals.push(refusal(None, error.to_string()));
            return Ok(None);
        }
    };
    refusals.extend(passed_over);

    let named = matches!(options.devices, Devices::Include(_));
    let must_have = named && options.provider != Provider::Auto;
    let mut devices: Vec<Device> = Vec::new();
    let mut opened_at: Vec<DeviceSource> = Vec::new();
    for choice in choices {
        // A device named twice is queried once.
        let device = match opened_at.iter().position(|source| *source == choice.source) {
            Some(same) => Device { name: choice.name, ..devices[same].clone() },
            None => {
                let info = match choice.source {
                    DeviceSource::Listed(at) => {
                        usable[at].take().ok_or(String::from("taken already"))
                    }
                    DeviceSource::Address(ip) => {
                        at_address(asked, Demand::Full(model), reaches_devices, ip)
                    }
                };
                match info {
                    Ok(info) => Device::new(choice.name, profile, info),
                    Err(reason) if must_have => return Err(unknown(choice.name, reason)),
                    Err(reason) => {
                        refusals.push(refusal(Some(choice.name), reason));
                        continue;
                    }
                }
            }
        };
        devices.push(device);
        opened_at.push(choice.source);
    }
    if devices.is_empty() {
        refusals.push(refusal(None, format!("no device left of: {}", describe(&listed))));
        return Ok(None);
    }
    let unlisted = unlisted(options, profile, &listed);
    Ok(Some(FoundDevices { model, devices, hmem_refused, unlisted }))
}

fn ask_in_turn<'a>(
    library: &'static Library,
    profile: &'static Profile,
    options: &'a Options,
    kinds: MemoryKinds,
    refusals: &mut Vec<Refusal>,
) -> Option<(ProviderQuery<'a>, Answer)> {
    let fabrics: Vec<Option<&'a str>> = match (&options.fabric, *profile.fabrics) {
        (Some(named), _) => vec![Some(named)],
        (None, []) => vec![None],
        (None, preferred) => preferred.iter().map(|fabric| Some(*fabric)).collect(),
    };
    for fabric in fabrics {
        let asked = ProviderQuery { library, profile, fabric };
        match ask(asked, options, kinds) {
            Ok(answer) => {
                if let Some(fabric) = fabric {
                    let is_named = options.fabric.is_some();
                    let why = if is_named { "as asked for" } else { profile.fabrics.why };
                    info!("provider {}: fabric {fabric}: {why}", profile.name);
                }
                return Some((asked, answer));
            }
            Err(reason) => {
                let fabric = fabric.map(|name| format!("fabric {name}"));
                refusals.push(Refusal::new(profile, fabric, reason));
            }
        }
    }
    None
}

fn unlisted(options: &Options, profile: &Profile, listed: &[Listed]) -> Vec<String> {
    let (Devices::Any, Some(nic)) = (&options.devices, &*profile.nic) else { return Vec::new() };
    let is_listed = |name: &String| listed.iter().any(|entry| entry.is_called(name));
    nic.active(&sysfs()).into_iter().filter(|name| !is_listed(name)).collect()
}

struct Answer {
    reaches_devices: bool,
    model: EndpointModel,
    infos: Vec<Info>,
    hmem_refused: Option<String>,
}

fn is_there(library: &'static Library, profile: &'static Profile) -> Result<(), String> {
    let asked = ProviderQuery { library, profile, fabric: None };
    let mut said = match asked.query(Demand::Provider, false, None) {
        Ok(infos) if !infos.is_empty() => return Ok(()),
        Ok(_) => String::new(),
        Err(error) => format!(" ({error})"),
    };
    // libfabric itself omits providers that this variable does not name.
    if let Some(filter) = std::env::var("FI_PROVIDER").ok().filter(|filter| !filter.is_empty()) {
        said += &format!(
            "; FI_PROVIDER={filter} is set, which hides providers: unset it, or name this one in it"
        );
    }
    let files = profile.endpoint_files.as_ref();
    let lack = files.and_then(|files| lack(files.offered_with(library.version())));
    match lack.as_deref().unwrap_or(*profile.missing) {
        "" => Err(format!("this libfabric does not have it on this machine{said}")),
        help => Err(format!("this libfabric does not have it on this machine{said}; {help}")),
    }
}

/// Queries with each fallback in turn until the provider offers devices.
fn ask(asked: ProviderQuery<'_>, options: &Options, kinds: MemoryKinds) -> Result<Answer, String> {
    let profile = asked.profile;
    let query = |demand, devices| match asked.query(demand, devices, None) {
        Ok(infos) if infos.is_empty() => Err(String::from("only other providers answered")),
        answer => answer.map_err(|error| error.to_string()),
    };
    if let Err(error) = query(Demand::Rma, false) {
        return Err(format!(
            "libfabric {} has it, but without reliable datagram endpoints (FI_EP_RDM) that do \
             messages and RMA ({error})",
            asked.library.version()
        ));
    }
    let mut last = String::new();
    let models = fallbacks(options.threading, profile);
    let devices = offers_devices(profile, options, kinds, || query(Demand::Rma, true).map(drop));
    // First with device memory: a lesser model costs less than staging.
    let turns = if devices.is_ok() { &[true, false][..] } else { &[false] };
    let mut hmem_refused = devices.err().flatten();
    for &reaches_devices in turns {
        for &model in &models {
            match query(Demand::Full(model), reaches_devices) {
                Ok(infos) => return Ok(Answer { reaches_devices, model, infos, hmem_refused }),
                Err(error) => last = error,
            }
            let hmem = if reaches_devices { ", with FI_HMEM" } else { "" };
            info!("provider {} refuses {model}{hmem}", profile.name);
        }
        if reaches_devices {
            hmem_refused = Some(last.clone());
        }
    }
    Err(format!(
        "it does not offer FI_DELIVERY_COMPLETE, without which quiet cannot promise that data has \
         arrived ({last})"
    ))
}

/// Checks that the provider offers device memory. One query in advance saves those of all fallbacks
/// if it does not.
///
/// # Errors
/// Device memory is not to be requested; with the provider's refusal, if it was queried.
fn offers_devices(
    profile: &'static Profile,
    options: &Options,
    kinds: MemoryKinds,
    ask: impl FnOnce() -> Result<(), String>,
) -> Result<(), Option<String>> {
    if kinds == MemoryKinds::Host {
        return Err(None);
    }
    let not_asked = match options.gpu_direct {
        GpuDirect::Never => Some("NVSHMEM_LIBFABRIC_GPU_DIRECT=never"),
        GpuDirect::Auto if !*profile.device_memory => Some(profile.device_memory.why),
        _ => None,
    };
    if let Some(reason) = not_asked {
        info!("provider {}: FI_HMEM is not asked for: {reason}", profile.name);
        return Err(None);
    }
    ask().map_err(|refusal| {
        info!("provider {} refuses FI_HMEM: {refusal}", profile.name);
        Some(refusal)
    })
}

fn at_address(
    asked: ProviderQuery<'_>,
    demand: Demand,
    reaches_devices: bool,
    ip: IpAddr,
) -> Result<Info, String> {
    // For a foreign address libfabric answers as if it were ours, and opening fails later.
    if !is_local(ip) {
        return Err(String::from("not an address of this host"));
    }
    let infos =
        asked.query(demand, reaches_devices, Some(ip)).map_err(|error| error.to_string())?;
    let is_usable = |info: &Info| info.source_ip() == Some(ip) && reason_against(info).is_none();
    let usable = infos.into_iter().find(is_usable);
    usable.ok_or_else(|| String::from("the provider has no endpoint at this address"))
}

fn reason_against(info: &Info) -> Option<String> {
    if info.tx_attr().op_flags & FI_DELIVERY_COMPLETE == 0 {
        return Some(String::from("it answers without FI_DELIVERY_COMPLETE"));
    }
    if info.tx_attr().size == 0 || info.ep_attr().max_msg_size == 0 {
        return Some(String::from("it has no room for a single operation"));
    }
    None
}

fn list(infos: &[Option<Info>]) -> Vec<Listed> {
    let interfaces = Interface::all();
    let describe = |info: &Info| {
        let ip = info.source_ip();
        let domain = info.domain_name();
        let interface = interfaces.iter().find(|interface| Some(interface.address) == ip);
        Listed {
            interface: interface.map(|interface| interface.name.clone()),
            nic: info.nic_name(),
            loopback: ip.is_some_and(|ip| ip.is_loopback())
                || interface.is_some_and(|interface| interface.loopback),
            running: interface.is_none_or(|interface| interface.running),
            last_resort: interface.is_some_and(|interface| interface.last_resort),
            ip,
            domain,
        }
    };
    infos.iter().flatten().map(describe).collect()
}

#[cfg(test)]
pub(crate) mod tests;
