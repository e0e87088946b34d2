#!/usr/bin/env bash
# Makes a package of src/engine alone, with the tests that need nothing else. It builds in seconds, so that
# one changed line after the other can be tried; the engine names no other part of the plugin but a piece of its log.
#   scripts/engine-crate.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/.."
crate=$1

mkdir -p "$crate/src" "$crate/tests"
git ls-files -z --cached --others --exclude-standard \
    Cargo.lock src/engine src/logging/rate_limit.rs tests/engine tests/model tests/support tests/wire.rs |
    scripts/copy-changed.sh "$crate"

{
    cat <<'EOF'
[workspace]
members = ["tests/support"]

[package]
name = "nvshmem-transport-libfabric"
version.workspace = true
edition.workspace = true
publish = false

[lib]
path = "lib.rs"

[dependencies]
aes.workspace = true
crossbeam-channel.workspace = true
log.workspace = true
thiserror.workspace = true

[dev-dependencies]
proptest = { version = "1", default-features = false, features = ["std"] }
test-support.workspace = true

[profile.test]
debug = false
incremental = true

EOF
    # The rest is the workspace's.
    awk '/^\[/ { mine = /^\[workspace\.(package|dependencies|lints.*)\]/ } mine' Cargo.toml
} >"$crate/Cargo.toml"
# Of the log, the engine names what keeps lines few.
library='#[path = "src/engine/mod.rs"]
pub mod engine;
#[path = "src/logging/rate_limit.rs"]
mod rate_limit;
pub mod logging {
    pub use crate::rate_limit::{RateLimit, Unsaid};
}'
[[ -e $crate/lib.rs && $(<"$crate/lib.rs") == "$library" ]] || printf '%s\n' "$library" >"$crate/lib.rs"
