#!/usr/bin/env bash
# Checks formatting, lints, budgets and shell scripts:
#   scripts/check.sh [full]
# With 'full' also rustdoc, licences and the checked-in bindings.
# What cannot be checked on this machine is skipped, and said.
set -euo pipefail
cd "$(dirname "$0")/.."

skipped() { echo "SKIPPED $1: $2"; }

if scripts/cargo fmt --version >/dev/null 2>&1; then
    scripts/cargo fmt --all --check
else
    skipped "formatting" "this Rust has no rustfmt"
fi
# rustfmt leaves comments as they are. Tables and single words may be longer; columns are characters.
long=$(LC_ALL=C.UTF-8 grep -rnE --include='*.rs' --exclude-dir=target '^.{101,}$' build.rs src crates tests tools |
    grep -E ':[0-9]+: *//' | grep -vE '/generated(/|\.rs)|:[0-9]+: *//[/!]? (\||[^ ]+$)' || true)
[[ -z $long ]] || { printf 'Comments with more than 100 columns:\n%s\n' "$long" >&2 && exit 1; }
# Nothing else here reads the lock file of the laboratories, a workspace of their own.
scripts/cargo update --workspace --locked --quiet --manifest-path tools/labs/Cargo.toml
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    scripts/budgets.py
else
    skipped "the budgets" "this is no checkout of git, which lists the files"
fi
# Each release of Clippy has other lints, so a program without a fault would have some with the
# next: those of one release count. With the profile of the tests, build scripts are built once.
readonly LINTS=95
if ! clippy=$(scripts/cargo clippy --version 2>/dev/null); then
    skipped "lints" "this Rust has no clippy"
elif [[ $clippy != "clippy 0.1.$LINTS "* ]]; then
    skipped "lints" "those of Rust 1.$LINTS count, and this is $clippy"
else
    # Clippy builds and runs our build scripts once more, for which there is no need of kernels.
    NVCC='' scripts/cargo clippy --locked --profile checked --workspace --all-targets -- -D warnings
fi
if command -v shellcheck >/dev/null; then
    git ls-files -z '*.sh' scripts/cargo .ci/run | xargs -0 shellcheck
else
    skipped "shell scripts" "there is no shellcheck here"
fi
# The Rust of Debian 13. Where it is missing, 'scripts/fresh.sh trixie' notices what it does not take.
readonly OLDEST=1.85.0
if rustup run "$OLDEST" cargo --version >/dev/null 2>&1; then
    NVCC='' RUSTUP_TOOLCHAIN=$OLDEST scripts/cargo check --locked --workspace --all-targets --target-dir target/oldest
else
    skipped "the oldest Rust" "'rustup toolchain install $OLDEST --profile minimal' would install it"
fi
[[ ${1:-} == full ]] || exit 0

# Readers of the documentation read the source beside it, so links to private items are good.
RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' \
    scripts/cargo doc --locked --profile checked --workspace --no-deps --quiet
# Regenerating the bindings changes nothing, where libclang is installed.
if ldconfig -p | grep -q libclang && scripts/bindings.sh; then
    git diff --exit-code -- '*generated*'
else
    skipped "the bindings against a fresh generation" "libclang, or headers of libfabric, are not to be had here"
fi
scripts/deny.sh --install
