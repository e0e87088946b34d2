#!/usr/bin/env bash
# Changes the code in small ways, one at a time, and counts what the tests notice: cargo-mutants
# (https://mutants.rs), on a copy of the tree.
#   [MODULE=NAME] scripts/mutants.sh engine|abi|job|channel|cuda|ofi [COUNT [SEED [OPTION...]]]
# Without COUNT all mutants of the part are tried; with it about so many, evenly spread over the
# part, and others for each SEED (1). With MODULE those alone whose file or function has the name in
# it, as recovery. OPTIONs are cargo-mutants' own, such as --iterate. What came of each mutant is in
# target/mutants/PART/mutants.out afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=26.0.0 # the newest that Rust 1.85 builds
part=$1 count=${2:-} seed=${3:-1}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
home=$target/mutants
readonly PLUGIN=nvshmem-transport-libfabric

case $part in
engine)
    what=(--package engine)
    tests=(--lib --test engine --test wire --test model)
    ;;
abi | job)
    what=(--package "$PLUGIN" --file "src/$part/**")
    # Without rows of covering arrays, and what takes minutes.
    tests=(--lib --test channel --test plugin -- --skip _pes_)
    for suite in staged efa cxi faults soak strangers; do
        tests+=(--skip "$suite::")
    done
    ;;
channel)
    what=(--package "$PLUGIN" --file "src/$part/**")
    tests=(--lib --test channel --test ring)
    ;;
cuda | ofi)
    what=(--package "$part")
    tests=(--package "$PLUGIN" --lib --test channel --test "$part")
    ;;
*)
    echo "No part '$part': engine, abi, job, channel, cuda or ofi." >&2
    exit 2
    ;;
esac

if ! command -v cargo-mutants >/dev/null && [[ ! -x $target/cargo-mutants/bin/cargo-mutants ]]; then
    # It waits for builds and tests: that it is built soon matters more than that it is fast.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=64 \
        scripts/cargo install --quiet --locked --root "$target/cargo-mutants" "cargo-mutants@$VERSION" || {
        echo "SKIPPED mutants: there is no cargo-mutants here, and it cannot be installed"
        exit 0
    }
fi
PATH=$PATH:$target/cargo-mutants/bin

mkdir -p "$home/copy" "$home/$part"
git ls-files -z --cached --others --exclude-standard | scripts/copy-changed.sh "$home/copy"
# What tests fetch or find there.
[[ ! -e .deps ]] || ln -sfn "$PWD/.deps" "$home/copy/.deps"
if [[ -z ${NVSHMEM_TEST_LIBFABRIC2+set} && $part != engine ]]; then
    NVSHMEM_TEST_LIBFABRIC2=$(scripts/libfabric2.sh)
    export NVSHMEM_TEST_LIBFABRIC2
fi

# What audits lanes is compiled for tests alone.
what+=(--exclude-re audit --output "$home/$part" "${@:4}")
[[ -z ${MODULE:-} ]] || what+=(--re "$MODULE")
mutants() { CARGO_TARGET_DIR=$home/build scripts/cargo mutants --dir "$home/copy" "${what[@]}" "$@"; }

all=$(mutants --list | wc -l)
every=$((${count:-0} > 0 && ${count:-0} < all ? all / count : 1))
[[ $all -gt 0 ]] || { echo "There is no such mutant." >&2; exit 1; }
echo "$part: $all mutants, of which one in $every is tried"
# Enough for most mutants; more take minutes of each.
export NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-5}
# A mutant may fill the memory, or a file. Address space is no memory: heaps of symmetric memory and
# devices are mapped ahead.
bounds='target."cfg(unix)".runner="prlimit --data=3000000000 --fsize=8000000000 --core=0"'
status=0
# The builds of one mutant after the other share most. What a lint says of one is not asked.
CARGO_PROFILE_CHECKED_INCREMENTAL=true mutants --in-place --profile checked --cap-lints true \
    --cargo-arg "--config=$bounds" --shard "$(((seed - 1) % every))/$every" --sharding round-robin \
    -- "${tests[@]}" || status=$?
# A mutant that was missed, or did not end, is a result and no failure.
[[ $status -eq 0 || $status -eq 2 || $status -eq 3 ]] || exit "$status"

said() { wc -l <"$home/$part/mutants.out/$1.txt"; }
missed=$(said missed) caught=$(($(said caught) + $(said timeout)))
tried=$((missed + caught))
[[ $tried -gt 0 ]] || { echo "No mutant was tried: none can be built." >&2; exit 1; }
echo "MEASURE mutants_${part}_tried $tried mutants"
echo "MEASURE mutants_${part}_missed $missed mutants"
awk -v part="$part" -v caught="$caught" -v tried="$tried" \
    'BEGIN { printf "MEASURE mutants_%s_caught_percent %.1f %%\n", part, 100 * caught / tried }'
