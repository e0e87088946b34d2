//! The reader of settings: from a list of variables to values, each with where it came from.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use log::Level;

use super::Settings;
use super::error::{Refused, SettingsError};
use super::table::{PREFIX, Setting, TABLE, WITHOUT_EFFECT};

/// Where a value came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// An environment variable.
    Environment,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Environment => "environment",
        })
    }
}

/// Where the values of a [`Settings`] came from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sources {
    /// The variables that were set. All others are defaults.
    from_environment: Vec<&'static str>,
}

impl Sources {
    /// Where the value of the variable `name` came from.
    pub fn of(&self, name: &str) -> Source {
        if self.from_environment.contains(&name) { Source::Environment } else { Source::Default }
    }
}

/// One setting and its value, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The environment variable.
    pub name: &'static str,
    /// The value in force, as the user would write it.
    pub value: String,
    /// Where the value came from.
    pub source: Source,
    /// What the setting does.
    pub doc: &'static str,
}

/// Something about the environment that the user should hear of, and that is no error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A variable with our prefix that we do not know, perhaps misspelt.
    Unknown {
        /// The variable.
        name: String,
        /// The known variable that is spelt most like it, when one is close.
        nearest: Option<&'static str>,
    },
    /// A variable of NVIDIA's own libfabric transport that changes nothing here.
    WithoutEffect {
        /// The variable.
        name: &'static str,
    },
}

impl Notice {
    /// The level to log it at.
    pub fn level(&self) -> Level {
        match self {
            Self::Unknown { .. } => Level::Warn,
            Self::WithoutEffect { .. } => Level::Info,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "{name} is not a known setting and is ignored; did you mean {nearest}?")
            }
            Self::Unknown { name, nearest: None } => {
                write!(f, "{name} is not a known setting and is ignored")
            }
            Self::WithoutEffect { name } => {
                write!(f, "{name} is accepted and has no effect in this transport")
            }
        }
    }
}

impl Settings {
    /// Reads the settings from the environment of the process.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn from_env() -> Result<(Self, Vec<Notice>), SettingsError> {
        Self::load(std::env::vars_os())
    }

    /// Reads the settings from a list of variables and their values. Where a variable appears
    /// twice the first counts, as with `getenv`. An empty value counts as not set.
    ///
    /// The notices say what else the user should hear of; log them once logging is set up.
    ///
    /// # Errors
    /// Every value that is refused, with its variable and what would be accepted.
    pub fn load<N, V>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<(Self, Vec<Notice>), SettingsError>
    where
        N: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let ours = select(variables);
        let mut settings = Self::default();
        let mut refused = Vec::new();
        for setting in TABLE {
            let Some((_, value)) = ours.iter().find(|(name, _)| name == setting.name) else {
                continue;
            };
            match settings.apply(setting, value) {
                Ok(()) => settings.sources.from_environment.push(setting.name),
                Err(error) => refused.push(error),
            }
        }
        settings.derive();
        if refused.is_empty() {
            Ok((settings, notices(ours.iter().map(|(name, _)| name.as_str()))))
        } else {
            Err(SettingsError { refused })
        }
    }

    /// Every setting with its value and where that came from, in the order of the documentation.
    pub fn describe(&self) -> Vec<Row> {
        TABLE
            .iter()
            .map(|setting| Row {
                name: setting.name,
                value: (setting.show)(self),
                source: self.sources.of(setting.name),
                doc: setting.doc,
            })
            .collect()
    }

    /// What follows from other settings, unless it is set.
    fn derive(&mut self) {
        let Some(deadline) = self.fail_after else { return };
        if self.sources.of("NVSHMEM_LIBFABRIC_BOOTSTRAP_SECONDS") == Source::Default {
            let beyond = deadline.saturating_add(Duration::from_secs(60));
            self.bootstrap_patience = self.bootstrap_patience.max(beyond);
        }
    }

    fn apply(&mut self, setting: &Setting, value: &OsStr) -> Result<(), Refused> {
        let outcome = match value.to_str() {
            Some(text) => (setting.set)(self, text.trim()),
            None => Err(String::from("not valid UTF-8")),
        };
        outcome.map_err(|reason| Refused {
            name: setting.name,
            given: value.to_string_lossy().into_owned(),
            reason,
            accepted: (setting.accepts)(),
        })
    }
}

/// The variables with our prefix that have a value.
fn select<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Vec<(String, Box<OsStr>)>
where
    N: AsRef<OsStr>,
    V: AsRef<OsStr>,
{
    variables
        .into_iter()
        .map(|(name, value)| {
            (name.as_ref().to_string_lossy().into_owned(), Box::from(value.as_ref()))
        })
        .filter(|(name, value): &(String, Box<OsStr>)| {
            let ours = name.starts_with(PREFIX) || TABLE.iter().any(|known| known.name == name);
            ours && !value.to_string_lossy().trim().is_empty()
        })
        .collect()
}

/// What to say about the names of variables that are set.
fn notices<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Notice> {
    let mut notices = Vec::new();
    for name in names {
        if TABLE.iter().any(|setting| setting.name == name) {
            continue;
        }
        notices.push(match WITHOUT_EFFECT.iter().find(|&&known| known == name) {
            Some(name) => Notice::WithoutEffect { name },
            None => Notice::Unknown { name: String::from(name), nearest: nearest(name) },
        });
    }
    notices
}

/// The known variable spelt most like `name`, when at most a third of its own part differs.
fn nearest(name: &str) -> Option<&'static str> {
    let own = name.strip_prefix(PREFIX)?;
    let known = TABLE.iter().map(|setting| setting.name).chain(WITHOUT_EFFECT.iter().copied());
    known
        .filter_map(|candidate| {
            let other = candidate.strip_prefix(PREFIX)?;
            let distance = edit_distance(own, other);
            (distance * 3 <= other.len()).then_some((distance, candidate))
        })
        .min()
        .map(|(_, candidate)| candidate)
}

/// How many letters must be put in, taken out or replaced to turn one text into the other
/// (Levenshtein's distance), whatever their case.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().map(|byte| byte.to_ascii_uppercase()).collect();
    // The distances from the part of `a` read so far to every beginning of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().map(|byte| byte.to_ascii_uppercase()).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::settings::{
        ConsistencyChoice, CountersPage, CountersSignal, RailBalance, SignalChoice, StagingChoice,
        StripeThreshold, WordsChoice, YieldWhen,
    };
    use ofi::topology::Distance;
    use ofi::{AtomicsChoice, BatchChoice, Devices, GpuDirect, Progress, Provider, Threading};

    fn load(variables: &[(&str, &str)]) -> Result<(Settings, Vec<Notice>), SettingsError> {
        Settings::load(variables.iter().copied())
    }

    fn refusals(variables: &[(&str, &str)]) -> Vec<Refused> {
        load(variables).expect_err("refused").refused
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        let (settings, notices) = load(&[("PATH", "/bin"), ("NVSHMEM_DEBUG", "INFO")]).unwrap();
        assert_eq!(notices, []);
        assert_eq!(settings.provider, Provider::Auto);
        assert_eq!(settings.devices, Devices::Any);
        assert_eq!(settings.max_nic_per_pe, 16);
        assert_eq!(settings.warn_after, Some(Duration::from_secs(10)));
        assert_eq!(settings.fail_after, Some(Duration::from_secs(120)));
        assert_eq!(settings.library, "libfabric.so.1");
        assert!(settings.describe().iter().all(|row| row.source == Source::Default));
    }

    #[test]
    fn every_setting_is_read() {
        let variables = [
            ("NVSHMEM_LIBFABRIC_PROVIDER", "TCP;OFI_RXM"),
            ("NVSHMEM_LIBFABRIC_FABRIC", "127.0.0.0/8"),
            ("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1,127.0.0.2"),
            ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "2"),
            ("NVSHMEM_LIBFABRIC_PROGRESS", "manual"),
            ("NVSHMEM_LIBFABRIC_THREADING", "safe"),
            ("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", "1"),
            ("NVSHMEM_LIBFABRIC_MAX_SEGMENT", "64K"),
            ("NVSHMEM_LIBFABRIC_RAIL_BALANCE", "Round_Robin"),
            ("NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD", "Never"),
            ("NVSHMEM_LIBFABRIC_STRIPE_SEGMENT", "1M"),
            ("NVSHMEM_LIBFABRIC_SIGNAL_ENGINE", "Chained"),
            ("NVSHMEM_LIBFABRIC_ATOMICS", "native"),
            ("NVSHMEM_LIBFABRIC_BATCH_RMA", "always"),
            ("NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA", "Yes"),
            ("NVSHMEM_LIBFABRIC_STAGING_CHUNK", "64k"),
            ("NVSHMEM_LIBFABRIC_STAGING_DEPTH", "256"),
            ("NVSHMEM_LIBFABRIC_STAGING_CONTEXT", "Program"),
            ("NVSHMEM_LIBFABRIC_WORDS", "GDRCopy"),
            ("NVSHMEM_DISABLE_GDRCOPY", "1"),
            ("NVSHMEM_LIBFABRIC_GPU_DIRECT", "Always"),
            ("NVSHMEM_LIBFABRIC_GDR_LEVEL", "PHB"),
            ("NVSHMEM_LIBFABRIC_CONSISTENCY", "write-read"),
            ("NVSHMEM_LIBFABRIC_WARN_SECONDS", "0"),
            ("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", " 7 "),
            ("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT", "4"),
            ("NVSHMEM_LIBFABRIC_RAIL_COOLING", "0"),
            ("NVSHMEM_LIBFABRIC_YIELD", "never"),
            ("NVSHMEM_LIBFABRIC_COUNTERS", "/tmp/of-pe-%p"),
            ("NVSHMEM_LIBFABRIC_COUNTERS_PAGE", "/tmp/Pages"),
            ("NVSHMEM_LIBFABRIC_COUNTERS_SIGNAL", "USR2"),
            ("NVSHMEM_LIBFABRIC_TRACE", "/tmp/Trace-%p"),
            ("NVSHMEM_LIBFABRIC_TRACE_RECORDS", "1M"),
            ("NVSHMEM_LIBFABRIC_BOOTSTRAP", "host0:4711"),
            ("NVSHMEM_LIBFABRIC_BOOTSTRAP_SECONDS", "5"),
            ("NVSHMEM_LIBFABRIC_CHANNEL_RINGS", "8"),
            ("NVSHMEM_LIBFABRIC_CHANNEL_SLOTS", "64K"),
            ("NVSHMEM_LIBFABRIC_CHANNEL_SLEEP", "0"),
            ("NVSHMEM_LIBFABRIC_CHANNEL_PIN", "no"),
            ("NVSHMEM_LIBFABRIC_LIBRARY", "/opt/lib/libfabric.so.1"),
        ];
        assert_eq!(variables.len(), TABLE.len(), "a setting is missing here");
        let (settings, notices) = load(&variables).unwrap();
        assert_eq!(notices, []);
        assert_eq!(settings.provider, Provider::TcpRxm);
        assert_eq!(settings.fabric.as_deref(), Some("127.0.0.0/8"));
        assert_eq!(
            settings.devices,
            Devices::Include(vec!["127.0.0.1".into(), "127.0.0.2".into()])
        );
        assert_eq!(settings.max_nic_per_pe, 2);
        assert_eq!(settings.progress, Progress::Manual);
        assert_eq!(settings.threading, Threading::Safe);
        assert_eq!(settings.queue_depth, 1);
        assert_eq!(settings.max_segment, 65536);
        assert_eq!(settings.rail_balance, RailBalance::RoundRobin);
        assert_eq!(settings.stripe_threshold, StripeThreshold::Never);
        assert_eq!(settings.stripe_segment, 1 << 20);
        assert_eq!(settings.signal_engine, SignalChoice::Chained);
        assert_eq!(settings.atomics, AtomicsChoice::Native);
        assert_eq!(settings.batch_rma, BatchChoice::Always);
        assert_eq!(settings.batching(), BatchChoice::Never, "the one that disables wins");
        assert_eq!((settings.staging_chunk, settings.staging_depth), (64 << 10, 256));
        assert_eq!(settings.staging_context, StagingChoice::Program);
        assert_eq!(settings.words, WordsChoice::Gdrcopy);
        assert!(!settings.may_use_gdrcopy(), "the one that disables wins");
        assert!(!settings.may_map_dma_bufs());
        assert_eq!(settings.gpu_direct, GpuDirect::Always);
        assert_eq!(settings.gdr_level, Distance::Phb);
        assert_eq!(settings.consistency, ConsistencyChoice::WriteRead);
        assert_eq!(settings.warn_after, None);
        assert_eq!(settings.fail_after, Some(Duration::from_secs(7)));
        assert_eq!(settings.rail_timeout, Some(Duration::from_secs(4)));
        assert_eq!(settings.rail_cooling, None);
        assert_eq!(settings.yield_when, YieldWhen::Never);
        assert_eq!(settings.counters.as_deref(), Some("/tmp/of-pe-%p"));
        assert_eq!(settings.counters_page, CountersPage::In("/tmp/Pages".into()));
        assert_eq!(settings.counters_signal, CountersSignal::Usr2);
        assert_eq!(settings.trace.as_deref(), Some("/tmp/Trace-%p"));
        assert_eq!(settings.trace_records, 1 << 20);
        assert_eq!(settings.bootstrap.as_deref(), Some("host0:4711"));
        assert_eq!(settings.bootstrap_patience, Duration::from_secs(5));
        assert_eq!((settings.channel_rings, settings.channel_slots), (8, 65536));
        assert_eq!((settings.channel_sleep, settings.channel_pin), (None, false));
        assert_eq!(settings.library, "/opt/lib/libfabric.so.1");
        assert!(settings.describe().iter().all(|row| row.source == Source::Environment));
    }

    #[test]
    fn pes_wait_for_one_another_for_longer_than_operations_do() {
        let patience = |variables: &[(&str, &str)]| {
            let (settings, _) = load(variables).unwrap();
            settings.bootstrap_patience.as_secs()
        };
        let deadline = |seconds| ("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", seconds);
        assert_eq!((patience(&[]), patience(&[deadline("7")])), (180, 180));
        assert_eq!((patience(&[deadline("600")]), patience(&[deadline("0")])), (660, 180));
        let set = ("NVSHMEM_LIBFABRIC_BOOTSTRAP_SECONDS", "5");
        assert_eq!(patience(&[deadline("600"), set]), 5);
    }

    #[test]
    fn sizes_of_a_channel_are_powers_of_two() {
        for (name, value) in [
            ("NVSHMEM_LIBFABRIC_CHANNEL_RINGS", "3"),
            ("NVSHMEM_LIBFABRIC_CHANNEL_RINGS", "64"),
            ("NVSHMEM_LIBFABRIC_CHANNEL_SLOTS", "1000"),
            ("NVSHMEM_LIBFABRIC_CHANNEL_SLOTS", "32"),
        ] {
            let refused = load(&[(name, value)]).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("a power of two"), "{refused}");
        }
    }

    #[test]
    fn what_is_described_reads_back_as_the_same_settings() {
        let (settings, _) = load(&[
            ("NVSHMEM_LIBFABRIC_PROVIDER", "Verbs"),
            ("NVSHMEM_LIBFABRIC_MAX_SEGMENT", "1M"),
            ("NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD", "64K"),
        ])
        .unwrap();
        let rows = settings.describe();
        let (again, _) = Settings::load(rows.iter().map(|row| (row.name, &row.value))).unwrap();
        assert_eq!(again.devices, Devices::Any);
        let values = |settings: &Settings| -> Vec<String> {
            settings.describe().into_iter().map(|row| row.value).collect()
        };
        assert_eq!(values(&again), values(&settings));
        let sources: Vec<_> = rows
            .iter()
            .filter(|row| row.source == Source::Environment)
            .map(|row| row.name)
            .collect();
        assert_eq!(
            sources,
            [
                "NVSHMEM_LIBFABRIC_PROVIDER",
                "NVSHMEM_LIBFABRIC_MAX_SEGMENT",
                "NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD"
            ]
        );
    }

    #[test]
    fn an_unknown_provider_is_refused_with_the_list() {
        let refused = refusals(&[("NVSHMEM_LIBFABRIC_PROVIDER", "ucx")]);
        assert_eq!(
            refused[0].to_string(),
            "NVSHMEM_LIBFABRIC_PROVIDER=\"ucx\" is refused: unknown value. \
             Accepted: auto, efa, cxi, verbs, tcp, tcp;ofi_rxm, shm"
        );
    }

    #[test]
    fn every_refusal_is_reported() {
        let error = load(&[
            ("NVSHMEM_LIBFABRIC_YIELD", "sometimes"),
            ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "33"),
            ("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", "many"),
            ("NVSHMEM_LIBFABRIC_WARN_SECONDS", "5"),
            ("NVSHMEM_LIBFABRIC_DEVICES", "lo,,lo"),
        ])
        .expect_err("refused");
        let names: Vec<_> = error.refused.iter().map(|refused| refused.name).collect();
        assert_eq!(
            names,
            [
                "NVSHMEM_LIBFABRIC_DEVICES",
                "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE",
                "NVSHMEM_LIBFABRIC_QUEUE_DEPTH",
                "NVSHMEM_LIBFABRIC_YIELD",
            ]
        );
        let text = error.to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        let refused = refusals(&[("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "0")]);
        assert_eq!((refused[0].reason.as_str(), refused[0].given.as_str()), ("too small", "0"));
        assert_eq!(refused[0].accepted, "a number from 1 to 32");
        for (name, value) in [
            ("NVSHMEM_LIBFABRIC_QUEUE_DEPTH", "65537"),
            ("NVSHMEM_LIBFABRIC_WARN_SECONDS", "1000001"),
            ("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", "99999999999999999999"),
            ("NVSHMEM_LIBFABRIC_MAX_SEGMENT", "99999999999G"),
            ("NVSHMEM_LIBFABRIC_STAGING_CHUNK", "2G"),
            ("NVSHMEM_LIBFABRIC_STAGING_DEPTH", "257"),
        ] {
            assert_eq!(refusals(&[(name, value)])[0].reason, "too large", "{name}");
        }
        let refused = refusals(&[("NVSHMEM_LIBFABRIC_STAGING_CHUNK", "5000")]);
        assert_eq!(refused[0].reason, "not a multiple of 4096");
        assert!(refused[0].accepted.ends_with("a multiple of 4096"), "{}", refused[0].accepted);
        let refused = refusals(&[("NVSHMEM_LIBFABRIC_STRIPE_SEGMENT", "4095")]);
        assert_eq!(refused[0].reason, "too small");
        let refused = refusals(&[("NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD", "0")]);
        assert_eq!(refused[0].reason, "too small");
        assert!(refused[0].accepted.starts_with("auto, never, or"), "{}", refused[0].accepted);
    }

    #[test]
    fn an_empty_value_counts_as_not_set() {
        let (settings, notices) =
            load(&[("NVSHMEM_LIBFABRIC_PROVIDER", " "), ("NVSHMEM_LIBFABRIC_TYPO", "")]).unwrap();
        assert_eq!(settings.sources.of("NVSHMEM_LIBFABRIC_PROVIDER"), Source::Default);
        assert_eq!(notices, []);
    }

    #[test]
    fn a_value_that_is_not_text_is_refused() {
        let value = OsStr::from_bytes(b"lo\xff");
        let error = Settings::load([("NVSHMEM_LIBFABRIC_DEVICES", value)]).expect_err("refused");
        assert_eq!(error.refused[0].reason, "not valid UTF-8");
    }

    #[test]
    fn unknown_names_are_noticed_with_the_nearest_known_one() {
        let (_, notices) = load(&[
            ("NVSHMEM_LIBFABRIC_DEVICE", "lo"),
            ("NVSHMEM_LIBFABRIC_MAX_NICS_PER_PE", "2"),
            ("NVSHMEM_LIBFABRIC_COLOUR", "red"),
            ("NVSHMEM_LIBFABRIC_SIGNAL_WAIT_SPIN_COUNT", "1"),
        ])
        .unwrap();
        let nearest: Vec<_> = notices
            .iter()
            .filter_map(|notice| match notice {
                Notice::Unknown { nearest, .. } => Some(*nearest),
                Notice::WithoutEffect { .. } => None,
            })
            .collect();
        assert_eq!(
            nearest,
            [Some("NVSHMEM_LIBFABRIC_DEVICES"), Some("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE"), None]
        );
        let levels: Vec<_> = notices.iter().map(Notice::level).collect();
        assert_eq!(levels, [Level::Warn, Level::Warn, Level::Warn, Level::Info]);
        assert!(notices[0].to_string().ends_with("did you mean NVSHMEM_LIBFABRIC_DEVICES?"));
    }

    #[test]
    fn edit_distance_counts_letters() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "SITTING"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }
}
