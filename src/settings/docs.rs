//! Keeps `docs/settings.md` equal to the settings table.
//!
//! After a change to the table, `UPDATE_DOCS=1 cargo test --lib settings::docs` writes the page.

use std::fmt::Write as _;
use std::path::Path;

use super::Settings;
use super::table::{PREFIX, TABLE, WITHOUT_EFFECT};
use crate::logging;

const HEAD: &str = "\
# Settings

<!-- Made from src/settings/table.rs and src/logging/config.rs. Do not edit by hand: run
     UPDATE_DOCS=1 cargo test --lib settings::docs -->

Every setting is an environment variable, read once when NVSHMEM starts the transport. Names of
values may be in upper or lower case. An empty value counts as not set. A value that is not
accepted stops the transport with a message; several are all reported. An unknown variable that
begins with `NVSHMEM_LIBFABRIC_` is reported and ignored.
";

fn entry(page: &mut String, name: &str, accepts: &str, default: &str, doc: &str) {
    let written = write!(
        page,
        "\n### `{name}`\n\n{}\n\n- Accepts: {}\n- Default: {default}\n",
        wrap(doc, ""),
        wrap(accepts, "  "),
    );
    written.expect("a string takes all text");
}

/// Breaks lines before column 100, with `indent` before each but the first.
fn wrap(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    // The first line of an entry follows "- Accepts: ".
    let mut column = if indent.is_empty() { 0 } else { "- Accepts: ".len() };
    for word in text.split(' ') {
        if column > indent.len() && column + 1 + word.len() > 99 {
            lines.push('\n');
            lines.push_str(indent);
            column = indent.len();
        } else if !lines.is_empty() {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += word.len();
    }
    lines
}

fn render() -> String {
    let defaults = Settings::default();
    let mut page = String::from(HEAD);
    page.push_str("\n## The transport\n");
    for setting in TABLE {
        let default = format!("`{}`", (setting.show)(&defaults));
        entry(&mut page, setting.name, &(setting.accepts)(), &default, setting.doc);
    }
    page.push_str(
        "\n## Logging\n\nNVSHMEM's own variables, with the same meaning for this transport.\n",
    );
    for variable in logging::VARIABLES {
        entry(&mut page, variable.name, variable.accepts, variable.default, variable.doc);
    }
    page.push_str(
        "\n## Accepted without effect\n\nNVIDIA's own libfabric transport has these. They steer \
         machinery that this one does not have;\nsetting them is harmless and noted in the log at \
         level INFO.\n\n",
    );
    for name in WITHOUT_EFFECT {
        writeln!(page, "- `{name}`").expect("a string takes all text");
    }
    page
}

#[test]
fn the_page_is_made_from_the_table() {
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
    for setting in TABLE {
        // NVIDIA's own names have a shorter one.
        let ours = setting.name.starts_with(PREFIX) || setting.name == "NVSHMEM_DISABLE_GDRCOPY";
        assert!(ours, "{}", setting.name);
        assert!(written.contains(&format!("### `{}`\n", setting.name)), "{}", setting.name);
        assert!(setting.doc.ends_with('.'), "{}: whole sentences", setting.name);
    }
}
