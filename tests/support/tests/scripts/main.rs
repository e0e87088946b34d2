//! Scripts that judge tests, on trial: what fails in them has to be said.

mod campaigns;
mod injected;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use launcher::PrivateDir;

/// Who writes programs, and who starts any. A process that another thread starts meanwhile has the
/// file open for a moment, too, and a file that is open for writing is not executed.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory with scripts, which goes with it.
struct Tree(PrivateDir);

impl Tree {
    fn new(name: &str, scripts: &[&str]) -> Self {
        let tree = Self(PrivateDir::new(&format!("scripts-{name}")).expect("a directory"));
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
        for script in scripts {
            let text = fs::read_to_string(from.join(script)).expect("a script");
            tree.program(&format!("scripts/{script}"), &text);
        }
        tree
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn program(&self, file: &str, text: &str) {
        let _alone = alone();
        self.write(file, text);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.0.path().join(file), mode).expect("a program");
    }

    /// Whether a script succeeds, and all that it says.
    fn run(&self, script: &str, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(format!("scripts/{script}"));
        command.args(arguments).current_dir(self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("CARGO_TARGET_DIR", self.0.path().join("target"));
        // None is fetched.
        command.env("NVSHMEM_TEST_LIBFABRIC2", "").env("INJECTED_TIMEOUT", "10");
        let child = {
            let _alone = alone();
            command.spawn().expect("it starts")
        };
        let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
        let said = [stdout, stderr].concat();
        (status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// As far as git knows, these are the files.
    fn add(&self) {
        for arguments in [&["init", "--quiet"][..], &["add", "scripts", "src", "tests"]] {
            let status = Command::new("git").args(arguments).current_dir(self.0.path()).status();
            assert!(status.expect("git").success());
        }
    }
}
