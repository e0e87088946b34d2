#!/usr/bin/env bash
# Style and lints. A toolchain that comes without rustfmt or clippy skips that part and says so.
set -euo pipefail
cd "$(dirname "$0")/.."

if scripts/cargo fmt --version >/dev/null 2>&1; then
    scripts/cargo fmt --all --check
else
    echo "skipped: format check (this toolchain has no rustfmt)"
fi
if scripts/cargo clippy --version >/dev/null 2>&1; then
    scripts/cargo clippy --locked --workspace --all-targets -- -D warnings
else
    echo "skipped: lints (this toolchain has no clippy)"
fi
scripts/bindings.sh --check
if command -v shellcheck >/dev/null; then
    shellcheck scripts/cargo scripts/*.sh .ci/run
else
    echo "skipped: shell scripts (no shellcheck here)"
fi
