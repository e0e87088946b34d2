//! Every kernel's body on CPU threads, between PEs.

use std::process::Command;

#[test]
fn pes_run_kernels_over_fabrics() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvshmem-channel-check"));
    command.args(["--host", "--repeat", "1", "--providers", "shm,tcp"]);
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for provider in ["shm", "tcp"] {
        assert!(said.contains(&format!("86 kernels checked over {provider}")), "{said}");
    }
}
