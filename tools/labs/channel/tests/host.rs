//! Every kernel's body on CPU threads, against its model, and between PEs.

use std::process::Command;

use channel_check::bed::HeapAt;
use channel_check::checks;
use channel_check::machines::host::Host;

#[test]
fn kernels_do_what_models_say() {
    for (seed, heap) in [(1, HeapAt::Host), (2, HeapAt::Device), (3, HeapAt::Host)] {
        let count = checks::run_all(&Host { threads: 8 }, heap, seed).expect("all of them");
        assert!(count > 120, "{count} checks");
    }
}

#[test]
fn pes_run_kernels_over_fabrics() {
    let mut job = Command::new(env!("CARGO_BIN_EXE_nvshmem-channel-check"));
    job.args(["--host", "--job", "--repeat", "1", "--providers", "shm,tcp"]);
    let output = job.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    for provider in ["shm", "tcp"] {
        assert!(said.contains(&format!("84 kernels checked over {provider}")), "{said}");
    }
}
