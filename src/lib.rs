//! NVSHMEM's remote transport over libfabric.
//!
//! Built as a shared library, it is what NVSHMEM loads for `NVSHMEM_REMOTE_TRANSPORT=libfabric`;
//! its one exported symbol is `nvshmemt_init`. `docs/architecture.md` has the layers.

pub mod abi;
pub mod bootstrap;
pub mod channel;
pub mod job;
pub mod logging;
pub mod nccl;
pub mod settings;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    const LAYERS: [&[&str]; 5] =
        [&["abi", "channel", "nccl"], &["bootstrap"], &["job"], &["settings"], &["logging"]];

    fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a directory of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn layers_use_lower_layers_only() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let floor = |room: &str| LAYERS.iter().position(|layer| layer.contains(&room));
        let mut arrows = 0;
        for room in LAYERS.concat() {
            let mut files = Vec::new();
            sources(&root.join(room), &mut files);
            for file in files {
                let text = fs::read_to_string(&file).expect("a source");
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                for used in code.flat_map(|line| line.split("crate::").skip(1)) {
                    let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                    let Some(used) = used.filter(|used| *used != room) else { continue };
                    let Some(at) = floor(used) else { continue };
                    assert!(Some(at) > floor(room), "{} uses {used}", file.display());
                    arrows += 1;
                }
            }
        }
        assert!(arrows > 20, "the sources were read");
    }

    #[test]
    fn provider_names_stay_in_their_module() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        for crate_sources in ["src", "crates/engine/src", "crates/ofi/src"] {
            sources(&root.join(crate_sources), &mut files);
        }
        let knows = root.join("crates/ofi/src/provider");
        assert!(files.iter().any(|file| file.starts_with(&knows)), "the room is where it was");
        let others = files.iter().filter(|file| !file.starts_with(&knows));
        for file in others.filter(|file| !file.ends_with("tests.rs")) {
            let text = fs::read_to_string(file).expect("a source");
            let code = text.split("#[cfg(test)]").next().expect("what comes first");
            for name in ["efa", "efa-direct", "cxi", "verbs", "tcp", "tcp;ofi_rxm", "shm"] {
                let quoted = format!("\"{name}");
                assert!(!code.contains(&quoted), "{} has {quoted}\"", file.display());
            }
        }
    }
}
