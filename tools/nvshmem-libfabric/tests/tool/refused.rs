//! Commands that cannot be done: each is refused with its status, the reason and a hint, and
//! changes nothing.

use std::fs;

use libtest_mimic::{Failed, Trial};

use crate::bed::{MadeUp, Scratch, TOOL, bad, expect, file_name, plugins, tool, tree, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("refused::commands", commands),
        trial("refused::environment", environment),
        trial("refused::old_names", old_names),
    ]
}

/// The status and the command, in which a word in capitals is a path; and what is said.
const COMMANDS: [(i32, &str, &str); 38] = [
    (2, "tell", "unrecognized subcommand"),
    (2, "info --colour", "--colour"),
    (2, "info --only colours", "colours"),
    (2, "info --nvshmem TEXT", "is no NVSHMEM"),
    (2, "info --nvshmem TOOL", "its name inside is"),
    (2, "info --nvshmem MISSING", "No such file"),
    (2, "info --nvshmem EMPTY", "has no libnvshmem_host.so*"),
    (2, "info --plugin-dir EMPTY", "has no plugin file"),
    (2, "doctor --colour", "--colour"),
    (2, "doctor --colour --json", "--colour"),
    (2, "doctor --json --nvshmem MISSING", "is no NVSHMEM"),
    (2, "doctor --plugin-dir EMPTY", "has no plugin file"),
    (2, "install", "--help"),
    (2, "uninstall", "--help"),
    (2, "install --prefix MISSING --plugin-dir TEXT", "has no plugin file"),
    (2, "install --prefix MISSING --plugin-dir WRONG", "its name inside is"),
    (2, "install --prefix MISSING --plugin-dir FEW", "has no nvshmem_transport"),
    (2, "install --prefix NVSHMEM --plugin-dir PLUGINS", "not of this project"),
    (2, "install --prefix TEXT --plugin-dir PLUGINS", "Not a directory"),
    (2, "uninstall --prefix NVSHMEM", "nothing was installed"),
    (2, "selftest --provider shm --plugin-dir EMPTY", "has no plugin file"),
    (2, "selftest --provider shm --plugin-dir FEW", "has no nvshmem_transport"),
    (2, "selftest --pes 1", "2..=64"),
    (2, "selftest --provider ucx", "ucx"),
    (2, "perf --max 1", "8..="),
    (2, "perf --plugin-dir EMPTY", "has no plugin file"),
    (2, "qualify --plugin-dir PLUGINS --only direct,teleport", "teleport"),
    (2, "qualify --plugin-dir PLUGINS --nvshmem MISSING", "is no NVSHMEM"),
    (2, "qualify --plugin-dir PLUGINS --provider shm --out TEXT", "is there already"),
    (2, "qualify --plugin-dir PLUGINS --hosts a,b,c", "more than two"),
    (125, "run", "--help"),
    (127, "run --any-nvshmem --plugin-dir PLUGINS no-such-program", "there is no program"),
    (126, "run --any-nvshmem --plugin-dir PLUGINS TEXT", "is no program that can be started"),
    (126, "run --any-nvshmem --plugin-dir PLUGINS GARBAGE", "cannot be started"),
    (125, "run --any-nvshmem --plugin-dir SPACED true", "has a space or a colon"),
    (125, "run --any-nvshmem --plugin-dir PLUGINS --libfabric MISSING true", "is no libfabric"),
    (125, "run --nvshmem TEXT --plugin-dir PLUGINS true", "is no NVSHMEM"),
    (125, "run --any-nvshmem --nvshmem TEXT true", "cannot be used with"),
];

fn commands() -> Result<(), Failed> {
    let scratch = Scratch::new();
    MadeUp::new(&scratch, "NVSHMEM", "3.8.0", 7);
    scratch.write("TEXT", "no library");
    scratch.executable("GARBAGE", "#!/nonexistent/interpreter\n");
    // Files that are not what their names say, and not all of them.
    for (directory, is, called) in [("FEW", 3, 3), ("WRONG", 3, 7), ("SPA CED", 7, 7)] {
        fs::create_dir(scratch.at(directory))?;
        let file = scratch.at(directory).join(file_name(called));
        fs::copy(plugins().join(file_name(is)), file)?;
    }
    fs::create_dir(scratch.at("EMPTY"))?;
    let before = tree(scratch.path());
    let path = |word: &str| match word {
        "TOOL" => String::from(TOOL),
        "PLUGINS" => plugins().display().to_string(),
        "SPACED" => scratch.at("SPA CED").display().to_string(),
        "EMPTY" | "FEW" | "GARBAGE" | "MISSING" | "NVSHMEM" | "TEXT" | "WRONG" => {
            scratch.at(word).display().to_string()
        }
        word => word.to_owned(),
    };
    for (status, line, says) in COMMANDS {
        let words: Vec<String> = line.split(' ').map(path).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = bad(&mut tool(&words), status)?;
        expect(said.contains(says), || format!("{line}: no {says:?} in\n{said}"))?;
        expect(tree(scratch.path()) == before, || format!("{line} has changed something"))?;
    }
    Ok(())
}

fn environment() -> Result<(), Failed> {
    let library = ("NVSHMEM_LIBFABRIC_LIBRARY", "/nonexistent", "cannot load libfabric");
    let place = ("TMPDIR", "/nonexistent", "/nonexistent (TMPDIR)");
    let device = ("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77", "mlx5_77");
    for (line, (name, value, says)) in [
        ("selftest", library),
        ("selftest --provider shm --json", place),
        ("qualify", library),
        ("perf", device),
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--plugin-dir"]).collect();
        let said = bad(tool(&words).arg(plugins()).env(name, value), 2)?;
        expect(said.contains(says), || format!("{line}: no {says:?} in\n{said}"))?;
    }
    Ok(())
}

/// One line says what is used in their place.
fn old_names() -> Result<(), Failed> {
    for (status, line, instead) in [
        (2, "top --once", "NVSHMEM_LIBFABRIC_COUNTERS="),
        (2, "trace show pe-0.trace", "NVSHMEM_DEBUG=TRACE"),
        (2, "report --out -", "`qualify`"),
        (2, "install --nvshmem /opt/nvshmem", "nvshmem-libfabric run -- PROGRAM"),
        (125, "run --record pe-%p.trace -- true", "NVSHMEM_DEBUG=TRACE"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = tool(&words).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = said.lines().count() == 1 && said.contains("gone") && said.contains(instead);
        expect(told && output.status.code() == Some(status), || format!("{line}: {output:?}"))?;
    }
    Ok(())
}
