//! Every kernel's body on CPU threads, against its model, and between PEs.

use std::process::Command;

fn check(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvshmem-channel-check"));
    let output = command.arg("--host").args(arguments).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    said
}

#[test]
fn kernels_do_what_models_say() {
    let said = check(&["--memory", "both", "--repeat", "2"]);
    assert_eq!(said.matches("129 checks passed").count(), 4, "{said}");
}

#[test]
fn pes_run_kernels_over_fabrics() {
    let said = check(&["--job", "--repeat", "1", "--providers", "shm,tcp"]);
    for provider in ["shm", "tcp"] {
        assert!(said.contains(&format!("84 kernels checked over {provider}")), "{said}");
    }
}
