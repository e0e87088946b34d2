//! `info`: what is there, without a judgement.

use std::env;
use std::ffi::OsString;

use nvshmem_transport_libfabric::logging;
use nvshmem_transport_libfabric::settings::{Notice, Refused, Row, Settings, Source};
use serde::Serialize;

use crate::error::ToolError;
use crate::libraries::find;
use crate::libraries::linker::Linker;
use crate::libraries::nvshmem::Nvshmem;
use crate::libraries::plugins::Plugins;
use crate::options::{InfoOptions, Part, Where};
use crate::probe::{self, Fabric, Gpus};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of the source, where `make` has built this from a clone.
const COMMIT: Option<&str> = option_env!("NVSHMEM_LIBFABRIC_COMMIT");

pub(crate) fn build() -> String {
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    commit.map_or_else(|| VERSION.to_owned(), |commit| format!("{VERSION}, commit {commit}"))
}

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

/// Checks that the transport would start with these settings, but for one that an option gives.
pub(crate) fn check_settings(given: Option<&str>) -> Result<(), ToolError> {
    let (_, _, mut refused) = accepted();
    refused.retain(|refused| given.is_none_or(|given| given != refused.name));
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    match refused.is_empty() {
        true => Ok(()),
        false => Err(ToolError::new(refused.join("\n"), "correct it, or unset it")),
    }
}

fn settings() -> (Vec<SettingRow>, Vec<String>) {
    let (settings, notices, refused) = accepted();
    let complaints = refused.iter().map(ToString::to_string);
    let complaints = complaints.chain(notices.into_iter().map(|notice| notice.text)).collect();
    let row = |(row, default): (Row, Row)| {
        let is_of = |refused: &&Refused| refused.name.split('=').next() == Some(row.name);
        let given = refused.iter().find(is_of).map(|refused| refused.given.clone());
        let source = match (&given, row.source) {
            (Some(_), _) => "refused",
            (None, Source::Environment) => "environment",
            (None, Source::Default) => "default",
        };
        let value = given.is_none().then_some(row.value);
        SettingRow { name: row.name, value, given, default: default.value, source }
    };
    let of_logging = |variable: &logging::Variable| {
        let value = env::var(variable.name).ok().filter(|value| !value.trim().is_empty());
        let (name, default) = (variable.name, variable.default.to_owned());
        let source = if value.is_some() { "environment" } else { "default" };
        let value = value.or(Some(default.clone()));
        SettingRow { name, value, given: None, default, source }
    };
    let rows = settings.describe().into_iter().zip(Settings::default().describe()).map(row);
    (rows.chain(logging::VARIABLES.iter().map(of_logging)).collect(), complaints)
}

/// Prints it. Returns whether nothing in the environment is wrong.
pub(crate) fn show(options: &InfoOptions) -> Result<bool, ToolError> {
    let mut info = Info::gather(&options.r#where, &options.only)?;
    let rows = info.settings.as_deref().unwrap_or_default();
    let is_right = info.wrong_home.is_none() && rows.iter().all(|row| row.given.is_none());
    if options.json {
        print_json(&info)?;
        return Ok(is_right);
    }
    if !options.verbose {
        if let Some(fabric) = &mut info.fabric {
            (fabric.providers, fabric.environment) = (Vec::new(), Vec::new());
        }
        if let Some(settings) = &mut info.settings {
            settings.retain(|row| row.source != "default");
        }
    }
    print!("{}", indented(&json(&info)?));
    Ok(is_right)
}

pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<(), ToolError> {
    println!("{}", json(value)?);
    Ok(())
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, ToolError> {
    serde_json::to_string_pretty(value)
        .map_err(|error| ToolError::new(format!("JSON: {error}"), "this is a mistake of the tool"))
}

/// Returns a value as indented lines, made of its JSON: one for each field, without brackets and
/// quotes.
fn indented(json: &str) -> String {
    let string = |text: &str| serde_json::from_str::<String>(text).ok();
    let (mut text, mut dash) = (String::new(), "");
    for line in json.lines().filter_map(|line| line.strip_prefix("  ")) {
        let field = line.trim_start();
        let indent = &line[..line.len() - field.len()];
        let field = match field.trim_end_matches(',') {
            "}" | "]" => continue,
            "{" => {
                dash = "- ";
                continue;
            }
            field => field,
        };
        let (name, value) = match field.trim_start_matches('"').split_once("\": ") {
            Some((name, value)) if string(field).is_none() => (format!("{name}: "), value),
            _ => (String::from("- "), field),
        };
        let value = match value {
            "{" | "[" => String::new(),
            "null" | "[]" => String::from("none"),
            value => string(value).unwrap_or_else(|| value.to_owned()),
        };
        let line = format!("{}{dash}{name}{value}", &indent[dash.len()..]);
        text.push_str(line.trim_end());
        text.push('\n');
        dash = "";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_becomes_indented_lines() {
        let value = serde_json::json!({ "a": [{ "b": "c: d", "e": null }, { "b": 2 }], "f": [], "g": ["h\": i"] });
        let text = json(&value).expect("JSON");
        assert_eq!(
            indented(&text),
            "a:\n  - b: c: d\n    e: none\n  - b: 2\nf: none\ng:\n  - h\": i\n"
        );
    }
}
