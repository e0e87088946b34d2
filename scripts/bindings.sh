#!/usr/bin/env bash
# Makes the checked-in bindings anew from the C headers. This needs libclang, and the headers of
# libfabric and verbs, which it fetches.
set -euo pipefail
cd "$(dirname "$0")/.."

libfabric=$(scripts/headers.sh libfabric)
verbs=$(scripts/headers.sh verbs)
scripts/cargo run --manifest-path tools/labs/Cargo.toml --locked --quiet --profile checked -p bindings -- "$libfabric" "$verbs"
