#!/usr/bin/env bash
# Changes the code in small ways, one at a time, and counts what the tests notice; tools/mutants is
# what does it.
#   [MODULE=NAME] [LIST=FILE] [EACH=SECONDS] scripts/mutants.sh engine|abi|job|channel|cuda|ofi [COUNT [SEED]]
# Without COUNT all mutants of the part are tried; with it so many, drawn by SEED (1). With MODULE
# those alone whose file or function has the name in it, as recovery; with LIST those of an earlier
# missed.txt. No test begins later than EACH seconds after the first of a mutant (60). What came of
# each is in target/mutants/PART afterwards; docs/testing.md says what stays and why. All parts but
# the engine are in one build, with the suites that drive the plugin.
#   scripts/mutants.sh PART --kit
# Only builds: the kit has a run.sh then. That of the engine runs on a machine without Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1 count=${2:-} seed=${3:-1}

home=$(realpath -m "${CARGO_TARGET_DIR:-target}/mutants")
case $part in
engine)
    kit=engine only=
    what=(--module crates/engine/src/lib.rs --root crates/engine/src/lib.rs)
    tests=(test --package engine --lib --test engine --test wire --test model)
    limits=(--longest 5) bounds='ulimit -v 4000000'
    ;;
abi | job | channel) kit=plugin only=src/$part/ ;;
cuda | ofi) kit=plugin only=crates/$part/ ;;
*)
    echo "No part '$part': engine, abi, job, channel, cuda or ofi." >&2
    exit 2
    ;;
esac
if [[ $kit == plugin ]]; then
    what=()
    for name in abi job channel; do
        what+=(--module "src/$name/mod.rs" --root src/lib.rs)
    done
    for name in cuda ofi; do
        what+=(--module "crates/$name/src/lib.rs" --root "crates/$name/src/lib.rs")
    done
    tests=(test --profile checked --package nvshmem-transport-libfabric --package ofi --package cuda
        --package nvshmem-libfabric --lib --test plugin --test channel --test ring --test nccl --test cuda
        --test ofi --test topology --test tool)
    # A suite's test may be several processes, of which two keep two cores busy. Left out is what
    # takes minutes, and what loads no plugin of ours.
    limits=(--isolated --jobs 2 --longest 12 --times 4 --each "${EACH:-60}" --rows 1)
    for suite in soak faults strangers storm largest; do
        limits+=(--skip "plugin $suite")
    done
    for suite in order host_order wrong_plugin; do
        limits+=(--skip "nccl $suite")
    done
    for suite in docs packages install info run qualify hosts output perf trace self; do
        limits+=(--skip "tool $suite")
    done
    # Address space is no memory: heaps of symmetric memory and devices are mapped ahead.
    bounds='ulimit -d 3000000; ulimit -f 8000000'
fi
out=$home/$part copy=$home/$kit/copy build=$home/$kit/build kit=$home/$kit/kit
mkdir -p "$copy" "$out"
git ls-files -z --cached --others --exclude-standard | scripts/copy-changed.sh "$copy"
# What tests fetch or find there.
[[ ! -e .deps ]] || ln -sfn "$PWD/.deps" "$copy/.deps"

if [[ -z ${NVSHMEM_TEST_LIBFABRIC2+set} && $part != engine ]]; then
    NVSHMEM_TEST_LIBFABRIC2=$(scripts/libfabric2.sh)
    export NVSHMEM_TEST_LIBFABRIC2
fi
scripts/cargo build --locked --profile checked -p nvshmem-mutants
tool=$(realpath "${CARGO_TARGET_DIR:-target}")/checked/nvshmem-mutants
cargo=$(realpath scripts/cargo)
# As the profile checked; not that itself, for the dependencies of the engine alone are few.
export CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_TEST_DEBUG=false CARGO_PROFILE_TEST_STRIP=true
sources=$(git ls-files -z --cached --others --exclude-standard -- '*.rs' '*.toml' '*.lock' ':!tools/mutants' |
    xargs -0 sha256sum | sha256sum)
# What is built for these sources stays, with what is known of its tests.
if [[ ! -e $kit/sources || $(<"$kit/sources") != "$sources" ]]; then
    CARGO_TARGET_DIR=$build "$tool" make "${what[@]}" --copy "$copy" --kit "$kit" -- \
        "$cargo" "${tests[@]}" --no-run
    # A process loads one libfabric, so its objects have a program for the second one.
    if [[ -e $kit/bin/ofi && -n $NVSHMEM_TEST_LIBFABRIC2 ]]; then
        cat >"$kit/bin/ofi_2" <<END
#!/bin/sh
OFI_TEST_LIBRARY='$NVSHMEM_TEST_LIBFABRIC2' exec "\$(dirname "\$0")/ofi" "\$@"
END
        chmod +x "$kit/bin/ofi_2"
    fi
    echo "$sources" >"$kit/sources"
fi
cp "$tool" "$kit/"
cat >"$kit/run.sh" <<END
#!/bin/sh
# Tries the mutants; results go to the directory OUT, or beside this file.
cd "\$(dirname "\$0")" || exit 1
# A mutant may fill the memory, or a file.
ulimit -c 0
$bounds
export NVSHMEM_TEST_LIBFABRIC2=\${NVSHMEM_TEST_LIBFABRIC2-'${NVSHMEM_TEST_LIBFABRIC2:-}'}
exec ./nvshmem-mutants run --kit . --out "\${OUT:-out}"$(printf ' %q' "${limits[@]}") "\$@"
END
chmod +x "$kit/run.sh"
[[ $count != --kit ]] || exit 0
[[ -z ${LIST:-} ]] || LIST=$(realpath "$LIST")
OUT=$out "$kit/run.sh" --name "$part" ${only:+--part "$only"} ${count:+--count "$count" --seed "$seed"} ${MODULE:+--only "$MODULE"} ${LIST:+--list "$LIST"}
