#!/usr/bin/env bash
# Changes the code in small ways, one at a time, and counts what the tests notice. Needs cargo-mutants 27:
# cargo install --locked cargo-mutants.
#   scripts/mutants.sh engine|abi|channel|ofi [COUNT [SEED]]
# Without COUNT all mutants of the part are tried; with it so many, drawn by SEED (1).
# What came of each is in target/mutants/PART/mutants.out afterwards; docs/testing.md says what stays and why.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1 count=${2:-} seed=${3:-1}
cargo mutants --version >/dev/null 2>&1 || {
    echo "There is no cargo-mutants: cargo install --locked cargo-mutants" >&2
    exit 127
}

crate=$(realpath -m "${CARGO_TARGET_DIR:-target}/mutants")/$part
export CARGO_TARGET_DIR=$crate/target
# For --fail-fast, which the test harness of a stable toolchain keeps to itself.
export RUSTC_BOOTSTRAP=1
# Two for each random test: what they miss is tried again with more.
export NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-2}
export CARGO_TERM_COLOR=never
harness=(-- -Zunstable-options --fail-fast --test-threads 1)

case $part in
engine)
    scripts/engine-crate.sh "$crate"
    tests=(--lib --test engine --test wire)
    # The fake is what tests with, not what is tested.
    which=(--exclude 'src/engine/fake/**')
    ;;
abi | channel | ofi)
    # A copy, for mutants are made in place.
    mkdir -p "$crate"
    git ls-files -z --cached --others --exclude-standard | scripts/copy-changed.sh "$crate"
    tests=(--package nvshmem-transport-libfabric --lib)
    which=(--file "src/$part/**")
    ;;
*)
    echo "No part '$part': engine, abi, channel or ofi." >&2
    exit 2
    ;;
esac
cd "$crate"
if [[ -n $count ]]; then
    # Names with their places, as regular expressions of themselves.
    names=$(cargo mutants --list "${which[@]}" | sort -R --random-source=<(yes "$seed") |
        sed -n "1,${count}p" | sed 's/[][\.*^$+?(){}|/]/\\&/g' | paste -sd '|')
    which+=(--re "^($names)\$")
fi

status=0
cargo mutants --in-place --shuffle --baseline skip --timeout "${MUTANT_TIMEOUT:-120}" \
    --build-timeout 600 "${which[@]}" -- "${tests[@]}" "${harness[@]}" || status=$?
cd mutants.out
caught=$(cat caught.txt timeout.txt | wc -l)
missed=$(wc -l <missed.txt)
echo "MEASURE mutants_${part}_tried $((caught + missed)) mutants"
echo "MEASURE mutants_${part}_caught $caught mutants"
[[ $status -eq 0 || $status -eq 2 || $status -eq 3 ]] || exit "$status"
