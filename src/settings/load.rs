//! The reader of settings: from variables to values, each with its source.

use std::ffi::OsStr;
use std::time::Duration;

use super::error::{Refused, SettingsError};
use super::notice::{Notice, near};
use super::table::{
    DEBUG, DEBUG_ACCEPTS, DEBUG_DOC, PREFIX, Setting, Settings, keys, variables_of_their_own,
};
use crate::logging;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Default,
    Environment,
}

/// A setting's value in force, as `nvshmem-libfabric info` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub name: &'static str,
    /// The value in force, as the user would write it.
    pub value: String,
    pub source: Source,
    /// Text of the setting in `docs/settings.md`.
    pub doc: &'static str,
}

impl Settings {
    /// Reads the settings from the environment of the process, and logs the notices.
    pub fn from_env() -> Result<Self, SettingsError> {
        let (settings, notices) = Self::load(std::env::vars_os())?;
        for Notice { level, text } in notices {
            log::log!(target: logging::INIT, level, "{text}");
        }
        Ok(settings)
    }

    /// Reads the settings from a list of variables and their values. If a variable appears
    /// twice the first counts, as with `getenv`. An empty value counts as not set.
    ///
    /// The notices are warnings for the user.
    ///
    /// # Errors
    /// Every refused value, with its variable and the accepted values.
    pub fn load(
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> Result<(Self, Vec<Notice>), SettingsError> {
        let ours = select(variables);
        let value = |name| ours.iter().find(|(set, _)| set == name).map(|(_, value)| value);
        let mut settings = Self::default();
        let mut refused = Vec::new();
        for setting in variables_of_their_own() {
            let Some(value) = value(setting.name) else { continue };
            refused.extend(settings.apply(setting, setting.name, value).err());
        }
        for entry in value(DEBUG).iter().flat_map(|keys| entries(keys)) {
            refused.extend(settings.apply_key(&entry).err());
        }
        settings.derive();
        if refused.is_empty() {
            Ok((settings, ours.iter().filter_map(|(name, _)| Notice::of(name)).collect()))
        } else {
            Err(SettingsError { refused })
        }
    }

    /// Every variable with its value and source, in the order of the documentation. The last one,
    /// of the debug keys, has those that are set.
    pub fn describe(&self) -> Vec<Row> {
        let row = |setting: &Setting| Row {
            name: setting.name,
            value: (setting.show)(self),
            source: self.source(setting.name),
            doc: setting.doc,
        };
        let is_set = |key: &&Setting| self.source(key.name) == Source::Environment;
        let keys: Vec<String> =
            keys().filter(is_set).map(|key| format!("{}={}", key.name, (key.show)(self))).collect();
        let (value, source) = match keys.is_empty() {
            true => (String::from(NO_KEYS), Source::Default),
            false => (keys.join(","), Source::Environment),
        };
        let keys = Row { name: DEBUG, value, source, doc: DEBUG_DOC };
        variables_of_their_own().map(row).chain([keys]).collect()
    }

    fn source(&self, name: &str) -> Source {
        if self.set.contains(&name) { Source::Environment } else { Source::Default }
    }

    /// Default that follows from other settings.
    fn derive(&mut self) {
        let Some(deadline) = self.fail_after else { return };
        if self.source("bootstrap_seconds") == Source::Default {
            let beyond = deadline.saturating_add(Duration::from_secs(60));
            self.bootstrap_patience = self.bootstrap_patience.max(beyond);
        }
    }

    fn apply(&mut self, setting: &Setting, name: &str, value: &OsStr) -> Result<(), Refused> {
        let outcome = match value.to_str() {
            Some(text) => (setting.set)(self, text.trim()),
            None => Err(String::from("not valid UTF-8")),
        };
        outcome.map_err(|reason| Refused {
            name: String::from(name),
            given: value.to_string_lossy().into_owned(),
            reason,
            accepted: (setting.accepts)(),
        })?;
        self.set.push(setting.name);
        Ok(())
    }

    fn apply_key(&mut self, entry: &str) -> Result<(), Refused> {
        let refuse = |reason: String, accepted: String| {
            Err(Refused { name: String::from(DEBUG), given: String::from(entry), reason, accepted })
        };
        let parts = entry.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        let Some((key, value)) = parts.filter(|(key, value)| !key.is_empty() && !value.is_empty())
        else {
            return refuse(String::from("a key or its value is missing"), DEBUG_ACCEPTS.into());
        };
        let Some(setting) = keys().find(|setting| setting.name == key) else {
            let names = || keys().map(|setting| setting.name);
            let (near, all) = (near(key, names()), names().collect::<Vec<_>>());
            let listed = if near.is_empty() { all } else { near };
            return refuse(format!("there is no key {key:?}"), listed.join(", "));
        };
        if self.source(key) == Source::Environment {
            return refuse(format!("{key} is there twice"), String::from("each key once"));
        }
        self.apply(setting, &format!("{DEBUG}={key}"), OsStr::new(value))
    }
}

const NO_KEYS: &str = "none";

fn entries(list: &OsStr) -> Vec<String> {
    let text = list.to_string_lossy();
    let text = text.trim();
    if text == NO_KEYS { Vec::new() } else { text.split(',').map(String::from).collect() }
}

fn select(
    variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
) -> Vec<(String, Box<OsStr>)> {
    variables
        .into_iter()
        .map(|(name, value)| {
            (name.as_ref().to_string_lossy().into_owned(), Box::from(value.as_ref()))
        })
        .filter(|(name, value): &(String, Box<OsStr>)| {
            let ours = name.starts_with(PREFIX) || variables_of_their_own().any(|v| v.name == name);
            ours && !value.to_string_lossy().trim().is_empty()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use ofi::BulkChoice;

    fn load(variables: &[(&str, &str)]) -> Result<(Settings, Vec<Notice>), SettingsError> {
        Settings::load(variables.iter().copied())
    }

    fn refusals(variables: &[(&str, &str)]) -> Vec<Refused> {
        load(variables).expect_err("refused").refused
    }

    fn refused_keys(list: &str) -> Vec<String> {
        refusals(&[(DEBUG, list)]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        let (settings, notices) = load(&[
            ("PATH", "/bin"),
            ("NVSHMEM_DEBUG", "INFO"),
            // Empty is unset.
            ("NVSHMEM_LIBFABRIC_PROVIDER", " "),
            ("NVSHMEM_LIBFABRIC_TYPO", ""),
            (DEBUG, ""),
        ])
        .unwrap();
        assert_eq!(notices, []);
        assert_eq!(settings.max_nic_per_pe, 16);
        assert_eq!(settings.warn_after, Some(Duration::from_secs(10)));
        assert_eq!(settings.fail_after, Some(Duration::from_secs(120)));
        assert_eq!(settings.ofi(), ofi::Options::default());
        assert!(settings.describe().iter().all(|row| row.source == Source::Default));
    }

    #[test]
    fn every_setting_is_read_and_shown() {
        // What is given, and what is shown for it.
        let given = [
            ("NVSHMEM_LIBFABRIC_PROVIDER", "TCP;OFI_RXM", "tcp;ofi_rxm"),
            ("NVSHMEM_LIBFABRIC_FABRIC", "127.0.0.0/8", "127.0.0.0/8"),
            ("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1, 127.0.0.2", "127.0.0.1,127.0.0.2"),
            ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "2", "2"),
            ("NVSHMEM_LIBFABRIC_LIBRARY", "/opt/lib/libfabric.so.1", "/opt/lib/libfabric.so.1"),
            ("NVSHMEM_LIBFABRIC_RAIL_BALANCE", "Round_Robin", "round_robin"),
            ("NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD", "64K", "65536"),
            ("NVSHMEM_LIBFABRIC_STAGING_CHUNK", "64k", "65536"),
            ("NVSHMEM_LIBFABRIC_STAGING_DEPTH", "256", "256"),
            ("NVSHMEM_LIBFABRIC_STAGING_CONTEXT", "Program", "program"),
            ("NVSHMEM_LIBFABRIC_GPU_DIRECT", "Always", "always"),
            ("NVSHMEM_LIBFABRIC_GDR_LEVEL", "PHB", "phb"),
            ("NVSHMEM_LIBFABRIC_WARN_SECONDS", "0", "0"),
            ("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", " 7 ", "7"),
            ("NVSHMEM_LIBFABRIC_YIELD", "never", "never"),
            ("NVSHMEM_LIBFABRIC_COUNTERS", "/tmp/of-pe-%p", "/tmp/of-pe-%p"),
            ("NVSHMEM_LIBFABRIC_HOST_ID", "node7", "node7"),
            ("NVSHMEM_LIBFABRIC_BOOTSTRAP", "host0:4711", "host0:4711"),
            ("NVSHMEM_DISABLE_GDRCOPY", "1", "true"),
            (
                DEBUG,
                "threading = Safe,queue_depth=1,max_segment=64K,stripe_segment=1M,\
                 bulk_connections=3,signals=Chained,words=GDRCopy,resident=no,share_bounce=No,consistency=flush,bootstrap_seconds=5,channel_rings=8,\
                 channel_slots=64K,channel_pin=no",
                "threading=safe,queue_depth=1,max_segment=65536,stripe_segment=1048576,\
                 bulk_connections=3,signals=chained,words=gdrcopy,resident=false,share_bounce=false,consistency=flush,bootstrap_seconds=5,channel_rings=8,\
                 channel_slots=65536,channel_pin=false",
            ),
        ];
        let (settings, notices) = load(&given.map(|(name, value, _)| (name, value))).unwrap();
        assert_eq!(notices, []);
        let rows = settings.describe();
        let shown: Vec<_> = rows.iter().map(|row| (row.name, row.value.as_str())).collect();
        assert_eq!(shown, given.map(|(name, _, shown)| (name, shown)));
        assert!(rows.iter().all(|row| row.source == Source::Environment));
        assert!(keys().all(|key| settings.source(key.name) == Source::Environment));
        assert_eq!(settings.ofi().bulk, BulkChoice::Each(0), "nothing is striped");
        let (striping, _) = load(&[(DEBUG, "bulk_connections=3")]).unwrap();
        assert_eq!(striping.ofi().bulk, BulkChoice::Each(3));
        assert!(!settings.may_use_gdrcopy(), "the one that disables wins");
        assert_eq!(settings.warn_after, None);
    }

    #[test]
    fn bootstrap_outwaits_operations() {
        let patience = |variables: &[(&str, &str)]| {
            let (settings, _) = load(variables).unwrap();
            settings.bootstrap_patience.as_secs()
        };
        let deadline = |seconds| ("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", seconds);
        assert_eq!((patience(&[]), patience(&[deadline("7")])), (180, 180));
        assert_eq!((patience(&[deadline("600")]), patience(&[deadline("0")])), (660, 180));
        assert_eq!(patience(&[deadline("600"), (DEBUG, "bootstrap_seconds=5")]), 5);
    }

    #[test]
    fn every_refusal_names_accepted_values() {
        let error = load(&[
            (DEBUG, "queue_depth=many,signals=chained,channel_rings=3"),
            ("NVSHMEM_LIBFABRIC_YIELD", "sometimes"),
            ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "33"),
            ("NVSHMEM_LIBFABRIC_WARN_SECONDS", "5"),
            ("NVSHMEM_LIBFABRIC_PROVIDER", "ucx"),
        ])
        .expect_err("refused");
        let expected = [
            "NVSHMEM_LIBFABRIC_PROVIDER=\"ucx\" is refused: unknown value. \
             Accepted: auto, efa, cxi, verbs, tcp, tcp;ofi_rxm, shm",
            "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE=\"33\" is refused: too large. Accepted: 1 to 32",
            "NVSHMEM_LIBFABRIC_YIELD=\"sometimes\" is refused: unknown value. Accepted: auto, always, never",
            "NVSHMEM_LIBFABRIC_DEBUG=queue_depth=\"many\" is refused: not a number. \
             Accepted: 1 to 65536; 0: what the provider offers",
            "NVSHMEM_LIBFABRIC_DEBUG=channel_rings=\"3\" is refused: not a power of two. \
             Accepted: 1 to 32; a power of two",
        ];
        assert_eq!(error.to_string(), expected.join("; "));
    }

    #[test]
    fn unknown_or_repeated_keys_are_refused() {
        let [near, far, twice] = &refused_keys("signal=auto,colour=red,words=auto,words=auto")[..]
        else {
            panic!("three are wrong");
        };
        assert!(near.contains("no key \"signal\". Accepted: signals"), "{near}");
        assert!(far.contains("no key \"colour\""), "{far}");
        assert!(keys().all(|key| far.contains(key.name)), "{far}");
        assert!(twice.contains("words is there twice"), "{twice}");
        for missing in ["words", "words=", "=auto", "words=auto,"] {
            let refused = refused_keys(missing);
            assert!(refused.len() == 1 && refused[0].contains("key=value"), "{refused:?}");
        }
        let provider = refused_keys("provider=tcp");
        assert!(provider[0].contains("no key"), "users' settings are no keys: {provider:?}");
    }

    #[test]
    fn non_utf8_value_is_refused() {
        let value = OsStr::from_bytes(b"lo\xff");
        let error = Settings::load([("NVSHMEM_LIBFABRIC_DEVICES", value)]).expect_err("refused");
        assert_eq!(error.refused[0].reason, "not valid UTF-8");
        let key = OsStr::from_bytes(b"words=\xff");
        assert_eq!(Settings::load([(DEBUG, key)]).expect_err("refused").refused.len(), 1);
    }
}
