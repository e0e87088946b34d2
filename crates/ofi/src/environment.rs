//! Environment variables that providers read when libfabric starts. Only set here, and never over
//! the user's.
//!
//! Providers have no other interface for these options. libfabric reads them at the first query: so
//! they are set once, after loading the library, whose version matters (decision 27).

use std::env;
use std::path::Path;
use std::sync::Once;

use libfabric_sys::{Library, Version};
use log::info;

use crate::options::{MemoryKinds, Options};
use crate::provider::{Profile, Provider, Variable, Wanted, candidates};
use crate::topology::sysfs;

const JOB_SIZES: [&str; 6] = [
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_NTASKS",
    "PALS_SIZE",
    "WORLD_SIZE",
];

const USUAL: usize = 1024;

/// Maximum connections with soft RoCE: its completion queues have 32767 entries, and ofi_rxm wants
/// 256 for each.
const SOFT_ROCE: usize = 127;

const SPARE: usize = 16;

#[expect(
    clippy::disallowed_methods,
    reason = "libfabric takes this from nothing but the environment"
)]
pub(crate) fn prepare(library: &Library, options: &Options, kinds: MemoryKinds) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for wish in environment_wishes(library, options, kinds) {
            let EnvironmentWish { provider, name, value, theirs, why } = wish;
            if let Some(theirs) = theirs {
                info!("provider {provider}: {name}={theirs} is the user's");
                continue;
            }
            info!("provider {provider}: {name} is set to {value}: {why}");
            // SAFETY: no other thread changes the environment meanwhile, or reads it except through
            // Rust's library, as the program that calls NVSHMEM's init promises; decision 27.
            unsafe { env::set_var(name, value) };
        }
    });
}

/// An environment variable that a provider should have, for diagnosis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnvironmentWish {
    pub provider: &'static str,
    pub name: &'static str,
    /// Value that is set, unless the user has set one.
    pub value: String,
    /// Value that the user has set.
    pub theirs: Option<String>,
    pub why: &'static str,
}

/// Returns the variables that discovery will set for the providers that may be used.
pub fn environment_wishes(
    library: &Library,
    options: &Options,
    kinds: MemoryKinds,
) -> Vec<EnvironmentWish> {
    let sysfs = sysfs();
    let sizes = JOB_SIZES.iter().filter_map(|name| env::var(name).ok()?.parse::<usize>().ok());
    let situation = Situation {
        library: library.version(),
        devices: kinds == MemoryKinds::HostAndDevices,
        job_size: sizes.max(),
        soft_roce: has_soft_roce(&sysfs.join("class/infiniband")),
    };
    concerned(options.provider, &sysfs).flat_map(|profile| situation.wishes(profile)).collect()
}

/// Returns the providers that may be used; with `auto`, those whose NICs the machine has.
fn concerned(provider: Provider, sysfs: &Path) -> impl Iterator<Item = &'static Profile> + '_ {
    let auto = provider == Provider::Auto;
    let profiles = candidates(provider).iter().copied();
    profiles.filter(move |profile| !auto || has_nics(profile, sysfs))
}

struct Situation {
    library: Version,
    devices: bool,
    job_size: Option<usize>,
    soft_roce: bool,
}

impl Situation {
    fn wishes(&self, profile: &'static Profile) -> Vec<EnvironmentWish> {
        let wish = |variable: &'static Variable| {
            let theirs = env::var_os(variable.name);
            Some(EnvironmentWish {
                provider: profile.name,
                name: variable.name,
                value: self.value(variable, profile)?,
                theirs: theirs.map(|value| value.to_string_lossy().into_owned()),
                why: variable.value.why,
            })
        };
        profile.environment.iter().filter_map(wish).collect()
    }

    fn value(&self, variable: &Variable, profile: &Profile) -> Option<String> {
        let is_too_new = variable.since.is_some_and(|since| self.library < since);
        if is_too_new || variable.for_devices && !self.devices {
            return None;
        }
        match *variable.value {
            Wanted::Text(text) => Some(text.into()),
            Wanted::Connections => self.connections(profile).map(|count| count.to_string()),
        }
    }

    fn connections(&self, profile: &Profile) -> Option<usize> {
        let is_rdma = profile.nic.is_some_and(|nic| nic.class == "infiniband");
        if self.soft_roce && is_rdma {
            return Some(SOFT_ROCE);
        }
        // Both lanes of each PE, and at least the usual: a launcher may know only a part of the
        // job.
        let wanted = self.job_size?.saturating_mul(2).saturating_add(SPARE);
        (wanted > USUAL).then_some(wanted)
    }
}

fn has_nics(profile: &Profile, sysfs: &Path) -> bool {
    profile.nic.is_none_or(|nic| !nic.of_machine(sysfs).is_empty())
}

fn has_soft_roce(class: &Path) -> bool {
    let devices = class.read_dir().into_iter().flatten().flatten();
    devices.into_iter().any(|device| device.path().join("parent").exists())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use test_support::scratch::Scratch;

    use super::*;
    use crate::options::tests::options;
    use crate::provider::Provider;

    fn values(provider: Provider, situation: &Situation) -> Vec<(&'static str, String)> {
        let wishes = situation.wishes(candidates(provider)[0]).into_iter();
        wishes.map(|wish| (wish.name, wish.value)).collect()
    }

    fn situation() -> Situation {
        let library = Version::new(2, 3);
        Situation { library, devices: true, job_size: Some(8), soft_roce: false }
    }

    #[test]
    fn queues_fit_job_and_soft_roce() {
        for (job_size, soft_roce, value) in [
            (None, false, None),
            (Some(504), false, None),
            (Some(4096), false, Some("8208")),
            // Libfabric's default is too large there.
            (None, true, Some("127")),
            (Some(4096), true, Some("127")),
        ] {
            let values = values(Provider::Verbs, &Situation { job_size, soft_roce, ..situation() });
            let found = values.iter().find(|(name, _)| *name == "FI_UNIVERSE_SIZE");
            assert_eq!(found.map(|(_, value)| value.as_str()), value, "{job_size:?} {soft_roce}");
        }
    }

    #[test]
    fn variables_depend_on_version_and_devices() {
        let both = [("FI_CXI_OPTIMIZED_MRS", "0"), ("FI_CXI_RX_MATCH_MODE", "hybrid")];
        let devices =
            [("FI_CXI_DISABLE_HMEM_DEV_REGISTER", "1"), ("FI_CXI_DISABLE_HOST_REGISTER", "1")];
        let newer = [("FI_CXI_DISABLE_NON_INJECT_RMA_IDC", "1")];
        let older = Situation { library: Version::new(2, 2), ..situation() };
        let host = || Situation { devices: false, ..situation() };
        let many = Situation { job_size: Some(4096), devices: false, ..situation() };
        for (situation, wanted) in [
            (older, [&both[..], &devices].concat()),
            (situation(), [&both[..], &newer, &devices].concat()),
            (host(), both.to_vec()),
            (many, [&both[..], &[("FI_UNIVERSE_SIZE", "8208")]].concat()),
            (Situation { soft_roce: true, ..host() }, both.to_vec()),
        ] {
            let wanted: Vec<_> = wanted.iter().map(|(name, is)| (*name, is.to_string())).collect();
            assert_eq!(values(Provider::Cxi, &situation), wanted);
        }
        let library = Library::load(&options().library).expect("a libfabric");
        let options = Options { provider: Provider::Verbs, ..options() };
        for kinds in [MemoryKinds::HostAndDevices, MemoryKinds::Host] {
            let wishes = environment_wishes(library, &options, kinds);
            let scatter = wishes.iter().find(|wish| wish.name == "MLX5_SCATTER_TO_CQE");
            let has_devices = kinds == MemoryKinds::HostAndDevices;
            assert_eq!(scatter.map(|wish| &wish.value[..]), has_devices.then_some("0"));
        }
    }

    #[test]
    fn every_variable_is_documented() {
        let text = include_str!("../../../docs/providers.md");
        for provider in Provider::all() {
            for profile in candidates(provider) {
                for variable in *profile.environment {
                    let row = format!("| `{}` |", variable.name);
                    assert!(text.contains(&row), "docs/providers.md lacks {row}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_set_for_absent_nics() {
        let empty = Path::new("/nothing/is/here");
        let names = |provider| concerned(provider, empty).map(|profile| profile.name);
        assert!(names(Provider::Auto).any(|name| name == "tcp;ofi_rxm"));
        let with_nics = ["efa", "cxi", "verbs;ofi_rxm"];
        assert!(!names(Provider::Auto).any(|name| with_nics.contains(&name)));
        // A provider that is asked for is prepared whatever the kernel lists.
        for provider in [Provider::Efa, Provider::Cxi, Provider::Verbs] {
            assert!(names(provider).any(|name| with_nics.contains(&name)), "{provider:?}");
        }
    }

    #[test]
    fn nics_are_those_the_kernel_lists() {
        let sysfs = Scratch::new();
        let class = sysfs.join("class/infiniband");
        let has = |provider| has_nics(candidates(provider)[0], &sysfs);
        fs::create_dir_all(class.join("rxe0")).expect("a folder");
        assert!(!has_soft_roce(&class));
        sysfs.write("class/infiniband/rxe0/parent", "eth0\n");
        assert!(has_soft_roce(&class));
        let providers = [Provider::Verbs, Provider::Efa, Provider::Cxi, Provider::Tcp];
        assert_eq!(providers.map(has), [true, false, false, true]);
        // An EFA NIC is in the same class, and known by its driver.
        sysfs.link("class/infiniband/rdmap0s6/device/driver", "../drivers/efa");
        assert!(has(Provider::Efa));
    }
}
