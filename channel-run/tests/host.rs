//! Every kernel's body on CPU threads, against its model.

use channel_run::checks;
use channel_run::host::Host;

#[test]
fn every_kernel_does_what_its_model_says() {
    for seed in [1, 2, 3] {
        let count = checks::run_all(&Host { threads: 8 }, seed).expect("all of them");
        assert!(count > 90, "{count} checks");
    }
}
