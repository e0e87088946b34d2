#!/usr/bin/env bash
# Formatting, width of comments, lints, documentation, the places of injected bugs, shell scripts. What cannot be checked here is skipped, and said. With the profile of the
# tests, whose procedural macros and build scripts are then built once for both.
set -euo pipefail
cd "$(dirname "$0")/.."

skipped() { echo "SKIPPED $1: $2"; }

if scripts/cargo fmt --version >/dev/null 2>&1; then
    scripts/cargo fmt --all --check
else
    skipped "formatting" "this Rust has no rustfmt"
fi
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    scripts/comment-width.sh
else
    skipped "the width of comments" "this is no checkout of git, which lists the files"
fi
# Each release of Clippy has other lints, so a program without a fault would have some with the
# next: those of one release count.
readonly LINTS=95
if ! clippy=$(scripts/cargo clippy --version 2>/dev/null); then
    skipped "lints" "this Rust has no clippy"
elif [[ $clippy != "clippy 0.1.$LINTS "* ]]; then
    skipped "lints" "those of Rust 1.$LINTS count, and this is $clippy"
else
    # Clippy builds and runs our build scripts once more, for which there is no need of kernels.
    NVCC='' scripts/cargo clippy --locked --profile checked --workspace --all-targets -- -D warnings
fi
# The Rust of Debian 13. Where it is missing, 'scripts/fresh.sh trixie' is the first to notice what
# it does not take.
readonly OLDEST=1.85.0
if rustup run "$OLDEST" cargo --version >/dev/null 2>&1; then
    NVCC='' RUSTUP_TOOLCHAIN=$OLDEST scripts/cargo check --locked --workspace --all-targets --target-dir target/oldest
else
    skipped "the oldest Rust that will do" "'rustup toolchain install $OLDEST --profile minimal' would have it here"
fi
# Its readers read the source beside it, so links to what is private are good.
RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' scripts/cargo doc --locked --profile checked --workspace --no-deps --quiet
scripts/figures.sh check
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    scripts/injected.sh --places
else
    skipped "the places of injected bugs" "this is no checkout of git, which lists the files"
fi
scripts/deny.sh
if command -v shellcheck >/dev/null; then
    shellcheck scripts/cargo scripts/*.sh packaging/*.sh tools/labs/rdma/*.sh .ci/run
else
    skipped "shell scripts" "there is no shellcheck here"
fi
