//! The command with scripts in place of NVSHMEM programs: what it starts, what it passes on, what
//! it believes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use launcher::PrivateDir;

/// A directory with an NVSHMEM and a transport that have nothing but names, and scripts.
struct Bed(PrivateDir);

/// A PE that finds its peer over the id's file, leaves counters, and says that all is well.
const GOOD: &str = r#"
case $NVSHMEM_RUN_RANK in
0) [ -e "$NVSHMEM_RUN_UID_FILE" ] && exit 9
   echo id >"$NVSHMEM_RUN_UID_FILE.tmp"; mv "$NVSHMEM_RUN_UID_FILE.tmp" "$NVSHMEM_RUN_UID_FILE" ;;
*) until [ -e "$NVSHMEM_RUN_UID_FILE" ]; do sleep 0.01; done ;;
esac
counters "$NVSHMEM_RUN_RANK" 5
echo "1024 thread 2.5"
echo "RESULT $(basename "$0") pe $NVSHMEM_RUN_RANK ok"
"#;

const HEAD: &str = r#"#!/bin/sh
counters() {
    peer=$(($1 == 0))
    file=$(echo "$NVSHMEM_LIBFABRIC_COUNTERS" | sed "s/%p/$1/")
    echo "{\"pe\": $1, \"lanes\": [{\"rails\": [{\"bytes\": 100}], \"peers\":
        [{\"pe\": $peer, \"writes\": $2, \"reads\": 0, \"sent\": 0, \"received\": 0}]}]}" >"$file"
}
"#;

impl Bed {
    fn new() -> Self {
        let bed = Self(PrivateDir::new("nvshmem-gpu-run-test").unwrap());
        for directory in ["nvshmem/include/non_abi", "nvshmem/lib", "plugins", "programs", "bin"] {
            fs::create_dir_all(bed.0.path().join(directory)).unwrap();
        }
        let version = |which: &str, n: u32| format!("#define NVSHMEM_VENDOR_{which}_VERSION {n}\n");
        let header = [version("MAJOR", 3), version("MINOR", 4), version("PATCH", 5)].concat();
        bed.file("nvshmem/include/non_abi/nvshmem_version.h", &header);
        bed.file("nvshmem/lib/nvshmem_transport_ibrc.so.3", "");
        bed.file("plugins/nvshmem_transport_libfabric.so.3", "");
        bed
    }

    fn file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(path);
        fs::write(&path, text).unwrap();
        path
    }

    fn script(&self, name: &str, text: &str) -> &Self {
        self.executable(&format!("programs/{name}"), &format!("{HEAD}{text}"))
    }

    /// A command that is found before the machine's own.
    fn command(&self, name: &str, text: &str) -> &Self {
        self.executable(&format!("bin/{name}"), &format!("#!/bin/sh\nunset LD_PRELOAD\n{text}"))
    }

    fn executable(&self, path: &str, text: &str) -> &Self {
        let path = self.file(path, text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn path(&self, path: &str) -> String {
        self.0.path().join(path).display().to_string()
    }

    /// With an NCCL that has nothing but a name.
    fn run_nccl(&self, more: &[&str]) -> Output {
        fs::create_dir_all(self.0.path().join("nccl/include")).unwrap();
        let version = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 30\n#define NCCL_PATCH 7\n";
        self.file("nccl/include/nccl.h", version);
        self.file("plugins/libnccl-rma-nvshmem-libfabric.so", "");
        Command::new(env!("CARGO_BIN_EXE_nvshmem-gpu-run"))
            .args(["--nccl", &self.path("nccl"), "--plugin-dir", &self.path("plugins")])
            .args(["--programs", &self.path("programs"), "--mps", "off"])
            .args(more)
            .output()
            .unwrap()
    }

    fn run(&self, kind: &str, more: &[&str]) -> Output {
        self.run_with_mps("off", kind, more)
    }

    fn run_with_mps(&self, mps: &str, kind: &str, more: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new(env!("CARGO_BIN_EXE_nvshmem-gpu-run"))
            .args(["--nvshmem", &self.path("nvshmem"), "--plugin-dir", &self.path("plugins")])
            .args([kind, &self.path("programs"), "--mps", mps])
            .args(more)
            .env("PATH", format!("{}:{path}", self.path("bin")))
            .output()
            .unwrap()
    }
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
    parts.concat()
}

fn lines_with<'a>(text: &'a str, part: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.contains(part)).collect()
}

#[test]
fn programs_that_work_are_reported_with_their_figures_and_traffic() {
    let bed = Bed::new();
    bed.script("ring", GOOD).script("info", GOOD);
    bed.file("programs/notes.txt", "not a program");
    let output = bed.run("--programs", &[]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("NVSHMEM 3.4.5") && text.contains("4 of 4 worked"), "{text}");
    let heads = lines_with(&text, "== ");
    assert_eq!(heads[0], "== info over tcp: ok");
    assert_eq!(lines_with(&text, "1024 thread 2.5").len(), 4, "{text}");
    let row = lines_with(&text, "ring ").pop().unwrap().split_whitespace().collect::<Vec<_>>();
    // Both PEs together: 10 segments of 200 bytes.
    assert_eq!(row[1], "shm");
    assert_eq!(row[3..], ["10", "200", "0", "ok"]);
}

#[test]
fn the_environment_leads_the_traffic_to_the_transport() {
    let bed = Bed::new();
    bed.script("ring", &format!("env\n{GOOD}"));
    let fabric = bed.file("libfabric.so.1", "");
    let fabric = fabric.display().to_string();
    let output = bed.run("--programs", &["--providers", "tcp", "--libfabric", &fabric]);
    let text = text(&output);
    for line in [
        format!("LD_PRELOAD={}", bed.path("plugins/nvshmem_transport_libfabric.so.3")),
        format!("NVSHMEM_LIBFABRIC_LIBRARY={fabric}"),
        String::from("NVSHMEM_REMOTE_TRANSPORT=libfabric"),
        String::from("NVSHMEM_LIBFABRIC_PROVIDER=tcp"),
        String::from("NVSHMEM_DISABLE_P2P=1"),
        String::from("NVSHMEM_RUN_SIZE=2"),
    ] {
        assert!(text.lines().any(|said| said == line), "{line} is missing in:\n{text}");
    }
}

/// What went through the first job of a process and what through the second count alike.
#[test]
fn programs_of_nccl_run_with_our_plugin() {
    let bed = Bed::new();
    let second = "file=$(echo \"$NVSHMEM_LIBFABRIC_COUNTERS\" | sed \"s/%p/$NVSHMEM_RUN_RANK/\")\n\
                  cp \"$file\" \"$file.2\"\n";
    bed.script("gin", &format!("env\n{GOOD}{second}"));
    bed.script("02_alltoall_gin", &format!("{GOOD}echo 'Pure GIN AlltoAll result: PASSED'\n"));
    bed.script("03_alltoall_hybrid", &format!("{GOOD}echo 'Hybrid AlltoAll result: FAILED'\n"));
    bed.script("not-of-nccl", "exit 1\n");
    let output = bed.run_nccl(&["--providers", "tcp"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for line in [
        format!("NCCL_RMA_PLUGIN={}", bed.path("plugins/libnccl-rma-nvshmem-libfabric.so")),
        String::from("NCCL_GIN_TYPE=2"),
        String::from("NVSHMEM_LIBFABRIC_PROVIDER=tcp"),
        String::from("== 02_alltoall_gin over tcp: ok"),
    ] {
        assert!(text.lines().any(|said| said == line), "{line} is missing in:\n{text}");
    }
    let row = lines_with(&text, "gin ")
        .into_iter()
        .find(|line| line.starts_with("gin "))
        .unwrap()
        .split_whitespace()
        .collect::<Vec<_>>();
    assert_eq!(row[3..], ["20", "400", "0", "ok"], "both jobs of both PEs");
    assert!(text.contains("NCCL 2.30.7") && text.contains("2 of 3 worked"), "{text}");
    let both = bed.run("--programs", &["--nccl", "/nowhere"]);
    assert_eq!(both.status.code(), Some(2), "NVSHMEM or NCCL");
}

#[test]
fn a_program_that_fails_hangs_or_goes_another_way_is_told_from_one_that_works() {
    let bed = Bed::new();
    let bad = "echo \"RESULT bad pe $NVSHMEM_RUN_RANK FAILED: byte 7\"\nexit 1\n";
    let around =
        GOOD.replace("counters \"$NVSHMEM_RUN_RANK\" 5", "counters \"$NVSHMEM_RUN_RANK\" 0");
    bed.script("bad", bad).script("good", GOOD).script("around", &around);
    bed.script("hangs", "unset LD_PRELOAD\necho ERROR: here >&2\nexec sleep 1000\n");
    let output = bed.run("--programs", &["--providers", "tcp", "--deadline", "2"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let result = |name: &str| lines_with(&text, &format!("== {name} over tcp: "))[0].to_owned();
    assert!(result("bad").ends_with("status 1: RESULT bad pe 0 FAILED: byte 7"), "{text}");
    assert!(result("good").ends_with(": ok"), "{text}");
    assert!(
        result("around").ends_with("nothing of PE 0 has gone through this transport"),
        "{text}"
    );
    assert!(result("hangs").contains("killed when its time was over: ERROR: here"), "{text}");
    assert!(text.contains("1 of 4 worked"), "{text}");
}

#[test]
fn a_dead_peer_must_be_noticed() {
    let bed = Bed::new();
    let dies =
        "[ $NVSHMEM_RUN_RANK = 1 ] && kill -9 $$\necho 'ERROR: PE 1 is silent' >&2\nexit 3\n";
    bed.script("peer-death", dies);
    let output = bed.run("--programs", &["--providers", "shm"]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn perftests_are_started_with_pmi() {
    let bed = Bed::new();
    // A PE of NVSHMEM's default bootstrap, as far as it has to do with the launcher.
    bed.script(
        "shmem_put_bw",
        r#"
ask() { echo "$1" >&0; read -r answer; echo "$answer"; }
[ "$PMI_FD" = 0 ] || exit 9
ask 'cmd=init pmi_version=1 pmi_subversion=1'
ask "cmd=put kvsname=job key=k$PMI_RANK value=from-$PMI_RANK=="
ask cmd=barrier_in
ask "cmd=get kvsname=job key=k$((1 - PMI_RANK))"
ask cmd=finalize
counters "$PMI_RANK" 1
echo "args: $*"
echo "1024 None 3.25"
"#,
    );
    let output = bed.run("--perftests", &["--providers", "tcp"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("cmd=get_result rc=0 msg=success value=from-1=="), "{text}");
    assert!(text.contains("args: -n 50 -w 5 -c 4"), "{text}");
}

#[test]
fn examples_are_believed_when_every_pe_says_what_it_must() {
    let bed = Bed::new();
    let says = |line: &str| format!("counters \"$PMI_RANK\" 1\necho \"[$PMI_RANK of 2] {line}\"\n");
    bed.script("on-stream", &says("run complete $NVSHMEM_SYMMETRIC_SIZE"));
    bed.script("thread-group", &says("run failure"));
    let output = bed.run("--examples", &["--providers", "tcp"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("== on-stream over tcp: ok"), "{text}");
    assert!(text.contains("[0 of 2] run complete 256M"), "{text}");
    let bad = "== thread-group over tcp: a PE has printed \"[0 of 2] run failure\"";
    assert!(text.contains(bad), "{text}");
}

#[test]
fn what_is_missing_is_said() {
    let bed = Bed::new();
    let none = bed.run("--programs", &[]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none).contains("no program to run"));
    bed.script("ring", GOOD);
    fs::remove_file(bed.0.path().join("plugins/nvshmem_transport_libfabric.so.3")).unwrap();
    let output = bed.run("--programs", &[]);
    assert!(text(&output).contains("looks for a transport of that name"), "{}", text(&output));
    fs::remove_dir_all(bed.0.path().join("nvshmem/include")).unwrap();
    let output = bed.run("--programs", &[]);
    assert!(text(&output).contains("nvshmem_version.h cannot be read"), "{}", text(&output));
}

#[test]
fn outputs_stay_where_the_user_wants_them() {
    let bed = Bed::new();
    bed.script("ring", GOOD);
    let out = bed.path("out");
    // Twice, as the second must not find the first one's id.
    for _ in 0..2 {
        let output = bed.run("--programs", &["--providers", "tcp", "--out", &out]);
        assert!(output.status.success(), "{}", text(&output));
    }
    let stays = Path::new(&out).join("tcp-0-ring/pe-1.out");
    assert!(fs::read_to_string(stays).unwrap().contains("RESULT ring pe 1 ok"));
}

#[test]
fn mpiexec_starts_the_pes_where_that_is_asked_for() {
    let bed = Bed::new();
    let mpiexec = r#"[ "$1" = -n ] || exit 8
pes=$2; shift 2; rank=0
while [ $rank -lt "$pes" ]; do PMI_RANK=$rank "$@" & rank=$((rank + 1)); done
wait
"#;
    bed.command("mpiexec", mpiexec);
    let program = r#"
[ -z "$NVSHMEM_RUN_RANK$PMI_FD" ] && [ "$NVSHMEM_BOOTSTRAP" = PMI ] || exit 9
counters "$PMI_RANK" 5
echo "RESULT ring pe $PMI_RANK ok"
"#;
    bed.script("ring", program);
    let output = bed.run("--programs", &["--bootstrap", "mpiexec", "--providers", "tcp"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// A stand-in for the service's control program that writes down what it is told.
fn control(bed: &Bed) -> PathBuf {
    let told = bed.0.path().join("told");
    let text = format!(
        "log='{}'\n{}",
        told.display(),
        r#"
echo "pipes $CUDA_MPS_PIPE_DIRECTORY" >>"$log"
if [ "$1" = -d ]; then echo start >>"$log"; else cat >>"$log"; fi
"#
    );
    bed.command("nvidia-cuda-mps-control", &text);
    told
}

#[test]
fn each_job_has_a_multi_process_service_of_its_own_that_is_stopped() {
    let bed = Bed::new();
    let told = control(&bed);
    bed.script("ring", &format!("env\n{GOOD}"));
    let output = bed.run_with_mps("on", "--programs", &["--providers", "tcp,shm"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("multi-process service: on"), "{text}");
    let told = fs::read_to_string(told).unwrap();
    let said: Vec<&str> = told.lines().filter(|line| !line.starts_with("pipes ")).collect();
    // Once to see that there is one, and for each of the two jobs.
    assert_eq!(said, ["start", "get_server_list", "quit"].repeat(3), "{told}");
    let pipes = lines_with(&told, "pipes ")[0].replace("pipes ", "CUDA_MPS_PIPE_DIRECTORY=");
    for line in [pipes.as_str(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"] {
        assert_eq!(text.lines().filter(|said| *said == line).count(), 2, "{line} in {text}");
    }
}

#[test]
fn a_multi_process_service_that_does_not_start_is_an_error_only_if_it_must() {
    let bed = Bed::new();
    bed.command("nvidia-cuda-mps-control", "echo no device >&2\nexit 3\n").script("ring", GOOD);
    let output = bed.run_with_mps("on", "--programs", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("no device"), "{}", text(&output));
    let output = bed.run_with_mps("auto", "--programs", &["--providers", "tcp"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("no multi-process service: "), "{}", text(&output));
}

/// The clients that run tests of others, over modules that have nothing but names.
#[test]
fn suites_of_others_run_in_all_pes_where_their_sources_are_named() {
    let bed = Bed::new();
    for directory in ["modules/nvshmem", "tests"] {
        fs::create_dir_all(bed.0.path().join(directory)).unwrap();
    }
    bed.file("modules/nvshmem/__init__.py", "");
    let version = "class Version: nvshmem4py_version, libnvshmem_version = '0.4.1', '3.8.0'\n\
                   get_version = Version\n";
    bed.file("modules/nvshmem/core.py", version);
    bed.file("tests/utils.py", "");
    let meets = "from mpi4py.MPI import COMM_WORLD\nfrom array import array\nimport json, os\n\
                 rank = COMM_WORLD.Get_rank()\nheard = array('b', [7 if rank == 0 else 0])\n\
                 COMM_WORLD.Split_type(1).Bcast(heard)\nassert heard[0] == 7\n\
                 rail = {'rails': [{'bytes': 100}], 'peers': [{'pe': 1 - rank, 'writes': 5, \
                 'reads': 0, 'sent': 0, 'received': 0}]}\n\
                 file = os.environ['NVSHMEM_LIBFABRIC_COUNTERS'].replace('%p', str(rank))\n\
                 json.dump({'pe': rank, 'lanes': [rail]}, open(file, 'w'))\n";
    bed.file("tests/teams_test.py", meets);
    let run = |named: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvshmem-gpu-run"));
        command
            .args(["--nvshmem", &bed.path("nvshmem"), "--plugin-dir", &bed.path("plugins")])
            .args(["--programs", concat!(env!("CARGO_MANIFEST_DIR"), "/clients")])
            .args(["--only", "tests", "--providers", "tcp", "--mps", "off"])
            .env("PYTHONPATH", bed.path("modules"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("DEEPEP")
            .env_remove("PYTORCH_TESTS")
            .env_remove("NVSHMEM4PY_TESTS");
        if named {
            command.env("NVSHMEM4PY_TESTS", bed.path("tests"));
        }
        text(&command.output().unwrap())
    };
    let said = run(false);
    assert!(said.contains("skipped: PYTORCH_TESTS names no directory"), "{said}");
    assert!(said.contains("0 of 3 worked, 3 skipped"), "{said}");
    let said = run(true);
    assert!(said.contains("nvshmem4py 0.4.1, NVSHMEM 3.8.0\nteams_test.py: ok"), "{said}");
    assert!(said.contains("1 of 3 worked, 2 skipped"), "{said}");
    bed.file("tests/rma_test.py", "import sys\nsys.exit(3)\n");
    let said = run(true);
    assert!(said.contains("rma_test.py --skip-amo: failed, 3"), "{said}");
    assert!(said.contains("FAILED: AssertionError: rma_test.py --skip-amo"), "{said}");
}

/// Where a program has printed no time there is none to compare, and no figure.
#[test]
fn comparisons_of_the_kit_fail_without_a_time() {
    let kit = |script: &str, says: &str, none: &str, gpus: &str| {
        let bed = Bed::new();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts").join(script);
        bed.file(script, &fs::read_to_string(from).unwrap());
        bed.command("nvidia-smi", &format!("for gpu in {gpus}; do echo GPU $gpu; done\n"));
        let sizes = "8 4096 65536 1048576 8388608";
        bed.command("python3", &format!("for size in {sizes}; do echo $size 3.5; done\n"));
        bed.executable("nvshmem-gpu-run", &format!("#!/bin/sh\n{says}\n"));
        let other = if none.is_empty() { "echo MEASURE experts 4.5" } else { none };
        bed.executable("nvshmem-channel-check", &format!("#!/bin/sh\n{other}\n"));
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("bash")
            .args([bed.path(script), bed.path("nvshmem"), bed.path("programs")])
            .env("PATH", format!("{}:{path}", bed.path("bin")))
            .env("RUNS", "1")
            .output()
            .unwrap();
        (output.status.success(), text(&output))
    };
    let (experts, peers) = ("gpu-kit-experts.sh", "gpu-kit-peers.sh");
    let tokens = "echo 'x 128 tokens 9.0'";
    let times = "printf '# one put and its quiet\\n8388608 block 7\\n# put with signal\\n'
        printf '8 block 7\\n4096 block 7\\n1048576 block 7\\n'";
    let (success, said) = kit(experts, tokens, "", "0 1");
    assert!(success && said.contains("MEASURE experts_channel_over_nvshmem_tcp 0.50"), "{said}");
    let (success, said) = kit(peers, times, "", "0 1");
    assert!(success && said.contains("MEASURE put_8B_oneway_over_nccl_socket 2.00"), "{said}");
    assert!(said.contains("MEASURE tcp_apart_4_rails_4KiB_us 7 us"), "{said}");
    assert!(!said.contains("all_to_all"), "{said}");
    let torch = "echo 'PyTorch, 4 ranks, microseconds by bytes'
        echo '     8 4096 65536 1048576 8388608'; echo 'all_to_all 1.5 7.0 3.5 14.0 9.0'";
    let (success, said) = kit(peers, &format!("{times}\n{torch}"), "", "0 1 2 3");
    assert!(success && said.contains("MEASURE all_to_all_4KiB_over_nccl_shm 2.00"), "{said}");
    assert!(said.contains("MEASURE all_to_all_1MiB_over_nccl_shm 4.00"), "{said}");
    for (script, says, none, told) in [
        (experts, ":", "", "NVSHMEM over shm has printed no figure"),
        (experts, tokens, ":", "the channel over shm has printed no figure"),
        (peers, ":", "", "shm has printed no time of 8 bytes"),
    ] {
        let (success, said) = kit(script, says, none, "0 1");
        assert!(!success && said.contains(told), "{script}: {said}");
        assert!(!said.contains("MEASURE"), "{script}: {said}");
    }
}
