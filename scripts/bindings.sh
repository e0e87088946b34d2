#!/usr/bin/env bash
# Makes the checked-in bindings anew from the C headers, or compares all of them with a fresh
# generation:
#   scripts/bindings.sh [--check]
# This needs libclang, and the headers of libfabric and verbs, which it fetches. A comparison goes
# as far as there is both.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly NO_LIBCLANG=3 # as in tools/bindings/src/main.rs

arguments=("$@")
for name in libfabric verbs; do
    if headers=$(scripts/headers.sh "$name"); then
        arguments+=("--$name" "$headers")
    elif [[ ${1:-} == --check ]]; then
        echo "SKIPPED the bindings of $name against its headers: these cannot be had, see above"
    else
        exit 1
    fi
done
status=0
scripts/cargo build --locked --quiet --profile checked -p bindings
"$(realpath -m "${CARGO_TARGET_DIR:-target}")/checked/bindings" "${arguments[@]}" || status=$?
if [[ $status -eq $NO_LIBCLANG && ${1:-} == --check ]]; then
    echo "SKIPPED the bindings against a fresh generation: libclang cannot be loaded"
    exit 0
fi
exit "$status"
