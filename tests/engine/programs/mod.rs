//! Random programs of all PEs at once, over every shape and every misbehaviour.

mod differing;
mod mixed;

use std::time::Duration;

use sim_fabric::Script;

use crate::job::Random;
use crate::signals::random_script;

/// Whatever waits for a bounce buffer or for room behind others may wait for minutes.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(3600));

/// A script of any misbehaviour in which a program ends soon.
fn script(random: &mut Random) -> Script {
    let script = random_script(random);
    let again_percent = script.again_percent.min(50);
    Script { slow_rails: Vec::new(), again_percent, ..script }
}
