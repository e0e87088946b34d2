//! Scripts that run campaigns, with a stand-in for cargo: where nothing has run they fail, whatever
//! zeros stand for what went wrong.

use super::Tree;

/// A script with a cargo that says what a test wants, and what comes of that.
fn run(name: &str, script: &str, cargo: &str, arguments: &[&str]) -> (bool, String) {
    let tree = Tree::new(name, &[script]);
    tree.program("scripts/cargo", &format!("#!/usr/bin/env bash\n{cargo}\n"));
    tree.run(script, arguments)
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
    let run = |name: &str, cargo: &str| run(name, "reliability.sh", cargo, &["1", "1"]);
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
    let run = |name: &str, says: &str| {
        let cargo = format!(
            "if [[ -n ${{NVSHMEM_TEST_SOAK_MINUTES:-}} ]]; then {says}; exit 0; fi\n\
             [[ \" $* \" == *' --no-run '* ]]"
        );
        run(name, "soak.sh", &cargo, &["1"]).1
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
    let run = |name: &str, fuzzer: &str, targets: &[&str]| {
        let cargo = format!(
            "if [[ $1 == -vV ]]; then echo 'host: here'; exit 0; fi\n\
             program=$CARGO_TARGET_DIR/fuzz/here/fuzz/fuzz\n\
             mkdir -p \"$(dirname \"$program\")\"\n\
             printf '#!/bin/sh\\n%s\\n' '{fuzzer}' >\"$program\"\n\
             chmod +x \"$program\""
        );
        run(name, "fuzz.sh", &cargo, &[&["5"], targets].concat())
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

#[test]
fn mutants_of_which_none_was_tried_fail() {
    const SCRIPTS: [&str; 2] = ["mutants.sh", "copy-changed.sh"];
    let run = |name: &str, listed: u32, [caught, missed]: [u32; 2]| {
        let tree = Tree::new(name, &SCRIPTS);
        tree.write("src/lib.rs", "");
        tree.write("tests/none", "");
        tree.add();
        // As if it were installed.
        tree.program("target/cargo-mutants/bin/cargo-mutants", "");
        let cargo = format!(
            "#!/usr/bin/env bash\n\
             if [[ \" $* \" == *' --list '* ]]; then seq {listed}; exit 0; fi\n\
             [[ \" $* \" == *' --shard 1/3 '* ]] || exit 1\n\
             out=target/mutants/abi/mutants.out && mkdir -p $out && touch $out/timeout.txt\n\
             seq {caught} >$out/caught.txt; seq {missed} >$out/missed.txt; exit 2"
        );
        tree.program("scripts/cargo", &cargo);
        tree.run(SCRIPTS[0], &["abi", "3", "5"])
    };
    let (success, said) = run("mutants", 10, [2, 1]);
    assert!(success && said.contains("MEASURE mutants_abi_caught_percent 66.7 %"), "{said}");
    for (name, listed) in [("no-mutants", 0), ("unviable", 10)] {
        let (success, said) = run(name, listed, [0, 0]);
        assert!(!success && !said.contains("MEASURE"), "{name}: {said}");
    }
}
