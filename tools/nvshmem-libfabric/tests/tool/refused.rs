//! Commands that cannot be done: each is refused with its status, the reason and a hint, and
//! changes nothing; and output that nobody reads to its end, or that cannot be written.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::bed::{
    Case, MadeUp, Scratch, TOOL, executable, file_name, good, plugins, refuses, text, tool, tree,
};

/// The status and the command, in which a word in capitals is a path; and what is said.
const COMMANDS: [(i32, &str, &str); 35] = [
    (2, "tell", "unrecognized subcommand"),
    (2, "info --colour", "--colour"),
    (2, "info --nvshmem TEXT", "is no NVSHMEM"),
    (2, "info --nvshmem TOOL", "its name inside is"),
    (2, "info --nvshmem MISSING", "No such file"),
    (2, "info --nvshmem EMPTY", "has no libnvshmem_host.so*"),
    (2, "info --plugin-dir EMPTY", "has no plugin file"),
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

pub(crate) fn commands() -> Case {
    let scratch = Scratch::new();
    MadeUp::new(&scratch, "NVSHMEM", "3.8.0", 7);
    scratch.write("TEXT", "no library");
    executable(&scratch.join("GARBAGE"), "#!/nonexistent/interpreter\n");
    // Files that are not what their names say, and not all of them.
    for (directory, is, called) in [("FEW", 3, 3), ("WRONG", 3, 7), ("SPA CED", 7, 7)] {
        fs::create_dir(scratch.join(directory))?;
        let file = scratch.join(directory).join(file_name(called));
        fs::copy(plugins().join(file_name(is)), file)?;
    }
    fs::create_dir(scratch.join("EMPTY"))?;
    let before = tree(&scratch);
    for (status, line, texts) in COMMANDS {
        let mut command = tool("");
        for word in line.split(' ') {
            match word {
                "TOOL" => command.arg(TOOL),
                "PLUGINS" => command.arg(plugins()),
                "SPACED" => command.arg(scratch.join("SPA CED")),
                "EMPTY" | "FEW" | "GARBAGE" | "MISSING" | "NVSHMEM" | "TEXT" | "WRONG" => {
                    command.arg(scratch.join(word))
                }
                word => command.arg(word),
            };
        }
        refuses(&mut command, status, &[texts])?;
        assert!(tree(&scratch) == before, "{line} has changed something");
    }
    Ok(())
}

/// One mistake is one error, before anything runs.
pub(crate) fn environment() -> Case {
    let scratch = Scratch::new();
    let library = ("NVSHMEM_LIBFABRIC_LIBRARY", "/nonexistent", "cannot load libfabric");
    let device = ("NVSHMEM_LIBFABRIC_DEVICES", "mlx5_77", "is no device of");
    let tmp = ("TMPDIR", "/nonexistent", "/nonexistent (TMPDIR)");
    // As where libfabric has no other.
    let only = ("FI_PROVIDER", "shm", "tcp cannot be used here: ");
    let misspelt = ("NVSHMEM_LIBFABRIC_PROVIDER", "verbz", "(did you mean verbs?)");
    let none = ("ANOTHER", "", "a similar value exists: 'verbs'");
    let hidden = ("CUDA_VISIBLE_DEVICES", "", "shows no GPU here");
    let qualify = format!("qualify --out {}", scratch.join("out.txt").display());
    for (line, (name, value, says)) in [
        ("selftest", library),
        ("selftest", misspelt),
        ("selftest --provider tcp", only),
        ("selftest --provider verbz", none),
        ("selftest --provider shm --json", tmp),
        ("selftest --provider shm --memory gpu", hidden),
        ("perf", device),
        ("perf", misspelt),
        ("perf --provider tcp", only),
        ("perf --provider shm --memory gpu", hidden),
        (&qualify, library),
        (&qualify, misspelt),
        (&format!("{qualify} --provider tcp"), only),
    ] {
        let mut command = tool(&format!("{line} --plugin-dir PLUGINS"));
        let said = refuses(command.env(name, value), 2, &[says])?;
        let errors = said.matches("nvshmem-libfabric: ").count();
        assert!(errors <= 1 && !said.contains("FAILED") && !said.contains("returned"), "{said}");
        let times = if line.contains("--json") { 2 } else { 1 };
        assert_eq!(said.matches(says).count(), times, "{line}: {says} in\n{said}");
    }
    // What an option gives is not asked of the environment.
    let mut command = tool("selftest --provider shm --plugin-dir PLUGINS");
    good(command.env("NVSHMEM_LIBFABRIC_PROVIDER", "verbz")).map(drop)
}

/// Commands that print; NEW is a prefix to install in, OLD one where everything is installed.
const PRINTING: [&str; 13] = [
    "info --plugin-dir PLUGINS",
    "info --json --plugin-dir PLUGINS",
    "doctor --plugin-dir PLUGINS",
    "doctor --json --plugin-dir PLUGINS",
    "selftest --provider shm --plugin-dir PLUGINS",
    "qualify --dry-run --plugin-dir PLUGINS",
    "perf --json --milliseconds 1 --max 8 --provider shm --plugin-dir PLUGINS",
    "--help",
    "--version",
    "run --help",
    "run --dry-run --any-nvshmem true",
    "install --prefix NEW --plugin-dir PLUGINS",
    "uninstall --prefix OLD",
];

fn unprinted(run: impl Fn(usize, &mut Command, &str) -> Case) -> Case {
    let scratch = Scratch::new();
    let [old, new] = ["old", "new"].map(|name| scratch.join(name).display().to_string());
    good(&mut tool(&format!("install --prefix {old} --plugin-dir PLUGINS")))?;
    let line = |line: &str| line.replace("OLD", &old).replace("NEW", &new);
    let mut lines = PRINTING.iter().enumerate();
    lines.try_for_each(|(at, words)| run(at, &mut tool(&line(words)), words))
}

/// A reader that has gone is no panic, and a status that tells.
pub(crate) fn closed_output() -> Case {
    unprinted(|at, command, line| {
        let (ours, theirs) = UnixStream::pair()?;
        drop(ours);
        let theirs = OwnedFd::from(theirs);
        command.stdout(Stdio::from(theirs.try_clone()?));
        // Of every other one the errors have no reader either.
        command.stderr(if at % 2 == 1 { Stdio::from(theirs) } else { Stdio::piped() });
        let output = command.spawn()?.wait_with_output()?;
        // What figures are worth is told before they are.
        let quiet = text(&output).lines().all(|line| line.starts_with("warning: "));
        assert!(output.status.code() == Some(2) && quiet, "{line}: {output:?}");
        Ok(())
    })
}

pub(crate) fn full_disk() -> Case {
    unprinted(|_, command, line| {
        command.stdout(File::create("/dev/full")?).stderr(Stdio::piped());
        let output = command.spawn()?.wait_with_output()?;
        let said = text(&output);
        let last = said.lines().last().unwrap_or_default();
        let told = "standard output cannot be written: No space left on device";
        assert!(output.status.code() == Some(2) && last.starts_with(told), "{line}: {output:?}");
        Ok(())
    })
}
