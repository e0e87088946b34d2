//! `info`: what is there, without a judgement.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;

use crate::output::print_whole;
use nvshmem_transport_libfabric::logging;
use nvshmem_transport_libfabric::settings::{Notice, Refused, Row, Settings, Source};
use serde::Serialize;

use crate::error::ToolError;
use crate::libraries::find;
use crate::libraries::linker::Linker;
use crate::libraries::nvshmem::{Nvshmem, is_served};
use crate::libraries::plugins::{NCCL_FILE, Plugins, file_name};
use crate::options::{InfoOptions, Part, Where};
use crate::probe::{self, Choice, Fabric, Gpus, Rail};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of the source, where `make` has built this from a clone.
const COMMIT: Option<&str> = option_env!("NVSHMEM_LIBFABRIC_COMMIT");

/// Version and commit.
pub(crate) fn build() -> String {
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    commit.map_or_else(|| VERSION.to_owned(), |commit| format!("{VERSION}, commit {commit}"))
}

/// All that is there, or the parts that were asked for.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Info {
    pub(crate) version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plugins: Option<Plugins>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plugins_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nvshmem: Option<Vec<Nvshmem>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wrong_home: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fabric: Option<Fabric>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpus: Option<Gpus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) settings: Option<Vec<SettingRow>>,
    /// Values of settings that are refused, and names that are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) complaints: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct SettingRow {
    pub(crate) name: &'static str,
    /// The value in force; none where the user's is refused.
    pub(crate) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) given: Option<String>,
    pub(crate) default: String,
    pub(crate) source: &'static str,
}

impl Info {
    pub(crate) fn gather(named: &Where, only: &[Part]) -> Result<Self, ToolError> {
        let wanted = |part| only.is_empty() || only.contains(&part);
        let mut info = Self { version: VERSION, commit: COMMIT, ..Self::default() };
        if wanted(Part::Nvshmem) {
            let linker = Linker::of_environment();
            info.nvshmem = Some(find::all(named.nvshmem.as_deref(), &linker)?);
            info.wrong_home = named.nvshmem.is_none().then(find::wrong_home).flatten();
        }
        if wanted(Part::Plugins) {
            match Plugins::find(named.plugin_dir.as_deref()) {
                Ok(plugins) => info.plugins = Some(plugins),
                Err(error) if named.plugin_dir.is_some() => return Err(error),
                Err(error) => info.plugins_error = Some(error.to_string()),
            }
        }
        // What libfabric is asked depends on it.
        let gpus = (wanted(Part::Gpus) || wanted(Part::Fabric)).then(probe::gpus);
        if wanted(Part::Fabric) {
            let has_gpus = gpus.as_ref().is_some_and(|gpus| !gpus.devices.is_empty());
            info.fabric = Some(probe::fabric(has_gpus));
        }
        info.gpus = gpus.filter(|_| wanted(Part::Gpus));
        if wanted(Part::Settings) {
            let (settings, complaints) = settings();
            (info.settings, info.complaints) = (Some(settings), complaints);
        }
        Ok(info)
    }
}

pub(crate) fn accepted() -> (Settings, Vec<Notice>, Vec<Refused>) {
    let error = match Settings::load(env::vars_os()) {
        Ok((settings, notices)) => return (settings, notices, Vec::new()),
        Err(error) => error,
    };
    let is_refused = |name: &OsString| {
        let mut names = error.refused.iter().map(|refused| refused.name.split('='));
        names.any(|mut parts| parts.next().is_some_and(|variable| name == variable))
    };
    let others = env::vars_os().filter(|(name, _)| !is_refused(name));
    let (settings, notices) = Settings::load(others).unwrap_or_default();
    (settings, notices, error.refused)
}

/// That the transport would start with these settings, of which one is given by an option.
pub(crate) fn check_settings(given: Option<&str>) -> Result<(), ToolError> {
    let (_, _, refused) = accepted();
    let refused: Vec<String> = refused
        .iter()
        .filter(|refused| given.is_none_or(|given| given != refused.name))
        .map(ToString::to_string)
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(ToolError::new(refused.join("\n"), "correct it, or unset it"))
}

fn settings() -> (Vec<SettingRow>, Vec<String>) {
    let (settings, notices, refused) = accepted();
    let complaints = refused.iter().map(ToString::to_string);
    let complaints = complaints.chain(notices.into_iter().map(|notice| notice.text)).collect();
    let row = |(row, default): (Row, Row)| {
        let mut of =
            refused.iter().filter(|refused| refused.name.split('=').next() == Some(row.name));
        let given = of.next().map(|refused| refused.given.clone());
        SettingRow {
            name: row.name,
            source: match (&given, row.source) {
                (Some(_), _) => "refused",
                (None, Source::Environment) => "environment",
                (None, Source::Default) => "default",
            },
            value: given.is_none().then_some(row.value),
            given,
            default: default.value,
        }
    };
    let defaults = Settings::default().describe();
    let mut rows: Vec<SettingRow> =
        settings.describe().into_iter().zip(defaults).map(row).collect();
    rows.extend(logging::VARIABLES.iter().map(|variable| {
        let value = env::var(variable.name).ok().filter(|value| !value.trim().is_empty());
        SettingRow {
            name: variable.name,
            source: if value.is_some() { "environment" } else { "default" },
            value: Some(value.unwrap_or_else(|| variable.default.to_owned())),
            given: None,
            default: variable.default.to_owned(),
        }
    }));
    (rows, complaints)
}

/// Prints it. Whether the environment has nothing that is wrong.
pub(crate) fn show(options: &InfoOptions) -> Result<bool, ToolError> {
    let info = Info::gather(&options.r#where, &options.only)?;
    if options.json {
        print_json(&info)?;
    } else {
        print!("{}", Text::of(&info, options.verbose));
    }
    let rows = info.settings.as_deref().unwrap_or_default();
    Ok(info.wrong_home.is_none() && rows.iter().all(|row| row.given.is_none()))
}

pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<(), ToolError> {
    print_whole(format_args!("{}\n", json(value)?));
    Ok(())
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, ToolError> {
    serde_json::to_string_pretty(value)
        .map_err(|error| ToolError::new(format!("JSON: {error}"), "this is a mistake of the tool"))
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn of(info: &Info, all: bool) -> String {
        let mut text = Self::default();
        text.head(&format!("nvshmem-libfabric {}", build()));
        if let Some(plugins) = &info.plugins {
            text.plugins(plugins);
        }
        if let Some(error) = &info.plugins_error {
            text.row("plugin files", error);
        }
        if let Some(found) = &info.nvshmem {
            if found.is_empty() {
                text.head("NVSHMEM: none found");
                text.row("looked in", "NVSHMEM_HOME, LD_LIBRARY_PATH, the packages of python3,");
                text.row("", "the linker's cache, usual directories");
            }
            if let Some(wrong) = &info.wrong_home {
                text.row("warning", wrong);
            }
            found.iter().for_each(|nvshmem| text.nvshmem(nvshmem));
        }
        if let Some(fabric) = &info.fabric {
            text.fabric(fabric);
        }
        if let Some(gpus) = &info.gpus {
            text.gpus(gpus);
        }
        if let Some(settings) = &info.settings {
            text.settings(settings, &info.complaints, all);
        }
        text.0
    }

    fn plugins(&mut self, plugins: &Plugins) {
        self.row("plugin files", plugins.directory.display());
        let files = plugins.files.iter().map(|file| {
            let other = (file.version != VERSION).then(|| format!(" ({})", file.version));
            format!(".so.{}{}", file.number, other.unwrap_or_default())
        });
        let files: Vec<String> = files.collect();
        self.row("", format!("nvshmem_transport_libfabric{}", files.join(" ")));
        if let Some(plugin) = &plugins.nccl {
            let other = (plugin.version != VERSION).then(|| format!(" ({})", plugin.version));
            self.row("", format!("{NCCL_FILE}{}", other.unwrap_or_default()));
        }
        for refused in &plugins.refused {
            self.row("not used", refused);
        }
    }

    fn head(&mut self, line: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn row(&mut self, name: &str, value: impl Display) {
        self.0.push_str(format!("  {name:<14} {}", value).trim_end());
        self.0.push('\n');
    }

    fn nvshmem(&mut self, nvshmem: &Nvshmem) {
        match nvshmem.release {
            Some(release) => self.head(&format!("NVSHMEM {release}")),
            None => self.head("NVSHMEM of unknown release"),
        }
        self.row("library", nvshmem.library.display());
        self.row("found by", nvshmem.found_by.join("; "));
        if !nvshmem.release_said_by.is_empty() {
            self.row("release by", nvshmem.release_said_by.join(", "));
        }
        match (&nvshmem.rpath, &nvshmem.runpath) {
            (_, Some(path)) => {
                self.row("RUNPATH", format!("{path} (heeded after LD_LIBRARY_PATH)"))
            }
            (Some(path), None) => {
                self.row("RPATH", format!("{path} (heeded before LD_LIBRARY_PATH)"))
            }
            (None, None) => self.row("RPATH", "none"),
        }
        match nvshmem.number {
            Some(number) => {
                self.row("asks for", file_name(number));
                self.row("", format!("by {}", nvshmem.number_said_by.join(", ")));
                if !is_served(number) {
                    self.row("", "which this version of the transport does not have");
                }
            }
            None => self.row("asks for", "not known"),
        }
        for conflict in &nvshmem.conflicts {
            self.row("does not fit", conflict);
        }
        match &nvshmem.would_load {
            Some(file) => {
                self.row("would load", file.path.display());
                let whose = match &file.ours {
                    Some(version) => format!("ours, version {version}"),
                    None => String::from(
                        "not ours: `nvshmem-libfabric run -- PROGRAM` puts ours in front",
                    ),
                };
                self.row("", format!("found by {}; {whose}", file.rule));
            }
            None if nvshmem.number.is_some() => {
                self.row("would load", "nothing of that name is found")
            }
            None => {}
        }
    }

    fn fabric(&mut self, fabric: &Fabric) {
        let Some(version) = &fabric.version else {
            self.head("libfabric: none that can be used");
            self.row("", fabric.error.as_deref().unwrap_or_default());
            return;
        };
        self.head(&format!("libfabric {version}"));
        self.row("library", fabric.file.as_deref().unwrap_or(&fabric.asked));
        self.choice("across hosts", &fabric.across_hosts);
        self.choice("on one host", &fabric.one_host);
        for offered in &fabric.offered {
            let (most, count) = (6, offered.domains.len());
            let mut domains = offered.domains[..count.min(most)].join(", ");
            if count > most {
                domains.push_str(&format!(" and {} more", count - most));
            }
            self.row("has", format!("{} {}: {domains}", offered.provider, offered.version));
        }
    }

    fn choice(&mut self, name: &str, choice: &Choice) {
        let rails: Vec<String> = choice.rails.iter().map(Rail::to_string).collect();
        match &choice.provider {
            Some(provider) => self.row(name, format!("{provider} on {}", rails.join(", "))),
            None => self.row(name, format!("nothing for `{}`; `doctor` says why", choice.asked)),
        }
    }

    fn gpus(&mut self, gpus: &Gpus) {
        self.head(&match gpus.devices.len() {
            0 => String::from("GPUs: none"),
            count => format!("GPUs: {count}"),
        });
        if let Some(driver) = &gpus.driver {
            self.row("driver", driver);
        }
        if let Some(error) = &gpus.error {
            self.row("", error);
        }
        for (at, gpu) in gpus.devices.iter().enumerate() {
            self.row(
                &at.to_string(),
                format!("{}, {}, compute {}", gpu.name, gpu.pci, gpu.compute),
            );
        }
    }

    fn settings(&mut self, settings: &[SettingRow], complaints: &[String], all: bool) {
        self.head("Settings (docs/settings.md says what they do)");
        for row in settings.iter().filter(|row| all || row.source != "default") {
            let (value, note) = match (&row.given, &row.value, row.source) {
                (Some(given), ..) => (given, format!("refused; default {}", row.default)),
                (None, Some(value), "environment") => {
                    (value, format!("environment; default {}", row.default))
                }
                (None, _, source) => (&row.default, source.to_owned()),
            };
            self.0.push_str(&format!("  {:<44} {value}  ({note})\n", row.name));
        }
        let defaults = settings.iter().filter(|row| row.source == "default").count();
        if !all && defaults > 0 {
            self.0.push_str(&format!("  {defaults} are at their defaults: -v lists them\n"));
        }
        for complaint in complaints {
            self.0.push_str(&format!("  {complaint}\n"));
        }
    }
}
