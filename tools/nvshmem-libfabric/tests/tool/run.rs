//! `run`: the right file in front of NVSHMEM's own, in any command line; and the program is itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use test_support::needs;

use crate::bed::{
    self, Case, MadeUp, RELEASES, Scratch, executable, file_name, good, plugin, plugins, program,
    refuses, root, says, script, signal, tool, tree,
};
use crate::info;

/// A trial of each NVSHMEM that `scripts/nvshmem-wheels.sh` fetches.
pub(crate) fn wheels() -> impl Iterator<Item = Trial> {
    const LIST: &str = include_str!("../../../../scripts/nvshmem-wheels.txt");
    let listed = LIST.lines().filter_map(|line| line.split(' ').next());
    listed.filter_map(|listed| RELEASES.iter().find(|(release, _)| *release == listed)).map(
        |&(release, number)| {
            let found = fs::canonicalize(root().join(".deps/nvshmem").join(release));
            let lacks = "is not in .deps/nvshmem: scripts/nvshmem-wheels.sh fetches it";
            let found = found.map_err(|_| format!("NVSHMEM {release} {lacks}"));
            needs::trial(format!("run::wheel_{release}"), found, move |prefix| {
                info::wheel(&MadeUp { prefix, number }, release)
            })
        },
    )
}

fn run(options: &str, line: &[&str]) -> Command {
    let mut command = tool(&format!("run --plugin-dir PLUGINS {options} --"));
    command.args(line);
    command
}

fn loaded(number: u32) -> String {
    format!("loaded {}\n", plugin(number))
}

fn path(bin: &Path) -> String {
    format!("{}:/usr/bin:/bin", bin.display())
}

/// The words in capitals are programs and scripts that the case makes; behind each line is the
/// number of the plugin file that is loaded, and the status.
const LINES: [(&str, u32, i32); 13] = [
    ("PROGRAM 3", 5, 3),
    ("mpirun -n 2 -H a,b PROGRAM 3", 5, 3),
    ("srun --mpi=pmix -N2 PROGRAM 3", 5, 3),
    ("wrapper mpirun -n 2 -H a,b PROGRAM 3", 5, 3),
    ("python3 TRAIN", 3, 0),
    ("PYTHON -u TRAIN", 3, 0),
    ("CONDA TRAIN", 5, 0),
    ("uv run python3 TRAIN", 5, 0),
    ("torchrun --nproc-per-node 2 TRAIN", 3, 0),
    ("accelerate launch TRAIN", 3, 0),
    ("srun -n2 -x python3 TRAIN", 3, 0),
    ("env A=b torchrun TRAIN", 3, 0),
    // Behind a launcher, in front of the program, it is as good.
    ("wrapper TOOL run --plugin-dir PLUGINS -- PROGRAM 3", 5, 3),
];

pub(crate) fn command_lines() -> Case {
    let scratch = Scratch::new();
    for (release, number) in RELEASES {
        let made = MadeUp::new(&scratch, release, release, number);
        let path = scratch.join(format!("program-{release}"));
        made.program(&path);
        // By itself it loads what is beside NVSHMEM, whatever LD_LIBRARY_PATH says.
        let alone = good(program(&path).env("LD_LIBRARY_PATH", plugins()))?;
        let its = format!("loaded {}\n", made.transport().display());
        assert!(alone.starts_with(&its), "{release}: {alone}");
        let path = path.display().to_string();
        for options in ["", "--any-nvshmem"] {
            let said = good(&mut run(options, &[&path]))?;
            assert!(said.starts_with(&loaded(number)), "{release} {options}: {said}");
            assert!(said.contains("transport libfabric, CUDA's own as it was"), "{said}");
        }
    }
    // A Python that says where its packages are, and runs what is behind the script.
    let packaged = MadeUp::new(&scratch, "site/nvidia/nvshmem", "3.4.5", 3);
    packaged.program(&scratch.join("packaged"));
    let at = |name: &str| scratch.join(name).display().to_string();
    let (site, packaged) = (at("site"), at("packaged"));
    let python = format!("[ \"$1\" = -c ] && echo {site} && exit\nexec {packaged}");
    script(&scratch.join("bin/python3"), &python);
    script(&scratch.join("bin/python3.12"), &python);
    let conda = MadeUp::new(&scratch, "conda", "3.6.5", 5);
    conda.program(&scratch.join("of-conda"));
    let its = format!("[ \"$1\" = -c ] && echo {} && exit\nexec {}", at("conda"), at("of-conda"));
    script(&scratch.join("conda/bin/python3"), &its);
    let its_own = format!("shift 2; exec {} \"$@\"", at("conda/bin/python3"));
    script(&scratch.join("bin/uv"), &its_own);
    executable(&scratch.join("bin/torchrun"), &format!("#!{}\n", at("bin/python3.12")));
    executable(&scratch.join("bin/accelerate"), "#!/usr/bin/env python3\n");
    script(&scratch.join("bin/mpirun"), "shift 4; exec \"$@\"");
    script(&scratch.join("bin/srun"), "shift 2; exec \"$@\"");
    script(&scratch.join("bin/wrapper"), "exec \"$@\"");
    scratch.write("train.py", "");
    for (line, number, status) in LINES {
        let word = |word: &str| match word {
            "PROGRAM" => at("program-3.6.5"),
            "TRAIN" => at("train.py"),
            "PYTHON" => at("bin/python3.12"),
            "CONDA" => at("conda/bin/python3"),
            "TOOL" => bed::TOOL.to_owned(),
            "PLUGINS" => plugins().display().to_string(),
            word => word.to_owned(),
        };
        let words: Vec<String> = line.split(' ').map(word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = run("", &words);
        // What the line leads to comes before what the machine has.
        command.env("PATH", path(&scratch.join("bin"))).env("NVSHMEM_HOME", at("3.8.0"));
        says(&mut command, status, &[&loaded(number)])?;
    }
    // Where the line shows nothing, there is a file for each, and that is told.
    let mut command = run("--dry-run", &["sh", "job.sh"]);
    command.env("PATH", path(&scratch.join("bin"))).env("NVSHMEM_HOME", at("3.8.0"));
    says(&mut command, 0, &["does not show which", &file_name(3), &file_name(7)])?;
    let newer = MadeUp::new(&scratch, "newer", "3.999.0", 99);
    let mut command = run("", &["true"]);
    command.env("PATH", path(&scratch.join("bin"))).env("NVSHMEM_HOME", newer.prefix);
    says(&mut command, 0, &["does not show which", &format!("has no {}", file_name(99))]).map(drop)
}

/// The program needs no dashes in front, and its options are its own.
pub(crate) fn own_options() -> Case {
    let line =
        "run --any-nvshmem --provider tcp --plugin-dir PLUGINS echo -e --provider shm -- --help";
    assert_eq!(good(&mut tool(line))?, "--provider shm -- --help\n");
    refuses(&mut tool("run --any-nvshmem --providr tcp echo"), 125, &["--providr"]).map(drop)
}

/// A dry run prints a script that does it.
pub(crate) fn dry_run() -> Case {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.7.2", 6);
    let program = scratch.join("a program").display().to_string();
    made.program(Path::new(&program));
    let before = tree(&scratch);
    let line = [program.as_str(), "0", "it's"];
    let mut command = run("--dry-run --provider tcp;ofi_rxm", &line);
    let script = good(&mut command)?;
    let provider = "NVSHMEM_LIBFABRIC_PROVIDER='tcp;ofi_rxm'";
    for part in ["# NVSHMEM 3.7.2 (", "is linked to it, by DT_R", provider, "exec '"] {
        assert!(script.contains(part), "{part} is not in\n{script}");
    }
    let said = good(Command::new("/bin/sh").args(["-c", &script]))?;
    assert!(said.starts_with(&loaded(6)) && tree(&scratch) == before, "{said}");
    let mut command = run("--dry-run --provider tcp", &line);
    says(command.env("FI_PROVIDER", "shm"), 0, &["# tcp cannot be used here: "]).map(drop)
}

/// A dry run prints whatever is missing, and the rest.
pub(crate) fn missing() -> Case {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.7.2", 6);
    let (path, few) = (made.prefix.display(), scratch.join("few"));
    fs::create_dir(&few)?;
    fs::copy(plugins().join(file_name(3)), few.join(file_name(3)))?;
    let preload = format!("export LD_PRELOAD={}", plugin(6));
    let no_file = "LD_PRELOAD would have the file";
    for (options, texts) in [
        (format!("--nvshmem {path} --plugin-dir PLUGINS"), vec![preload.as_str()]),
        (format!("--nvshmem {path}"), vec!["125: there is no plugin file beside", no_file]),
        (
            format!("--nvshmem {path} --plugin-dir {}", few.display()),
            vec!["has no nvshmem_transport_libfabric.so.6", no_file],
        ),
        (
            String::from("--nvshmem /nonexistent --plugin-dir PLUGINS"),
            vec!["125: /nonexistent is no NVSHMEM", "export LD_PRELOAD=", "with --any-nvshmem"],
        ),
        (String::from("--plugin-dir PLUGINS"), vec!["NVSHMEM_HOME=/nonexistent is no directory"]),
    ] {
        let line = format!("run --dry-run --provider tcp {options} ./no-such-program 1");
        let mut command = tool(&line);
        command.env("PATH", scratch.join("nowhere")).env("NVSHMEM_HOME", "/nonexistent");
        let set = [
            "export NVSHMEM_REMOTE_TRANSPORT=libfabric\n",
            "export NVSHMEM_LIBFABRIC_PROVIDER=tcp\n",
            "exec ./no-such-program 1\n",
            "# MISSING, and so without --dry-run status 127: there is no program ./no-such-program\n",
        ];
        says(&mut command, 0, &[&set[..], &texts].concat())?;
    }
    Ok(())
}

/// Settings under which the program will hang are told.
pub(crate) fn hangs() -> Case {
    let few = |command: &mut Command| {
        let output = command.env("CUDA_DEVICE_MAX_CONNECTIONS", "1").output()?;
        assert!(output.status.success(), "{output:?}");
        Ok::<_, libtest_mimic::Failed>(bed::text(&output))
    };
    let said = few(&mut run("--any-nvshmem", &["true"]))?;
    assert!(said.is_empty(), "copies have a context of their own: {said}");
    let mut command = run("--any-nvshmem", &["true"]);
    let said = few(command.env("NVSHMEM_LIBFABRIC_STAGING_CONTEXT", "mine"))?;
    assert!(said.contains("CONTEXT=\"mine\" is refused"), "{said}");
    command.env("NVSHMEM_LIBFABRIC_STAGING_CONTEXT", "program");
    let said = few(command.env("CUDA_MODULE_LOADING", "EAGER"))?;
    assert!(said.contains("stands still while") && said.contains("unset it"), "{said}");
    Ok(())
}

pub(crate) fn nccl() -> Case {
    let file = plugins().join("libnccl-rma-nvshmem-libfabric.so");
    let print = "echo $NCCL_RMA_PLUGIN $NCCL_GIN_TYPE $LD_PRELOAD $NVSHMEM_LIBFABRIC_PROVIDER";
    let said = good(&mut run("--nccl --provider shm", &["sh", "-c", print]))?;
    assert_eq!(said, format!("{} 2 shm\n", file.display()));
    let mut command = run("--nccl --dry-run", &["true"]);
    command.env("NCCL_GIN_TYPE", "5").env("NCCL_NET_PLUGIN", "ofi").env("NCCL_CROSS_NIC", "0");
    let said = good(&mut command)?;
    for expected in ["in place of `5`\nexport NCCL_GIN_TYPE=2", "=ofi is kept", "finds no GIN"] {
        assert!(said.contains(expected), "{said}");
    }
    refuses(&mut run("--nccl --any-nvshmem", &["true"]), 125, &["--any-nvshmem"]).map(drop)
}

/// Variables of the user stay in the environment.
pub(crate) fn environment() -> Case {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.8.0", 7);
    let theirs = "/theirs/libtheirs.so";
    let options = format!("--dry-run --nvshmem {}", made.prefix.display());
    let mut command = run(&options, &["/bin/true"]);
    command.env("NVSHMEM_REMOTE_TRANSPORT", "ibrc").env("LD_PRELOAD", theirs);
    let preload = format!("LD_PRELOAD={}:{theirs}\n", plugin(7));
    let transport = "export NVSHMEM_REMOTE_TRANSPORT=libfabric";
    let texts = [preload.as_str(), transport, "in place of `ibrc`"];
    let said = says(&mut command, 0, &texts)?;
    assert!(!said.contains("CUDA_") && !said.contains("Open MPI"), "{said}");
    // What has to be first stays first.
    let sanitizer = "/usr/lib/libasan.so.8";
    let preload = format!("LD_PRELOAD={sanitizer}:{}:{theirs}\n", plugin(7));
    says(command.env("LD_PRELOAD", format!("{theirs}:{sanitizer}")), 0, &[&preload]).map(drop)
}

pub(crate) fn status() -> Case {
    let any = |line: &str| run("--any-nvshmem", &["sh", "-c", line]);
    for status in [0, 1, 42, 125] {
        says(&mut any(&format!("exit {status}")), status, &[])?;
    }
    // It becomes the program, so that who sends it signals reaches that.
    let mut command = any("echo $$; exec cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("a pipe")?).read_line(&mut line)?;
    assert_eq!(line.trim(), child.id().to_string());
    signal(child.id(), "-TERM")?;
    let ended = child.wait()?;
    assert_eq!(ended.signal(), Some(15), "{ended}");
    Ok(())
}
