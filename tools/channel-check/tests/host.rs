//! Every kernel's body on CPU threads, against its model, and between two PEs.

use std::process::Command;

use channel_check::checks;
use channel_check::host::Host;

#[test]
fn every_kernel_does_what_its_model_says() {
    for seed in [1, 2, 3] {
        let count = checks::run_all(&Host { threads: 8 }, seed).expect("all of them");
        assert!(count > 90, "{count} checks");
    }
}

#[test]
fn two_pes_put_to_one_another_over_a_fabric() {
    for provider in ["shm", "tcp"] {
        let mut job = Command::new(env!("CARGO_BIN_EXE_nvshmem-channel-check"));
        job.args(["--host", "--job"]).env("NVSHMEM_LIBFABRIC_PROVIDER", provider);
        let output = job.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{provider}: {said}{complained}");
        assert_eq!(said.matches("MEASURE channel_host_").count(), 9, "{provider}: {said}");
    }
}
