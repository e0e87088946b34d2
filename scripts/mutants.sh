#!/usr/bin/env bash
# Changes the code in small ways, one at a time, and counts what the tests notice, by cargo-mutants
# (https://mutants.rs):
#   scripts/mutants.sh engine|ofi|cuda|abi|job|channel|nccl [COUNT [SEED [OPTION...]]]
# Without COUNT all mutants of the part are tried; with it about so many, evenly spread, and others
# for each SEED (1). OPTIONs are cargo-mutants' own. The results are in target/mutants/PART.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly VERSION=26.0.0 # the newest that Rust 1.85 builds
readonly PLUGIN=nvshmem-transport-libfabric
part=$1 count=${2:-} seed=${3:-1}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
home=$target/mutants

case $part in
engine) what=(--package engine) tests=(--lib --test engine) ;;
cuda | ofi) what=(--package "$part") tests=(--package "$PLUGIN" --lib --test channel --test "$part") ;;
channel) what=(--package "$PLUGIN" --file "src/$part/**") tests=(--lib --test channel) ;;
nccl) what=(--package "$PLUGIN" --file "src/$part/**") tests=(--lib --test nccl) ;;
abi | job) what=(--package "$PLUGIN" --file "src/$part/**") tests=(--lib --test channel --test plugin) ;;
*)
    echo "No part '$part': engine, ofi, cuda, abi, job, channel or nccl." >&2
    exit 2
    ;;
esac

PATH=$PATH:$target/cargo-mutants/bin
if ! command -v cargo-mutants >/dev/null; then
    # It waits for builds and tests: that it is built soon matters more than that it is fast.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=64 \
        scripts/cargo install --quiet --locked --root "$target/cargo-mutants" "cargo-mutants@$VERSION" || {
        echo "SKIPPED mutants: there is no cargo-mutants here, and it cannot be installed"
        exit 0
    }
fi
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
# Enough seeds for most mutants; more take minutes of each.
export NVSHMEM_TEST_LIBFABRIC2 NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-5}
mutants() { CARGO_TARGET_DIR=$home/build scripts/cargo mutants --output "$home/$part" "${what[@]}" "$@"; }

mkdir -p "$home/$part"
all=$(mutants --list | wc -l)
every=$((${count:-0} > 0 && ${count:-0} < all ? all / count : 1))
echo "$part: $all mutants, of which one in $every is tried"
# A mutant may fill the memory, or a file. Address space is no memory: heaps and devices are mapped
# ahead.
bounds='target."cfg(unix)".runner="prlimit --data=3000000000 --fsize=8000000000 --core=0"'
status=0
CARGO_PROFILE_CHECKED_INCREMENTAL=true mutants --profile checked --cap-lints true --cargo-arg "--config=$bounds" \
    --shard "$(((seed - 1) % every))/$every" --sharding round-robin "${@:4}" -- "${tests[@]}" || status=$?
# A mutant that was missed, or did not end, is a result and no failure.
[[ $status -eq 0 || $status -eq 2 || $status -eq 3 ]] || exit "$status"
count() { wc -l <"$home/$part/mutants.out/$1.txt"; }
caught=$(($(count caught) + $(count timeout))) missed=$(count missed)
echo "MEASURE mutants_${part}_caught $caught of $((caught + missed))"
