//! What libfabric and CUDA's driver say of this machine, asked in processes of their own: this
//! program again.
//!
//! They load what is installed for NICs and GPUs. Should that hang or crash, its process does, and
//! that is the answer.

use std::env;
use std::fmt;
use std::fs;

use cuda::{
    Attributes, DEFAULT_LIBRARY, Device, Driver, GDRCOPY_LIBRARY, Gdrcopy, Ordinal, WritesOrdering,
};
use libfabric_sys::Library;
use nvshmem_sim::BoxError;
use ofi::{
    Devices, Discovery, EnvironmentWish, MemoryKinds, OfiError, Options, Provider, Refusal,
    environment_wishes,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child;
use crate::error::ToolError;
use crate::info::{accepted, print_json};

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Subject {
    /// libfabric, for host memory.
    Fabric,
    /// libfabric, for memory of GPUs as well.
    FabricWithGpus,
    /// CUDA's driver and GDRCopy.
    Gpus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Fabric {
    pub(crate) asked: String,
    pub(crate) file: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) error: Option<String>,
    /// The transport's choice in a job over several hosts, and in one on this host alone.
    pub(crate) across_hosts: Choice,
    pub(crate) one_host: Choice,
    pub(crate) providers: Vec<Choice>,
    pub(crate) environment: Vec<Wish>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Choice {
    /// The user's word for it: `auto`, or a provider.
    pub(crate) asked: String,
    pub(crate) provider: Option<String>,
    pub(crate) rails: Vec<Rail>,
    pub(crate) reaches_gpus: bool,
    pub(crate) refused: Vec<Refused>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rail {
    pub(crate) name: String,
    pub(crate) fabric: String,
    pub(crate) pci: Option<String>,
    /// The speed of its link in Mbit/s, where that is known.
    pub(crate) link_speed: Option<u32>,
    /// Threads that move its bytes in bulk, for a PE that has this host for itself.
    pub(crate) threads: usize,
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.threads {
            0 => f.write_str(&self.name),
            threads => write!(f, "{} ({threads} thread(s) for bulk)", self.name),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) what: String,
    pub(crate) reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wish {
    pub(crate) provider: String,
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) theirs: Option<String>,
    pub(crate) why: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gpus {
    pub(crate) driver: Option<String>,
    /// The reason why there is no driver, or none that works.
    pub(crate) error: Option<String>,
    pub(crate) devices: Vec<Gpu>,
    pub(crate) loads_kernels_lazily: bool,
    /// The reason why GDRCopy is not used; none where it works.
    pub(crate) gdrcopy_error: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) pci: String,
    pub(crate) compute: String,
    pub(crate) gpudirect_rdma: bool,
    pub(crate) gpudirect_rdma_vmm: bool,
    pub(crate) dma_buf: bool,
    pub(crate) dma_buf_mmap: bool,
    /// Order of a NIC's writes: `none`, `owner`, `all`.
    pub(crate) writes_ordering: String,
    pub(crate) numa_node: Option<u32>,
}

pub(crate) fn fabric(with_gpus: bool) -> Fabric {
    let asked = ask(if with_gpus { "fabric-with-gpus" } else { "fabric" });
    asked.unwrap_or_else(|error| {
        let error = format!("a process that asks libfabric what there is came to nothing: {error}");
        Fabric { error: Some(error), ..Fabric::default() }
    })
}

pub(crate) fn gpus() -> Gpus {
    ask("gpus").unwrap_or_else(|error| {
        let error = format!("a process that asks CUDA's driver came to nothing: {error}");
        Gpus { error: Some(error), ..Gpus::default() }
    })
}

fn ask<T: DeserializeOwned>(subject: &str) -> Result<T, String> {
    let program = env::current_exe().map_err(|error| format!("own program: {error}"))?;
    let said = child::output(&program, &["probe", subject])?;
    serde_json::from_str(&said).map_err(|error| format!("its answer cannot be read: {error}"))
}

pub(crate) fn answer(subject: Subject) -> Result<(), ToolError> {
    match subject {
        Subject::Fabric => print_json(&ask_libfabric(MemoryKinds::Host)),
        Subject::FabricWithGpus => print_json(&ask_libfabric(MemoryKinds::HostAndDevices)),
        Subject::Gpus => print_json(&ask_driver()),
    }
}

fn ask_libfabric(kinds: MemoryKinds) -> Fabric {
    // What is refused is told elsewhere, once.
    let (settings, ..) = accepted();
    let options = settings.ofi();
    let asked = options.library.clone();
    let library = match Library::load(&asked) {
        Ok(library) => library,
        Err(error) => {
            return Fabric { asked, error: Some(error.to_string()), ..Fabric::default() };
        }
    };
    // Before the search, which sets them.
    let wishes = environment_wishes(library, &options, kinds).into_iter();
    let environment = wishes.map(|EnvironmentWish { provider, name, value, theirs, why }| Wish {
        provider: provider.to_owned(),
        name: name.to_owned(),
        value,
        theirs,
        why: why.to_owned(),
    });
    let environment = environment.collect();
    let across_hosts = choice(&options, false, kinds);
    let one_host = choice(&options, true, kinds);
    let others = Provider::all().filter(|provider| *provider != Provider::Auto);
    let providers = others.map(|provider| {
        // What the user has named is of one provider.
        let is_named = provider == options.provider;
        let devices = if is_named { options.devices.clone() } else { Devices::Any };
        choice(&Options { provider, devices, ..options.clone() }, true, kinds)
    });
    Fabric {
        file: loaded_file("libfabric"),
        version: Some(library.version().to_string()),
        error: None,
        providers: providers.collect(),
        across_hosts,
        one_host,
        environment,
        asked,
    }
}

fn choice(options: &Options, single_host: bool, kinds: MemoryKinds) -> Choice {
    let asked = options.provider.to_string();
    let refused = |refusals: &[Refusal]| -> Vec<Refused> {
        let one = |Refusal { provider, device, reason }: &Refusal| {
            let device = device.as_ref().map_or_else(String::new, |device| format!(", {device}"));
            Refused { what: format!("{provider}{device}"), reason: reason.clone() }
        };
        refusals.iter().map(one).collect()
    };
    let found = match Discovery::run(options, single_host, kinds) {
        Ok(found) => found,
        Err(OfiError::NoDevice { refusals, .. }) => {
            return Choice { asked, refused: refused(&refusals), ..Choice::default() };
        }
        Err(error) => {
            let refused = vec![Refused { what: asked.clone(), reason: error.to_string() }];
            return Choice { asked, refused, ..Choice::default() };
        }
    };
    let chosen = found.default_rails();
    let threads = found.bulk_connections(&chosen, 1);
    let rails = chosen.into_iter().map(|at| &found.devices()[at]).zip(threads);
    let rails = rails.map(|(device, threads)| {
        let pci = device.pci_path.as_ref().and_then(|path| path.file_name());
        Rail {
            threads,
            link_speed: device.link_speed(),
            name: device.name.clone(),
            fabric: device.fabric.clone(),
            pci: pci.map(|name| name.to_string_lossy().into_owned()),
        }
    });
    Choice {
        asked,
        provider: Some(found.provider().to_owned()),
        rails: rails.collect(),
        reaches_gpus: found.reaches_devices(),
        refused: refused(&found.refusals),
    }
}

fn loaded_file(name: &str) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let fits = |path: &&str| {
        let file = path.rsplit('/').next();
        file.is_some_and(|file| file.starts_with(name) && file.contains(".so"))
    };
    paths.find(fits).map(str::to_owned)
}

fn ask_driver() -> Gpus {
    let gdrcopy_error = Gdrcopy::load(GDRCOPY_LIBRARY).err().map(|error| error.to_string());
    let mut found = Gpus { gdrcopy_error, ..Gpus::default() };
    found.error = devices(&mut found).err().map(|error| error.to_string());
    found
}

fn devices(found: &mut Gpus) -> Result<(), BoxError> {
    let driver = Driver::load(DEFAULT_LIBRARY)?;
    found.driver = Some(driver.to_string());
    driver.initialise()?;
    found.loads_kernels_lazily = driver.loads_kernels_lazily();
    for ordinal in 0..Device::count(driver)? {
        let of = |error| format!("device {ordinal}: {error}");
        let device = Device::new(driver, Ordinal(ordinal)).map_err(of)?;
        let attributes: Attributes = device.attributes().map_err(of)?;
        let writes_ordering = match attributes.writes_ordering {
            WritesOrdering::None => "none",
            WritesOrdering::Owner => "owner",
            WritesOrdering::AllDevices => "all",
        };
        found.devices.push(Gpu {
            name: device.name().map_err(of)?,
            pci: device.pci_address().map_err(of)?,
            compute: format!("{}.{}", attributes.compute.0, attributes.compute.1),
            gpudirect_rdma: attributes.gpudirect_rdma,
            gpudirect_rdma_vmm: attributes.gpudirect_rdma_vmm,
            dma_buf: attributes.dma_buf,
            dma_buf_mmap: attributes.dma_buf_mmap,
            writes_ordering: writes_ordering.to_owned(),
            numa_node: u32::try_from(attributes.host_numa_node).ok(),
        });
    }
    Ok(())
}
