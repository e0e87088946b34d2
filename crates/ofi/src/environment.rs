//! The environment that providers read when libfabric starts: set here, and nowhere else, where the
//! user has not.
//!
//! Providers take these choices from the environment alone. libfabric reads it at the first
//! question, so it is set once, between loading the library, whose version matters, and asking.
//! Decision 27 has the reasons.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Once;

use libfabric_sys::{Library, Version};
use log::info;

use crate::memory_kinds::MemoryKinds;
use crate::options::Options;
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

/// Connections for which soft RoCE has room: its completion queues take 32767 entries, and ofi_rxm
/// wants 256 for each.
const SOFT_ROCE: usize = 127;

const SPARE: usize = 16;

pub(crate) fn prepare(library: &Library, options: &Options, kinds: MemoryKinds) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let situation = Situation::of_process(library, kinds);
        for profile in concerned(options.provider, &sysfs()) {
            for variable in *profile.environment {
                set(profile, variable, &situation);
            }
        }
    });
}

/// A variable that a provider ought to find in the environment, for people who ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnvironmentWish {
    /// The provider.
    pub provider: &'static str,
    /// The variable.
    pub name: &'static str,
    /// What it is set to, unless the user has set it.
    pub value: String,
    /// What the user has set it to.
    pub theirs: Option<String>,
    /// Why.
    pub why: &'static str,
}

/// What would be set here for the providers that may be used. To be asked before the fabric is
/// searched, which sets it.
pub fn environment_wishes(
    library: &Library,
    options: &Options,
    kinds: MemoryKinds,
) -> Vec<EnvironmentWish> {
    let situation = Situation::of_process(library, kinds);
    let wish = |profile: &'static Profile, variable: &'static Variable| {
        let theirs = std::env::var_os(variable.name);
        Some(EnvironmentWish {
            provider: profile.name,
            name: variable.name,
            value: situation.value(variable)?.to_string_lossy().into_owned(),
            theirs: theirs.map(|value| value.to_string_lossy().into_owned()),
            why: variable.value.why,
        })
    };
    let sysfs = sysfs();
    let variables = concerned(options.provider, &sysfs)
        .flat_map(|profile| profile.environment.iter().map(move |v| (profile, v)));
    variables.filter_map(|(profile, variable)| wish(profile, variable)).collect()
}

/// The providers that may be used. Who leaves the choice to us has only what the machine can use
/// set.
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
    fn of_process(library: &Library, kinds: MemoryKinds) -> Self {
        Self {
            library: library.version(),
            devices: kinds == MemoryKinds::HostAndDevices,
            job_size: JOB_SIZES
                .iter()
                .filter_map(|name| std::env::var(name).ok()?.parse::<usize>().ok())
                .max(),
            soft_roce: has_soft_roce(&sysfs().join("class/infiniband")),
        }
    }

    fn value(&self, variable: &Variable) -> Option<OsString> {
        if !variable.is_of(self.library) || variable.for_devices && !self.devices {
            return None;
        }
        match *variable.value {
            Wanted::Text(text) => Some(text.into()),
            Wanted::Connections => self.connections().map(|count| count.to_string().into()),
        }
    }

    fn connections(&self) -> Option<usize> {
        if self.soft_roce {
            return Some(SOFT_ROCE);
        }
        // Both lanes of each PE. Never fewer than usual: what one launcher says may be a part of
        // the job.
        let wanted = self.job_size?.saturating_mul(2).saturating_add(SPARE);
        (wanted > USUAL).then_some(wanted)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "libfabric takes this from nothing but the environment"
)]
fn set(profile: &Profile, variable: &Variable, situation: &Situation) {
    let Some(value) = situation.value(variable) else { return };
    let (name, provider) = (variable.name, profile.name);
    if let Some(theirs) = std::env::var_os(name) {
        info!("provider {provider}: {name}={} is the user's", theirs.to_string_lossy());
        return;
    }
    let why = variable.value.why;
    info!("provider {provider}: {name} is set to {}: {why}", value.to_string_lossy());
    // SAFETY: no other thread reads the environment by other means than the standard library or
    // changes it meanwhile. That is the program's to keep, which calls NVSHMEM's init; decision 27.
    unsafe {
        std::env::set_var(name, value);
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
    use super::*;
    use crate::provider::Provider;

    fn values(provider: Provider, situation: &Situation) -> Vec<(&'static str, String)> {
        let variables = *candidates(provider)[0].environment;
        let value = |variable: &Variable| {
            let value = situation.value(variable)?;
            Some((variable.name, value.to_string_lossy().into_owned()))
        };
        variables.iter().filter_map(value).collect()
    }

    fn situation() -> Situation {
        let library = Version::new(2, 5);
        Situation { library, devices: true, job_size: Some(8), soft_roce: false }
    }

    fn has(values: &[(&str, String)], name: &str, value: &str) -> bool {
        values.iter().any(|(found, is)| *found == name && is == value)
    }

    #[test]
    fn queues_are_made_for_the_job_and_fit_soft_roce() {
        let universe = |situation: &Situation| {
            let values = values(Provider::Verbs, situation);
            let found = values.into_iter().find(|(name, _)| *name == "FI_UNIVERSE_SIZE");
            found.map(|(_, value)| value)
        };
        for few in [None, Some(8), Some(504)] {
            assert_eq!(universe(&Situation { job_size: few, ..situation() }), None, "{few:?}");
        }
        let many = Situation { job_size: Some(4096), ..situation() };
        assert_eq!(universe(&many).as_deref(), Some("8208"));
        // What libfabric has by itself is too much there.
        for size in [None, Some(4096)] {
            let soft = Situation { job_size: size, soft_roce: true, ..situation() };
            assert_eq!(universe(&soft).as_deref(), Some("127"));
        }
    }

    #[test]
    fn what_matters_for_memory_of_devices_is_left_alone_without() {
        let without = Situation { devices: false, ..situation() };
        assert!(has(&values(Provider::Verbs, &situation()), "MLX5_SCATTER_TO_CQE", "0"));
        assert!(!has(&values(Provider::Verbs, &without), "MLX5_SCATTER_TO_CQE", "0"));
    }

    #[test]
    fn cxi_waits_for_no_kernel_and_no_match_entry_in_any_version() {
        let without = [("FI_CXI_OPTIMIZED_MRS", "0"), ("FI_CXI_RX_MATCH_MODE", "hybrid")];
        let devices =
            [("FI_CXI_DISABLE_HMEM_DEV_REGISTER", "1"), ("FI_CXI_DISABLE_HOST_REGISTER", "1")];
        let newer = [("FI_CXI_DISABLE_NON_INJECT_RMA_IDC", "1")];
        let are = |situation: &Situation, wanted: &[(&'static str, &str)]| {
            let wanted: Vec<_> = wanted.iter().map(|(name, is)| (*name, is.to_string())).collect();
            assert_eq!(values(Provider::Cxi, situation), wanted);
        };
        let older = Situation { library: Version::new(2, 2), ..situation() };
        are(&older, &[&without[..], &devices].concat());
        are(&situation(), &[&without[..], &newer, &devices].concat());
        are(&Situation { devices: false, ..situation() }, &without);
        let many = Situation { job_size: Some(4096), devices: false, ..situation() };
        are(&many, &[&without[..], &[("FI_UNIVERSE_SIZE", "8208")]].concat());
    }

    #[test]
    fn who_asks_is_told_what_would_be_set() {
        let options = Options { provider: Provider::Verbs, ..crate::options::tests::options() };
        let library = Library::load(&options.library).expect("a libfabric");
        let wishes = |kinds| environment_wishes(library, &options, kinds);
        let wish = |wishes: Vec<EnvironmentWish>| {
            wishes.into_iter().find(|wish| wish.name == "MLX5_SCATTER_TO_CQE")
        };
        let told = wish(wishes(MemoryKinds::HostAndDevices)).expect("it matters for devices");
        assert_eq!((told.provider, told.value.as_str()), ("verbs;ofi_rxm", "0"));
        assert_eq!(wish(wishes(MemoryKinds::Host)), None);
        for variable in *candidates(Provider::Cxi)[0].environment {
            let since = variable.since.unwrap_or(Version::new(0, 1));
            assert!(variable.is_of(since), "{}: from then on", variable.name);
        }
    }

    #[test]
    fn every_variable_is_in_the_documentation() {
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
    fn who_leaves_the_choice_has_nothing_set_for_nics_that_are_not_there() {
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
    fn nics_are_looked_for_where_the_kernel_lists_them() {
        let sysfs =
            std::env::temp_dir().join(format!("nvshmem-environment-{}", std::process::id()));
        let class = sysfs.join("class/infiniband");
        let device = class.join("rxe0");
        std::fs::create_dir_all(&device).expect("a directory");
        let before = has_soft_roce(&class);
        std::fs::write(device.join("parent"), "eth0\n").expect("a file");
        let after = has_soft_roce(&class);
        let providers = [Provider::Verbs, Provider::Efa, Provider::Cxi, Provider::Tcp];
        let has = |provider| has_nics(candidates(provider)[0], &sysfs);
        let found = providers.map(has);
        // An EFA NIC is in the same class, and known by its driver.
        std::fs::create_dir_all(class.join("rdmap0s6/device")).expect("a directory");
        std::os::unix::fs::symlink("../drivers/efa", class.join("rdmap0s6/device/driver"))
            .expect("a link");
        let with_efa = has(Provider::Efa);
        std::fs::remove_dir_all(&sysfs).expect("removed");
        assert_eq!((before, after, with_efa), (false, true, true));
        assert_eq!(found, [true, false, false, true]);
    }
}
