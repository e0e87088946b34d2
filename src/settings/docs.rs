//! Keeps `docs/settings.md` equal to the settings table.

use std::fmt::Write as _;
use std::path::Path;

use super::table::{DEBUG, DEBUG_ACCEPTS, DEBUG_DOC, For, PREFIX, Settings, TABLE, WITHOUT_EFFECT};
use crate::logging;

const HEAD: &str = "\
# Settings

<!-- Made from src/settings/table.rs and src/logging/config.rs. Do not edit by hand: run
     UPDATE_DOCS=1 cargo test --lib settings::docs -->

Settings are environment variables, read once when NVSHMEM starts the transport. Words as values may be
in upper or lower case; an empty value counts as unset. If a value is refused, the transport does not
start, and the error lists every refused value with what is accepted. Unknown variables that begin
with `NVSHMEM_LIBFABRIC_`, and those of earlier versions, are ignored with a warning.
`nvshmem-libfabric info --only settings` shows the values in force.

## For users
";

const NVIDIA: &str = "
## NVIDIA's names

";

const KEYS: &str = "
## Debug keys

They may change with any version. An unknown or repeated key is refused.
";

const LOGGING: &str = "
## Logging

NVSHMEM's own variables, with the same meaning for this transport.
";

fn table(first: &str) -> String {
    format!("\n| {first} | accepts | default | |\n|---|---|---|---|\n")
}

fn row(page: &mut String, name: &str, accepts: &str, default: &str, doc: &str) {
    writeln!(page, "| `{name}` | {accepts} | {default} | {doc} |")
        .expect("a string takes all text");
}

fn rows(page: &mut String, who: For) {
    let defaults = Settings::default();
    for setting in TABLE.iter().filter(|setting| setting.who == who) {
        let default = format!("`{}`", (setting.show)(&defaults));
        row(page, setting.name, &(setting.accepts)(), &default, setting.doc);
    }
}

fn render() -> String {
    let mut page = String::from(HEAD) + &table("variable");
    rows(&mut page, For::Users);
    row(&mut page, DEBUG, DEBUG_ACCEPTS, "`none`", DEBUG_DOC);
    page.push_str(KEYS);
    page.push_str(&table("key"));
    rows(&mut page, For::Debug);
    page.push_str(NVIDIA);
    for name in WITHOUT_EFFECT {
        writeln!(page, "- `{name}`: accepted without effect.").expect("a string takes all text");
    }
    page.push_str(LOGGING);
    page.push_str(&table("variable"));
    for variable in logging::VARIABLES {
        row(&mut page, variable.name, variable.accepts, variable.default, variable.doc);
    }
    page
}

#[test]
fn settings_page_matches_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    let page = render();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("docs/settings.md is written");
    }
    let written = std::fs::read_to_string(&path).expect("docs/settings.md is read");
    assert!(
        written == page,
        "docs/settings.md is out of date: UPDATE_DOCS=1 cargo test --lib settings::docs"
    );
}

#[test]
fn user_settings_are_few_and_described() {
    let is_ours = |name: &str| name.starts_with(PREFIX) || name == "NVSHMEM_DISABLE_GDRCOPY";
    let users = TABLE.iter().filter(|setting| setting.who == For::Users);
    assert!(users.count() <= 24, "with {DEBUG}, at most 24");
    for setting in TABLE {
        let is_key = setting.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert_eq!(is_key, setting.who == For::Debug, "{}", setting.name);
        assert!(is_key || is_ours(setting.name), "{}", setting.name);
        assert!(setting.doc.ends_with('.'), "{}: whole sentences", setting.name);
        let cells = (setting.accepts)() + setting.doc;
        assert!(!cells.contains('|'), "{}: a cell of a table", setting.name);
    }
}
