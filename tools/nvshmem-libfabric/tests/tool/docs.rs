//! Documentation that is run: the commands of its pages, in a scratch place; and the catalogue of
//! errors, against the sources.
//!
//! NVSHMEM, launchers and `make` are stand-ins there, and outside of the full tier the jobs of
//! `selftest`, `perf` and `qualify` are not run, only their options read. A block whose first line
//! begins with `# Not run in the tests` is only parsed, by the shell and by the tool's own options.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use test_support::full;
use test_support::{built, needs};

use crate::bed::{MadeUp, Scratch, TOOL, expect, plugins, trial};

const PAGES: [(&str, usize); 11] = [
    ("README.md", 3),
    ("docs/tool.md", 6),
    ("docs/tuning.md", 1),
    ("docs/environments/efa.md", 1),
    ("docs/environments/slingshot.md", 1),
    ("docs/environments/roce-infiniband.md", 1),
    ("docs/environments/ethernet.md", 2),
    ("docs/environments/one-gpu.md", 1),
    ("docs/environments/containers.md", 1),
    ("docs/environments/slurm.md", 1),
    ("docs/environments/kubernetes.md", 1),
];

const FIRST: usize = 3;

const NOT_RUN: &str = "# Not run in the tests";

const WRAPPER: &str = r#"
tool=OPT/bin/nvshmem-libfabric
case "FULL $*" in
# Their own suites run them: here the options are read.
"no perf"* | "no selftest"* | "no qualify"*) exec $tool "$@" --help >/dev/null ;;
*'--memory gpu'*) export LD_LIBRARY_PATH=CUDA ;;
esac
if [ "$1" = doctor ]; then
    # Whether all is well depends on the machine.
    $tool "$@" || [ $? = 1 ]
    exit
fi
exec $tool "$@"
"#;

pub(crate) fn trials() -> Vec<Trial> {
    // Who names cases finds all of them.
    let named = Arguments::from_args().filter.is_some();
    let pages = if named || full() { &PAGES[..] } else { &PAGES[..FIRST] };
    let mut trials: Vec<Trial> = pages
        .iter()
        .map(|(page, least)| {
            let name =
                format!("docs::commands_of_{}", page.trim_end_matches(".md").replace('/', "_"));
            Trial::test(name, move || run_page(page, *least))
        })
        .collect();
    trials.push(trial("docs::every_page_of_environments_is_run", every_page));
    trials.push(trial("docs::errors_are_those_of_the_sources", errors));
    trials
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn blocks(page: &str) -> Result<Vec<String>, Failed> {
    let text = fs::read_to_string(root().join(page))?;
    let blocks = text.split("\n```sh\n").skip(1);
    Ok(blocks.filter_map(|rest| Some(rest.split("\n```").next()?.to_owned())).collect())
}

/// A place with a home, our files, and stand-ins for NVSHMEM, launchers and `make`.
fn place() -> Result<Scratch, Failed> {
    let scratch = Scratch::new();
    let home = scratch.at("home");
    fs::create_dir_all(scratch.at("opt/lib"))?;
    fs::create_dir_all(scratch.at("opt/bin"))?;
    fs::create_dir_all(scratch.at("tmp"))?;
    for entry in fs::read_dir(plugins())? {
        let entry = entry?;
        // Debug information is in a directory of its own.
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), scratch.at("opt/lib").join(entry.file_name()))?;
        }
    }
    fs::copy(TOOL, scratch.at("opt/bin/nvshmem-libfabric"))?;
    let nvshmem = MadeUp::new(&scratch, "home/nvshmem", "3.7.2", 6);
    nvshmem.program(&home.join("program"));
    scratch.write("home/train.py", "");
    scratch.write("home/nvshmem.log.libfabric", "a line\n");
    let (opt, cuda) = (scratch.at("opt"), built::fake_cuda_dir());
    let full = needs::is_set("NVSHMEM_TEST_FULL");
    scratch.script(
        "bin/nvshmem-libfabric",
        &WRAPPER
            .replace("CUDA", &cuda.display().to_string())
            .replace("OPT", &opt.display().to_string())
            .replace("FULL", if full { "yes" } else { "no" }),
    );
    for launcher in ["torchrun", "srun", "mpirun", "python3"] {
        scratch.script(&format!("bin/{launcher}"), "exit 0");
    }
    // Of a target that is none it says so.
    scratch.script(
            "bin/make",
            &format!(
                "if [ \"$1\" = install ]; then\n\
                 cp -r {}/. \"${{2#PREFIX=}}\" && exec cp \"$(command -v nvshmem-libfabric)\" \"${{2#PREFIX=}}/bin\"\n\
                 fi\n\
                 exec /usr/bin/make --dry-run --directory {} \"$@\" >/dev/null",
                opt.display(),
                root().display()
            ),
        );
    Ok(scratch)
}

fn shell(scratch: &Scratch, options: &[&str], script: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["900", "bash"]).args(options).args(["-c", script]).stdin(Stdio::null());
    let home = scratch.at("home");
    let bin = scratch.at("bin");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", bin.display());
    command.env_clear().env("PATH", path).env("HOME", &home).current_dir(&home);
    command.env("NVSHMEM_HOME", home.join("nvshmem")).env("TMPDIR", scratch.at("tmp"));
    command
}

fn run_page(page: &str, least: usize) -> Result<(), Failed> {
    let place = place()?;
    let mut run = 0;
    for block in blocks(page)? {
        let is_run = !block.starts_with(NOT_RUN);
        let options: &[&str] = if is_run { &["-euo", "pipefail"] } else { &["-n"] };
        let output = shell(&place, options, &block).output()?;
        let said = || {
            let (out, err) = (&output.stdout, &output.stderr);
            let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
            format!("{page}, {}:\n{block}\n---\n{out}{err}", output.status)
        };
        expect(output.status.success(), said)?;
        let reason = block.lines().next().and_then(|line| line.strip_prefix(NOT_RUN));
        expect(is_run || reason.is_some_and(|reason| reason.len() > 5), || {
            format!("{page} does not say why it is not run:\n{block}")
        })?;
        run += usize::from(is_run);
    }
    expect(run >= least, || format!("{page}: {run} blocks were run, and not {least}"))
}

fn every_page() -> Result<(), Failed> {
    let index = fs::read_to_string(root().join("docs/environments/README.md"))?;
    for entry in fs::read_dir(root().join("docs/environments"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let page = format!("docs/environments/{name}");
        let is_known = PAGES.iter().any(|(known, _)| *known == page);
        let is_listed = index.contains(&format!("({name})"));
        expect(name == "README.md" || (is_known && is_listed), || page.clone())?;
    }
    Ok(())
}

const WITH_ERRORS: [&str; 8] = [
    "crates/libfabric-sys/src/library.rs",
    "src/settings/error.rs",
    "crates/ofi/src/error.rs",
    "src/job/error.rs",
    "crates/engine/src/error.rs",
    "crates/engine/src/wire/handshake.rs",
    "src/channel/error.rs",
    "src/bootstrap/error.rs",
];

fn errors() -> Result<(), Failed> {
    let page = fs::read_to_string(root().join("docs/errors.md"))?;
    let keys: Vec<String> = page.lines().filter_map(key).collect();
    expect(keys.len() > 50, || format!("{} texts", keys.len()))?;
    let unique: BTreeSet<&String> = keys.iter().collect();
    expect(unique.len() == keys.len(), || String::from("a text is there twice"))?;
    let mut texts = BTreeSet::new();
    let mut open =
        ["src", "crates", "tools/nvshmem-libfabric/src"].map(|at| root().join(at)).to_vec();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.extend(strings(&fs::read_to_string(&path)?));
        }
    }
    for key in &keys {
        expect(texts.contains(key), || format!("no source has {key:?}"))?;
    }
    let mut all = 0;
    for file in WITH_ERRORS {
        let source = fs::read_to_string(root().join(file))?;
        for attribute in source.split("#[error(").skip(1) {
            let Some(text) = strings(attribute).into_iter().next() else { continue };
            // Others' errors alone are no texts, nor is `transparent`.
            if attribute.trim_start().starts_with('"') && text.contains(char::is_alphabetic) {
                expect(keys.contains(&text), || {
                    format!("{file}: {text:?} is not in docs/errors.md")
                })?;
                all += 1;
            }
        }
    }
    expect(all > 40, || format!("{all} errors"))
}

fn key(row: &str) -> Option<String> {
    let cell = row.strip_prefix("| ")?;
    let text = match cell.strip_prefix("`` ") {
        Some(quoted) => quoted.split(" `` |").next()?,
        None => cell.strip_prefix('`')?.split("` |").next()?,
    };
    Some(plain(text))
}

fn strings(source: &str) -> Vec<String> {
    // A text that goes on in the next line is one.
    let mut parts = source.split("\\\n");
    let mut joined = String::from(parts.next().unwrap_or_default());
    parts.for_each(|part| joined.push_str(part.trim_start()));
    let joined = joined.replace("'\"'", "' '");
    let mut found = Vec::new();
    let mut text: Option<String> = None;
    let mut letters = joined.chars();
    while let Some(letter) = letters.next() {
        match (letter, &mut text) {
            ('"', Some(_)) => found.extend(text.take().map(|text| plain(&text))),
            ('"', None) => text = Some(String::new()),
            ('\\', Some(text)) => text.extend(letters.next()),
            (letter, Some(text)) => text.push(letter),
            (_, None) => {}
        }
    }
    found
}

fn plain(text: &str) -> String {
    let mut pieces = text.split('{');
    let mut plain = String::from(pieces.next().unwrap_or_default());
    for piece in pieces {
        plain.push('…');
        plain.push_str(piece.split_once('}').map_or("", |(_, behind)| behind));
    }
    plain.trim().to_owned()
}
