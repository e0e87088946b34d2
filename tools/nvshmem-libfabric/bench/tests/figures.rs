//! `scripts/figures.sh`, which puts what benchmarks have printed into the pages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tree with the script, a version, figures and pages.
struct Tree(PathBuf);

const PAGE: &str = "Prose has 9.9.\n\n<!-- figures: put_{8B,1MiB}_over_{tcp,shm} -->\n\
    | | tcp | shm |\n| put 8 B | 0.10 | 0.2 |\n| put 1.5 | none | none |\n\nAfter it 3.3.\n";

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("figures-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("scripts")).unwrap();
        fs::create_dir_all(root.join("docs")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/figures.sh");
        fs::copy(script, root.join("scripts/figures.sh")).unwrap();
        let tree = Self(root);
        tree.write("Cargo.toml", "[workspace.package]\nversion = \"0.4.1\"\n");
        tree.write(
            "docs/figures.txt",
            "# bench: version 0.4.0, commit 1, 2026-01-01, a machine\n\
             MEASURE put_8B_over_tcp 0.987 ratio\nMEASURE put_8B_over_shm 1.25 ratio\n\
             MEASURE put_1MiB_over_tcp 2.04 ratio\nMEASURE put_1MiB_over_shm 10.5 ratio\n",
        );
        tree.write("README.md", "No figures.\n");
        tree.write("docs/gpu.md", "No figures.\n");
        tree
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.0.join(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap()
    }

    /// Whether it succeeds, and what it says.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new("bash");
        let output = command.arg(self.0.join("scripts/figures.sh")).args(arguments).output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_block_has_the_figures_of_the_file_in_the_order_of_their_names() {
    let tree = Tree::new("block");
    tree.write("docs/performance.md", &PAGE.replace("| none | none |", "| 1.00 | 7.000 |"));
    // "1.5" in the first column would be taken for a figure.
    let (success, said) = tree.run(&["check"]);
    assert!(!success && said.contains("a figure without a name"), "{said}");
    let page = PAGE.replace("put 1.5 | none | none |", "put 1 MiB | 1.00 | 7.000 |");
    tree.write("docs/performance.md", &page);
    let (success, said) = tree.run(&["check"]);
    assert!(!success && said.contains("docs/performance.md has other figures"), "{said}");
    assert!(tree.run(&["write"]).0);
    let written = page.replace("0.10 | 0.2 |", "0.99 | 1.2 |");
    let written = written.replace("1.00 | 7.000 |", "2.04 | 10.500 |");
    assert_eq!(tree.read("docs/performance.md"), written);
    let (success, said) = tree.run(&["check"]);
    assert!(success, "{said}");
}

#[test]
fn a_name_without_a_figure_or_a_place_is_found() {
    let tree = Tree::new("names");
    tree.write("docs/performance.md", PAGE);
    let (success, said) = tree.run(&["check"]);
    assert!(!success && said.contains("no place for put_1MiB_over_shm"), "{said}");
    tree.write("docs/performance.md", "<!-- figures: get_8B -->\n0.5\n");
    let (success, said) = tree.run(&["check"]);
    assert!(!success && said.contains("no figure is named get_8B"), "{said}");
}

#[test]
fn figures_may_be_of_the_release_before_and_not_of_an_older_one() {
    let tree = Tree::new("age");
    tree.write("docs/performance.md", "No figures.\n");
    for (version, is_young) in [("0.5.0", true), ("0.6.0", false), ("1.4.0", false)] {
        tree.write("Cargo.toml", &format!("version = \"{version}\"\n"));
        let (success, said) = tree.run(&["check"]);
        assert_eq!(success, is_young, "{version}: {said}");
    }
}

#[test]
fn a_run_takes_the_place_of_that_target_s_run_before() {
    let tree = Tree::new("run");
    tree.write("docs/performance.md", "<!-- figures: put_8B_over_tcp signal -->\n0.10 and 0.20\n");
    let rules = "bench:\n\t@echo MEASURE put_8B_over_tcp 0.5 ratio\n\
        bench-signal:\n\t@echo MEASURE signal 4 ratio\nempty:\n\t@true\n";
    tree.write("Makefile", rules);
    let (success, said) = tree.run(&["measure"]);
    assert!(success, "{said}");
    let file = tree.read("docs/figures.txt");
    assert!(!file.contains("0.987") && !file.contains("version 0.4.0"), "{file}");
    assert_eq!(file.matches("# bench").count(), 2, "{file}");
    assert!(tree.read("docs/performance.md").contains("0.50 and 4.00"), "{said}");
    let (success, said) = tree.run(&["measure", "empty"]);
    assert!(!success && said.contains("has measured nothing"), "{said}");
    assert_eq!(tree.read("docs/figures.txt"), file, "a run without figures changes nothing");
}

#[test]
fn a_run_elsewhere_is_taken_by_its_tables_and_its_lines() {
    let tree = Tree::new("take");
    tree.write("docs/performance.md", "No figures.\n");
    let page = "<!-- cells: gpu_put_{8,4096}B_block_us_{tcp,shm}@{1,2}/1000 -->\n\
        | | 8 B | 4096 B |\n|---|---|---|\n| ms 1 | 0.0, 0 / 7, 7 | 1 234 to 1.00 / 5, 6 |\n";
    tree.write("docs/gpu.md", page);
    let about = "commit 2, 2026-02-01, two GPUs";
    let output = |time: f64| {
        let table = |provider: &str, time: f64| {
            format!(
                "== put over {provider}: ok\n# put: one put, PE 0 to PE 1\n\
                 size(B)       scope             latency(us)\n\
                 8             block             {time}\n4096 block {}\nRESULT put pe 0 ok\n\
                 7 lines 9.0\n",
                time * 1000.0
            )
        };
        format!("{}{}MEASURE seen_ns 5 ns\n", table("tcp", time), table("shm", 2.0 * time))
    };
    for (run, time) in [("gpu@1", 4321.0), ("gpu@2", 2500.0), ("gpu@2", 1500.0)] {
        tree.write("output", &output(time));
        let said = tree.run(&["take", run, &tree.0.join("output").display().to_string(), about]).1;
        // Until both are there.
        assert_eq!(said.contains("no figure is named"), run == "gpu@1", "{run}: {said}");
    }
    let file = tree.read("docs/figures.txt");
    assert_eq!(file.matches("# gpu@2: version 0.4.1, commit 2, 2026-02-01, two GPUs\n").count(), 1);
    assert_eq!(file.matches("MEASURE gpu_seen_ns@2 5 ns\n").count(), 1, "{file}");
    assert!(!file.contains(" 7 ") && !file.contains("2500"), "{file}");
    let written = "| ms 1 | 4.3, 2 / 9, 3 | 4 321 to 1500.00 / 8 642, 3 000 |";
    let written = written.replace("1500.00", "1 500.00");
    assert!(tree.read("docs/gpu.md").contains(&written), "{}", tree.read("docs/gpu.md"));
    tree.write("output", "nothing\n");
    let (success, said) =
        tree.run(&["take", "gpu@2", &tree.0.join("output").display().to_string(), about]);
    assert!(!success && said.contains("has no figures"), "{said}");
    assert_eq!(tree.read("docs/figures.txt"), file, "what has no figures changes nothing");
}
