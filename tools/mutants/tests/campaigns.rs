//! Scripts that run campaigns, with a stand-in for cargo: where nothing has run they fail, whatever
//! zeros stand for what went wrong.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use launcher::PrivateDir;

/// Who writes programs, and who starts any. A process that another thread starts meanwhile has the
/// file open for a moment, too, and a file that is open for writing is not executed.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory with a script and a cargo that says what a test wants.
struct Tree(PrivateDir);

impl Tree {
    fn new(name: &str, script: &str, cargo: &str) -> Self {
        let _alone = alone();
        let tree = Self(PrivateDir::new(&format!("campaign-{name}")).expect("a directory"));
        let scripts = tree.0.path().join("scripts");
        fs::create_dir_all(&scripts).expect("a directory");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script);
        fs::copy(from, scripts.join(script)).expect("the script");
        let cargo_at = scripts.join("cargo");
        fs::write(&cargo_at, format!("#!/usr/bin/env bash\n{cargo}\n")).expect("a cargo");
        fs::set_permissions(cargo_at, fs::Permissions::from_mode(0o755)).expect("a program");
        tree
    }

    /// Whether it succeeds, and all that it says.
    fn run(&self, script: &str, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(format!("scripts/{script}"));
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // None is fetched.
        command
            .env("CARGO_TARGET_DIR", self.0.path().join("target"))
            .env("NVSHMEM_TEST_LIBFABRIC2", "");
        let child = {
            let _alone = alone();
            command.spawn().expect("it starts")
        };
        let output = child.wait_with_output().expect("it ends");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}

/// What a campaign of faults says in the end, of so many of each.
fn figures(faults: u32, strangers: u32, schedules: u32) -> String {
    format!(
        "echo 'MEASURE process_faults {faults} faults'; \
         echo 'MEASURE strangers_packets {strangers} kinds, each in a job'; \
         echo 'MEASURE schedules {schedules} schedules'; \
         echo 'MEASURE hangs 0 schedules'"
    )
}

#[test]
fn a_campaign_of_faults_in_which_something_did_not_run_fails() {
    const SCRIPT: &str = "reliability.sh";
    let run = |name: &str, cargo: &str| Tree::new(name, SCRIPT, cargo).run(SCRIPT, &["1", "1"]);
    let (success, said) = run("faults", &figures(30, 9, 1));
    assert!(success && !said.contains("nothing has told"), "{said}");
    for (name, cargo, told) in [
        ("no-tests", String::from("echo all is well"), "how many process faults"),
        ("no-faults", figures(0, 9, 1), "how many process faults"),
        ("no-strangers", figures(30, 0, 1), "how many strangers packets"),
        ("no-schedules", figures(30, 9, 0), "how many schedules"),
    ] {
        let (success, said) = run(name, &cargo);
        assert!(!success && said.contains(told), "{name}: {said}");
    }
}

/// What runs beside the jobs ends at once in here, by failing: the jobs are what this is about.
#[test]
fn a_soak_without_an_operation_fails() {
    const SCRIPT: &str = "soak.sh";
    let run = |name: &str, says: &str| {
        let cargo = format!(
            "if [[ -n ${{NVSHMEM_TEST_SOAK_MINUTES:-}} ]]; then {says}; exit 0; fi\n\
             [[ \" $* \" == *' --no-run '* ]]"
        );
        Tree::new(name, SCRIPT, &cargo).run(SCRIPT, &["1"]).1
    };
    const TOLD: &str = "the jobs have told of no operation";
    let said = run("soak", "echo 'MEASURE soak_operations 17 operations'");
    assert!(!said.contains(TOLD), "{said}");
    for (name, says) in [("no-soak", ":"), ("idle", "echo 'MEASURE soak_operations 0 operations'")]
    {
        let said = run(name, says);
        assert!(said.contains(TOLD), "{name}: {said}");
    }
}

#[test]
fn a_fuzz_target_that_executes_nothing_fails() {
    const SCRIPT: &str = "fuzz.sh";
    let run = |name: &str, fuzzer: &str, targets: &[&str]| {
        let cargo = format!(
            "if [[ $1 == -vV ]]; then echo 'host: here'; exit 0; fi\n\
             program=$CARGO_TARGET_DIR/fuzz/here/fuzz/fuzz\n\
             mkdir -p \"$(dirname \"$program\")\"\n\
             printf '#!/bin/sh\\n%s\\n' '{fuzzer}' >\"$program\"\n\
             chmod +x \"$program\""
        );
        Tree::new(name, SCRIPT, &cargo).run(SCRIPT, &[&["5"], targets].concat())
    };
    let (success, said) =
        run("fuzz", "echo \"stat::number_of_executed_units: 5\"", &["some", "other"]);
    assert!(success && said.contains("MEASURE fuzz_other 5 executions"), "{said}");
    for (name, fuzzer) in
        [("no-fuzz", ":"), ("still", "echo \"stat::number_of_executed_units: 0\"")]
    {
        let (success, said) = run(name, fuzzer, &["some"]);
        assert!(!success && said.contains("Failed: some"), "{name}: {said}");
        assert!(!said.contains("MEASURE"), "{name}: {said}");
    }
    let (success, said) = run("no-targets", ":", &[]);
    assert!(!success && said.contains("There are no targets"), "{said}");
}
