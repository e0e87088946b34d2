//! `run`: the right file in front of NVSHMEM's own, in any command line; and the program is itself.

use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};

use crate::bed::{
    MadeUp, RELEASES, Scratch, bad, expect, file_name, good, of_wheels, plugins, tool, tree, trial,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = of_wheels("run::wheel", wheel);
    trials.extend([
        trial("run::our_file_is_loaded_for_every_release", every_release),
        trial("run::the_program_needs_no_dashes_in_front", no_dashes),
        trial("run::lines_of_launchers", launchers),
        trial("run::lines_of_python", python),
        trial("run::a_dry_run_is_a_script_that_does_it", dry_run),
        trial("run::a_dry_run_prints_whatever_is_missing", missing),
        trial("run::what_will_hang_is_told", hangs),
        trial("run::nccl_is_given_its_file", nccl),
        trial("run::the_environment_of_the_user_stays", environment),
        trial("run::status_and_signals_are_the_programs", status),
    ]);
    trials
}

fn run(options: &[&str], line: &[&str]) -> Command {
    let mut command = tool(&["run", "--plugin-dir"]);
    command.arg(plugins()).args(options).arg("--").args(line);
    command
}

fn ours(number: u32) -> String {
    format!("loaded {}\n", plugins().join(file_name(number)).display())
}

fn wheel(made: &MadeUp) -> Result<(), Failed> {
    let path = made.prefix.display().to_string();
    let said = good(&mut run(&["--nvshmem", &path, "--dry-run"], &["true"]))?;
    let preload = format!("export LD_PRELOAD={}", plugins().join(file_name(made.number)).display());
    expect(said.contains(&preload), || said.clone())
}

fn no_dashes() -> Result<(), Failed> {
    let mut command = tool(&["run", "--any-nvshmem", "--provider", "tcp", "--plugin-dir"]);
    command.arg(plugins()).args(["echo", "-e", "--provider", "shm", "--", "--help"]);
    let said = good(&mut command)?;
    expect(said == "--provider shm -- --help\n", || said.clone())?;
    let mut misspelt = tool(&["run", "--any-nvshmem", "--providr", "tcp", "echo"]);
    let said = bad(&mut misspelt, 125)?;
    expect(said.contains("--providr"), || said.clone())
}

fn every_release() -> Result<(), Failed> {
    for (release, number) in RELEASES {
        let scratch = Scratch::new();
        let made = MadeUp::new(&scratch, "nvshmem", release, number);
        let path = scratch.at("program");
        made.program(&path);
        let program = path.display().to_string();
        // By itself it loads what is beside NVSHMEM, whatever LD_LIBRARY_PATH says.
        let alone = good(Command::new(&path).env("LD_LIBRARY_PATH", plugins()))?;
        let its = format!("loaded {}\n", made.transport().display());
        expect(alone.starts_with(&its), || format!("{release}: {alone}"))?;
        let said = good(&mut run(&[], &[&program]))?;
        expect(said.starts_with(&ours(number)), || format!("{release}: {said}"))?;
        expect(said.contains("transport libfabric, CUDA's own as it was"), || said.clone())?;
        let said = good(&mut run(&["--any-nvshmem"], &[&program]))?;
        expect(said.starts_with(&ours(number)), || format!("{release}, any: {said}"))?;
    }
    Ok(())
}

fn launchers() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.6.5", 5);
    let path = scratch.at("program");
    made.program(&path);
    let program = path.display().to_string();
    let mut found = std::env::join_paths([&scratch.at("bin")])?;
    found.push(":/usr/bin:/bin");
    for (launcher, skips, line) in [
        ("mpirun", 4, vec!["mpirun", "-n", "2", "-H", "a,b", &program, "3"]),
        ("srun", 2, vec!["srun", "--mpi=pmix", "-N2", &program, "3"]),
        ("wrapper", 1, vec!["wrapper", "mpirun", "-n", "2", "-H", "a,b", &program, "3"]),
    ] {
        scratch.script(&format!("bin/{launcher}"), &format!("shift {skips}; exec \"$@\""));
        if launcher == "wrapper" {
            scratch.script("bin/wrapper", "exec \"$@\"");
        }
        let output = run(&[], &line).env("PATH", &found).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        expect(said.starts_with(&ours(5)), || format!("{line:?}: {output:?}"))?;
        expect(output.status.code() == Some(3), || format!("{line:?}: {}", output.status))?;
    }
    // Behind a launcher, in front of the program, it is as good.
    let line = ["-c", "exec \"$@\"", "sh", crate::bed::TOOL, "run", "--plugin-dir"];
    let mut command = Command::new("/bin/sh");
    command.args(line).arg(plugins()).args(["--", &program]).env("PATH", &found);
    let said = good(&mut command)?;
    expect(said.starts_with(&ours(5)), || said.clone())
}

fn python() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "site/nvidia/nvshmem", "3.4.5", 3);
    let other = MadeUp::new(&scratch, "other", "3.8.0", 7);
    let path = scratch.at("program");
    made.program(&path);
    // A Python that says where its packages are, and runs what is behind the script.
    let site = scratch.at("site").display().to_string();
    let program = path.display().to_string();
    let python = format!("[ \"$1\" = -c ] && echo {site} && exit\nexec {program}");
    scratch.script("bin/python3", &python);
    scratch.script("bin/python3.12", &python);
    scratch.write("train.py", "");
    let train = scratch.at("train.py").display().to_string();
    let interpreter = scratch.at("bin/python3.12").display().to_string();
    scratch.executable("bin/torchrun", &format!("#!{interpreter}\n"));
    scratch.executable("bin/accelerate", "#!/usr/bin/env python3\n");
    scratch.script("bin/srun", "shift; exec \"$@\"");
    let mut found = std::env::join_paths([&scratch.at("bin")])?;
    found.push(":/usr/bin:/bin");
    for line in [
        vec!["python3", &train],
        vec![&interpreter, "-u", &train],
        vec!["torchrun", "--nproc-per-node", "2", &train],
        vec!["accelerate", "launch", &train],
        vec!["srun", "-n2", "python3", &train],
        vec!["env", "A=b", "torchrun", &train],
    ] {
        let mut command = run(&[], &line);
        // The packages of its Python come before what the machine has.
        command.env("PATH", &found).env("NVSHMEM_HOME", &other.prefix);
        let said = good(&mut command)?;
        expect(said.starts_with(&ours(3)), || format!("{line:?}: {said}"))?;
    }
    // Where the line shows nothing, there is a file for each, and that is told.
    let mut command = run(&["--dry-run"], &["sh", "job.sh"]);
    let said = good(command.env("PATH", &found).env("NVSHMEM_HOME", &other.prefix))?;
    let all = said.contains(&file_name(3)) && said.contains(&file_name(7));
    expect(said.contains("does not show which") && all, || said.clone())
}

fn dry_run() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.7.2", 6);
    let path = scratch.at("a program");
    made.program(&path);
    let program = path.display().to_string();
    let before = tree(scratch.path());
    let line = [program.as_str(), "0", "it's"];
    let options = ["--dry-run", "--provider", "tcp;ofi_rxm"];
    let script = good(&mut run(&options, &line))?;
    for part in [
        "# NVSHMEM 3.7.2 (",
        "is linked to it, by DT_R",
        "NVSHMEM_LIBFABRIC_PROVIDER='tcp;ofi_rxm'",
        "exec '",
    ] {
        expect(script.contains(part), || format!("{part} is not in\n{script}"))?;
    }
    let said = good(Command::new("/bin/sh").args(["-c", &script]))?;
    expect(said.starts_with(&ours(6)), || said.clone())?;
    expect(tree(scratch.path()) == before, || String::from("nothing is changed"))?;
    // As on a machine without it.
    let mut command = run(&["--dry-run", "--provider", "tcp"], &line);
    let said = good(command.env("FI_PROVIDER", "shm"))?;
    expect(said.contains("# tcp cannot be used here: "), || said.clone())
}

fn missing() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.7.2", 6);
    let path = made.prefix.display().to_string();
    let dry = |options: &[&str]| {
        let mut command = tool(&["run", "--dry-run", "--provider", "tcp"]);
        command.env("PATH", scratch.at("nowhere")).env("NVSHMEM_HOME", "/nonexistent");
        command.args(options).args(["./no-such-program", "1"]);
        good(&mut command)
    };
    let files = plugins().display().to_string();
    let few = scratch.at("few");
    std::fs::create_dir(&few)?;
    std::fs::copy(plugins().join(file_name(3)), few.join(file_name(3)))?;
    let few = few.display().to_string();
    let set = [
        "export NVSHMEM_REMOTE_TRANSPORT=libfabric\n",
        "export NVSHMEM_LIBFABRIC_PROVIDER=tcp\n",
        "exec ./no-such-program 1\n",
        "# MISSING, and so without --dry-run status 127: there is no program ./no-such-program\n",
    ];
    let preload = format!("export LD_PRELOAD={}", plugins().join(file_name(6)).display());
    for (options, more) in [
        (&["--nvshmem", &path, "--plugin-dir", &files][..], &[preload.as_str()][..]),
        (
            &["--nvshmem", &path][..],
            &["125: there is no plugin file beside", "LD_PRELOAD would have the file"][..],
        ),
        (
            &["--nvshmem", &path, "--plugin-dir", &few][..],
            &["has no nvshmem_transport_libfabric.so.6", "LD_PRELOAD would have the file"][..],
        ),
        (
            &["--nvshmem", "/nonexistent", "--plugin-dir", &files][..],
            &["125: /nonexistent is no NVSHMEM", "export LD_PRELOAD=", "with --any-nvshmem"][..],
        ),
    ] {
        let said = dry(options)?;
        for part in set.iter().chain(more) {
            expect(said.contains(part), || format!("{options:?}: {part} is not in\n{said}"))?;
        }
    }
    // Nothing at all is found only on a machine without any.
    let said = dry(&["--plugin-dir", &files])?;
    let none = said.contains("125: no NVSHMEM is found for ./no-such-program 1; NVSHMEM_HOME=");
    let some = said.contains("the first of this machine (");
    expect(none || some, || said.clone())?;
    expect(said.contains("NVSHMEM_HOME=/nonexistent is no directory"), || said.clone())
}

fn hangs() -> Result<(), Failed> {
    let warned = |variables: &[(&str, &str)]| {
        let output = run(&["--any-nvshmem"], &["true"]).envs(variables.iter().copied()).output()?;
        expect(output.status.success(), || format!("{output:?}"))?;
        Ok::<_, Failed>(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let few = ("CUDA_DEVICE_MAX_CONNECTIONS", "1");
    let said = warned(&[few])?;
    expect(said.is_empty(), || format!("copies have a context of their own: {said}"))?;
    let program = ("NVSHMEM_LIBFABRIC_STAGING_CONTEXT", "program");
    let said = warned(&[few, program, ("CUDA_MODULE_LOADING", "EAGER")])?;
    expect(said.contains("stands still while") && said.contains("unset it"), || said.clone())
}

fn nccl() -> Result<(), Failed> {
    let file = plugins().join("libnccl-rma-nvshmem-libfabric.so").display().to_string();
    let print = "echo $NCCL_RMA_PLUGIN $NCCL_GIN_TYPE $LD_PRELOAD \
                 $NVSHMEM_LIBFABRIC_PROVIDER";
    let options = ["--nccl", "--provider", "shm"];
    let said = good(&mut run(&options, &["sh", "-c", print]))?;
    expect(said == format!("{file} 2 shm\n"), || said.clone())?;
    let said = bad(&mut run(&["--nccl", "--any-nvshmem"], &["true"]), 125)?;
    expect(said.contains("--any-nvshmem"), || said.clone())
}

fn environment() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let made = MadeUp::new(&scratch, "nvshmem", "3.8.0", 7);
    let path = made.prefix.display().to_string();
    let theirs = scratch.at("libtheirs.so").display().to_string();
    let mut command = run(&["--dry-run", "--nvshmem", &path], &["true"]);
    command.env("LD_PRELOAD", &theirs).env("NVSHMEM_REMOTE_TRANSPORT", "ibrc");
    let said = good(&mut command)?;
    let preload = plugins().join(file_name(7)).display().to_string();
    expect(said.contains(&format!("LD_PRELOAD={preload}:{theirs}\n")), || said.clone())?;
    // What has to be first stays first.
    let sanitizer = "/usr/lib/libasan.so.8";
    let said = good(command.env("LD_PRELOAD", format!("{theirs}:{sanitizer}")))?;
    let whole = format!("LD_PRELOAD={sanitizer}:{preload}:{theirs}\n");
    expect(said.contains(&whole), || said.clone())?;
    expect(said.contains("export NVSHMEM_REMOTE_TRANSPORT=libfabric"), || said.clone())?;
    expect(said.contains("NVSHMEM would use `ibrc`"), || said.clone())?;
    expect(!said.contains("CUDA_"), || said.clone())?;
    let open_mpi = good(&mut run(&["--dry-run", "--nvshmem", &path], &["/bin/true"]))?;
    expect(!open_mpi.contains("Open MPI"), || open_mpi.clone())
}

fn status() -> Result<(), Failed> {
    let any = |line: &[&str]| run(&["--any-nvshmem"], line);
    for status in [0, 1, 42, 125] {
        let ended = any(&["sh", "-c", &format!("exit {status}")]).status()?;
        expect(ended.code() == Some(status), || format!("{status}: {ended}"))?;
    }
    // It becomes the program, so that who sends it signals reaches that.
    let mut child = any(&["sh", "-c", "echo $$; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let out = child.stdout.take().ok_or("a pipe")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
    expect(line.trim() == child.id().to_string(), || format!("{line} is not {}", child.id()))?;
    let sent = Command::new("kill").args(["-TERM", line.trim()]).status()?;
    let ended = child.wait()?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&ended);
    expect(sent.success() && signal == Some(15), || format!("{ended}"))
}
