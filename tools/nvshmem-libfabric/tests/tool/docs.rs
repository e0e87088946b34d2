//! Documentation that is run: the commands of its pages, in a scratch place; and the catalogue of
//! errors, against the sources.
//!
//! NVSHMEM, launchers and `make` are stand-ins there, and outside of the full tier the jobs of
//! `selftest`, `perf` and `qualify` are not run, only their options read. A block whose first line
//! begins with `# Not run in the tests` is only parsed, by the shell and by the tool's own options.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};
use test_support::{built, full};

use crate::bed::{Case, MadeUp, Scratch, TOOL, plugins, root, script, text};

/// Pages, and how many blocks of each are run at least.
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

const NOT_RUN: &str = "# Not run in the tests";

const WRAPPER: &str = r#"
tool=OPT/bin/nvshmem-libfabric
case "FULL $*" in
# Their own suites run them: here the options are read.
"false perf"* | "false selftest"* | "false qualify"*) exec $tool "$@" --help >/dev/null ;;
*'--memory gpu'*) export LD_LIBRARY_PATH=CUDA ;;
esac
if [ "$1" = doctor ]; then
    # Whether all is well depends on the machine.
    $tool "$@" || [ $? = 1 ]
    exit
fi
exec $tool "$@"
"#;

/// A stand-in for make, which fails for a target that does not exist.
const MAKE: &str = r#"
if [ "$1" = install ]; then
    cp -r OPT/. "${2#PREFIX=}" && exec cp "$(command -v nvshmem-libfabric)" "${2#PREFIX=}/bin"
fi
exec /usr/bin/make --dry-run --directory ROOT "$@" >/dev/null
"#;

pub(crate) fn pages() -> impl Iterator<Item = Trial> {
    // Who names cases finds all of them.
    let all = Arguments::from_args().filter.is_some() || full();
    let pages = if all { &PAGES[..] } else { &PAGES[..3] };
    pages.iter().map(|(page, least)| {
        let name = page.trim_end_matches(".md").replace('/', "_");
        Trial::test(format!("docs::{name}"), move || run_page(page, *least))
    })
}

/// A place with a home, our files, and stand-ins for NVSHMEM, launchers and `make`.
fn place() -> Result<Scratch, Failed> {
    let scratch = Scratch::new();
    scratch.write("home/train.py", "");
    scratch.write("home/nvshmem.log.libfabric", "a line\n");
    for directory in ["opt/lib", "opt/bin", "tmp"] {
        fs::create_dir_all(scratch.join(directory))?;
    }
    for file in fs::read_dir(plugins())? {
        let file = file?;
        // Debug information is in a directory of its own.
        if file.file_type()?.is_file() {
            fs::copy(file.path(), scratch.join("opt/lib").join(file.file_name()))?;
        }
    }
    fs::copy(TOOL, scratch.join("opt/bin/nvshmem-libfabric"))?;
    MadeUp::new(&scratch, "home/nvshmem", "3.7.2", 6).program(&scratch.join("home/program"));
    let (opt, root) = (scratch.join("opt").display().to_string(), root().display().to_string());
    let cuda = built::fake_cuda_dir().display().to_string();
    let wrapper = WRAPPER.replace("CUDA", &cuda).replace("FULL", &full().to_string());
    script(&scratch.join("bin/nvshmem-libfabric"), &wrapper.replace("OPT", &opt));
    script(&scratch.join("bin/make"), &MAKE.replace("OPT", &opt).replace("ROOT", &root));
    for launcher in ["torchrun", "srun", "mpirun", "python3"] {
        script(&scratch.join("bin").join(launcher), "exit 0");
    }
    Ok(scratch)
}

fn run_page(page: &str, least: usize) -> Case {
    let place = place()?;
    let (home, bin) = (place.join("home"), place.join("bin"));
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", bin.display());
    let page_text = fs::read_to_string(root().join(page))?;
    let mut run = 0;
    for block in page_text.split("\n```sh\n").skip(1) {
        let block = block.split("\n```").next().unwrap_or_default();
        let why_not = block.lines().next().and_then(|line| line.strip_prefix(NOT_RUN));
        assert!(why_not.is_none_or(|why| why.len() > 5), "{page} does not say why not:\n{block}");
        let options = if why_not.is_some() { "-n" } else { "-euo pipefail" };
        let mut command = Command::new("timeout");
        command.args(["900", "bash"]).args(options.split(' ')).args(["-c", block]);
        command.env_clear().env("PATH", &path).env("HOME", &home).current_dir(&home);
        command.env("NVSHMEM_HOME", home.join("nvshmem")).env("TMPDIR", place.join("tmp"));
        let output = command.stdin(std::process::Stdio::null()).output()?;
        let status = output.status;
        assert!(status.success(), "{page}, {status}:\n{block}\n---\n{}", text(&output));
        run += usize::from(why_not.is_none());
    }
    assert!(run >= least, "{page}: {run} blocks were run, and not {least}");
    Ok(())
}

/// Every page of an environment is listed, and run.
pub(crate) fn environments() -> Case {
    let index = fs::read_to_string(root().join("docs/environments/README.md"))?;
    for entry in fs::read_dir(root().join("docs/environments"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let page = format!("docs/environments/{name}");
        let is_run = PAGES.iter().any(|(known, _)| *known == page);
        let is_listed = index.contains(&format!("({name})"));
        assert!(name == "README.md" || (is_run && is_listed), "{page}");
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

/// The catalogue has each text once, the sources have it, and it has every text of some sources.
pub(crate) fn errors() -> Case {
    let page = fs::read_to_string(root().join("docs/errors.md"))?;
    let keys: Vec<String> = page.lines().filter_map(key).collect();
    let unique: BTreeSet<&String> = keys.iter().collect();
    assert!(keys.len() > 50 && unique.len() == keys.len(), "{} texts, or one twice", keys.len());
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
        assert!(texts.contains(key), "no source has {key:?}");
    }
    let mut all = 0;
    for file in WITH_ERRORS {
        let source = fs::read_to_string(root().join(file))?;
        let attributes = source.split("#[error(").skip(1).map(str::trim_start);
        // Others' errors alone are no texts, nor is `transparent`.
        for attribute in attributes.filter(|attribute| attribute.starts_with('"')) {
            let text = strings(attribute).swap_remove(0);
            let is_known = keys.contains(&text) || !text.contains(char::is_alphabetic);
            assert!(is_known, "{file}: {text:?} is not in docs/errors.md");
            all += 1;
        }
    }
    assert!(all > 40, "{all} errors");
    Ok(())
}

fn key(row: &str) -> Option<String> {
    let cell = row.strip_prefix("| ")?;
    let quoted = |quote: &str, end: &str| cell.strip_prefix(quote)?.split(end).next();
    quoted("`` ", " `` |").or_else(|| quoted("`", "` |")).map(plain)
}

/// The texts of a source, of which one that goes on in the next line is one.
fn strings(source: &str) -> Vec<String> {
    let mut lines = source.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    let joined = lines.fold(first, |text, line| text + line.trim_start());
    let escaped = joined.replace("'\"'", "' '").replace("\\\\", "\u{1}").replace("\\\"", "\u{2}");
    let texts = escaped.split('"').skip(1).step_by(2);
    texts.map(|text| plain(&text.replace('\u{1}', "\\").replace('\u{2}', "\""))).collect()
}

/// Returns a text with … in place of what is put into it.
fn plain(text: &str) -> String {
    let mut pieces = text.split('{');
    let first = pieces.next().unwrap_or_default().to_owned();
    let behind = pieces.map(|piece| piece.split_once('}').map_or("", |(_, behind)| behind));
    behind.fold(first, |text, behind| text + "…" + behind).trim().to_owned()
}
