//! `scripts/injected.sh`, on a crate of a few lines: what it takes for a bug that is caught, and
//! what it does not.

use super::Tree;

const SCRIPTS: [&str; 3] = ["injected.sh", "copy-changed.sh", "cargo"];

const SOURCE: &str = r#"//! Adds.
pub fn sum(a: u8, b: u8) -> u8 {
    let sum = a.wrapping_add(b);
    sum
}
#[cfg(test)]
mod tests {
    #[test]
    fn it_adds() {
        assert_eq!(super::sum(2, 3), 5);
    }
    #[test]
    fn it_adds_nothing() {
        assert_eq!(super::sum(0, 0), 0);
    }
    #[test]
    fn it_adds_aloud() {
        let said = std::process::Command::new("echo").arg("adding").status();
        assert!(said.is_ok() && super::sum(2, 3) == 5);
    }
    #[test]
    fn it_never_did() {
        assert_eq!(super::sum(1, 1), 3);
    }
    #[test]
    #[ignore = "there is no such machine"]
    fn it_adds_elsewhere() {
        assert_eq!(super::sum(2, 3), 5);
    }
}
"#;

/// A crate with one bug: the sum's line becomes `bug`, which `tests` are named for.
fn with(name: &str, tests: &str, bug: &str) -> Tree {
    let here = Tree::new(name, &SCRIPTS);
    here.write("Cargo.toml", "[package]\nname = \"adds\"\nedition = \"2021\"\n[workspace]\n");
    here.write("src/lib.rs", SOURCE);
    let bug =
        format!("It is wrong.\ncaught by: {tests}\n- let sum = a.wrapping_add(b);\n+ {bug}\n");
    here.write("tests/injected/some.bugs", &bug);
    // Looked through by the script.
    for folder in ["crates", "tools"] {
        here.write(&format!("{folder}/none"), "");
    }
    here.add();
    here
}

/// What is said of a bug, and whether the script is content.
fn expect(name: &str, tests: &str, bug: &str, says: &str, is_content: bool) {
    let (success, said) = with(name, tests, bug).run(SCRIPTS[0], &[]);
    assert!(said.contains(says), "{name}: {says:?} is not in\n{said}");
    assert_eq!(success, is_content, "{name}:\n{said}");
    assert!(said.contains("MEASURE injected_bugs 1 bugs"), "{name}:\n{said}");
    let missed = u8::from(!is_content);
    assert!(said.contains(&format!("MEASURE injected_bugs_missed {missed} bugs")), "{said}");
}

const RIGHT: &str = "let sum = b.wrapping_add(a);";
const WRONG: &str = "let sum = a | b.wrapping_mul(4);";

#[test]
fn a_bug_is_caught_when_a_test_that_is_named_fails() {
    expect("caught", "--lib it_adds", WRONG, "caught, failed", true);
    expect("crashed", "--lib it_adds", "let sum = std::process::abort();", "caught, crashed", true);
}

/// What a process of a test says stands between the test's name and what became of it.
#[test]
fn a_test_whose_processes_speak_notices_as_well() {
    let tests = "--lib it_adds_aloud -- --test-threads=1 --nocapture";
    expect("aloud", tests, WRONG, "caught, failed", true);
    expect("aloud-missed", tests, RIGHT, "MISSED", false);
}

#[test]
fn a_bug_that_no_named_test_notices_is_missed() {
    expect("missed", "--lib it_adds", RIGHT, "MISSED", false);
    // Another test would.
    expect("others", "--lib it_adds_nothing", WRONG, "MISSED", false);
    expect("nobody", "--lib it_subtracts", WRONG, "none without it", false);
}

/// Tests that fail without it, too, say nothing of it.
#[test]
fn what_fails_without_the_bug_is_no_catch() {
    expect("control", "--lib it_never_did", WRONG, "failed without it", false);
    expect("no-target", "--test none it_adds", WRONG, "unbuilt without it", false);
}

#[test]
fn a_bug_that_cannot_be_built_is_no_catch() {
    expect("unbuilt", "--lib it_adds", "let sum = a +;", "unbuilt, which is no failure", false);
}

/// As long as they take without it, tests that never end have noticed something.
#[test]
fn tests_that_have_ended_without_the_bug_and_do_not_with_it_notice_it() {
    expect("endless", "--lib it_adds", "let sum = loop {};", "caught, endless", true);
}

#[test]
fn a_bug_whose_tests_are_skipped_is_told() {
    let says = "SKIPPED bugs that --lib it_adds_elsewhere catches";
    expect("skipped", "--lib it_adds_elsewhere", WRONG, says, true);
}

#[test]
fn the_tests_may_be_tried_without_any_bug() {
    for (name, tests, says, passes) in [
        ("sound", "--lib it_adds", "1 sets of tests, 0 of which do not pass", true),
        ("elsewhere", "--lib it_adds_elsewhere", "SKIPPED", true),
        ("unsound", "--lib it_never_did", "--lib it_never_did: failed", false),
        ("nothing", "--lib it_subtracts", "--lib it_subtracts: none", false),
    ] {
        let (success, said) = with(name, tests, WRONG).run(SCRIPTS[0], &["--control"]);
        assert!(said.contains(says), "{name}: {says:?} is not in\n{said}");
        assert_eq!(success, passes, "{name}:\n{said}");
    }
}
