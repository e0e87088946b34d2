#!/usr/bin/env bash
# Checks licences, origins and choice of the crates that are built against deny.toml:
#   scripts/deny.sh [--install]
# With --install, cargo-deny is built into .deps where there is none, which takes some minutes.
# Without, the check is skipped there, and that is said. Advisories are not checked, since their
# database comes from elsewhere than the crates: 'cargo deny check advisories' does that.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=0.18.3 # the newest that Rust 1.85 builds
readonly HOME_DIR=$PWD/.deps/cargo-deny

if ! command -v cargo-deny >/dev/null && [[ ! -x $HOME_DIR/bin/cargo-deny ]]; then
    if [[ ${1:-} != --install ]]; then
        echo "SKIPPED licences and origins of crates: there is no cargo-deny here; 'scripts/deny.sh --install' builds it"
        exit 0
    fi
    # It runs for a second: that it is built soon matters more than that it is fast.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=64 \
        scripts/cargo install --quiet --locked --root "$HOME_DIR" "cargo-deny@$VERSION"
fi
PATH=$PATH:$HOME_DIR/bin scripts/cargo deny --locked check --hide-inclusion-graph bans licenses sources
