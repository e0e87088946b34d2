//! Every kernel's body on CPU threads, against its model, and between two PEs.

use std::process::Command;

use channel_check::bed::HeapAt;
use channel_check::checks;
use channel_check::machines::host::Host;

#[test]
fn every_kernel_does_what_its_model_says() {
    for (seed, heap) in [(1, HeapAt::Host), (2, HeapAt::Device), (3, HeapAt::Host)] {
        let count = checks::run_all(&Host { threads: 8 }, heap, seed).expect("all of them");
        assert!(count > 120, "{count} checks");
    }
}

#[test]
fn pes_run_every_kernel_over_a_fabric() {
    for provider in ["shm", "tcp"] {
        let mut job = Command::new(env!("CARGO_BIN_EXE_nvshmem-channel-check"));
        job.args(["--host", "--job", "--repeat", "1"]).env("NVSHMEM_LIBFABRIC_PROVIDER", provider);
        let output = job.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{provider}: {said}{complained}");
        assert!(said.contains("86 kernels checked"), "{provider}: {said}");
        assert_eq!(said.matches("MEASURE channel_host_").count(), 9, "{provider}: {said}");
    }
}

#[test]
fn tokens_go_to_experts_and_come_back() {
    let mut job = Command::new(env!("CARGO_BIN_EXE_nvshmem-channel-check"));
    job.args(["--host", "--job", "--experts", "--providers", "shm,tcp", "--memory", "host"]);
    let output = job.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    for provider in ["shm", "tcp"] {
        let measure = format!("MEASURE channel_host_experts_host_16_tokens_us_{provider} ");
        assert!(said.contains(&measure), "{provider}: {said}");
    }
}
