#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz by libFuzzer, each so many times, and prints what each took:
#   scripts/fuzz.sh COUNT [TARGET...]
# It takes a C++ compiler, and no nightly Rust: the coverage that libFuzzer goes by is a pass of
# LLVM's. An input that a target fails with is kept in target/fuzz/findings, and printed as a line
# for the target's corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
count=$1
shift
if [[ ! $count =~ ^[1-9][0-9]*$ ]]; then
    echo "COUNT is '$count', and has to be a number from 1 on" >&2
    exit 2
fi
fuzz=$(realpath -m "${CARGO_TARGET_DIR:-target}")/fuzz
host=$(scripts/cargo -vV | sed -n 's/^host: //p')
if [[ $# -eq 0 ]]; then
    mapfile -t targets < <(sed -nE 's/.*name: "([a-z-]+)".*/\1/p' tests/fuzz/src/*.rs)
    set -- "${targets[@]}"
fi
[[ $# -gt 0 ]] || { echo "There are no targets in tests/fuzz/src" >&2 && exit 1; }

# The flags are for what is built for a named host, not for build scripts.
sancov=(-sanitizer-coverage-level=4 -sanitizer-coverage-inline-8bit-counters -sanitizer-coverage-pc-table
    -sanitizer-coverage-trace-compares)
flags="--cfg fuzzing -Cpasses=sancov-module ${sancov[*]/#/-Cllvm-args=}"
NVCC='' RUSTFLAGS=$flags scripts/cargo build --locked --quiet --profile fuzz --target "$host" \
    --target-dir "$fuzz" -p nvshmem-fuzz --features libfuzzer --bin fuzz
program=$fuzz/$host/fuzz/fuzz

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$fuzz/findings"
failed=()
printf '%-18s %12s %12s %10s\n' target executions 'a second' seconds
for target in "$@"; do
    mkdir "$work/$target"
    began=$EPOCHREALTIME
    if ! FUZZ_TARGET=$target FUZZ_INPUTS=$work/$target "$program" "$work/$target" -runs="$count" -timeout=30 \
        -max_len=2048 -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$fuzz/findings/$target-" >"$work/log" 2>&1; then
        failed+=("$target")
        cat "$work/log"
        found=$(sed -nE 's/.*Test unit written to (.*)$/\1/p' "$work/log" | tail -n 1)
        [[ -z $found ]] || printf '%s fails with this line in its corpus:\n%s\n' "$target" \
            "$(od -An -v -tx1 "$found" | tr -d ' \n')"
        continue
    fi
    awk -v target="$target" -v began="$began" -v now="$EPOCHREALTIME" '/^stat::number_of_executed_units:/ { done = $2 }
        END { s = now - began; printf "%-18s %12d %12.0f %10.1f\n", target, done, done / s, s }' "$work/log"
done
[[ ${#failed[@]} -eq 0 ]] || { echo "Failed: ${failed[*]}: see above" >&2 && exit 1; }
