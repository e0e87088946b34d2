#!/usr/bin/env bash
# Changes the code in small ways, one at a time, and counts what the tests notice; tools/mutants is
# what does it.
#   [MODULE=NAME] [LIST=FILE] scripts/mutants.sh engine|abi|channel|ofi [COUNT [SEED]]
# Without COUNT all mutants of the part are tried; with it so many, drawn by SEED (1). With MODULE
# those alone whose file or function has the name in it, as recovery; with LIST those of an earlier
# missed.txt. What came of each is in target/mutants/PART afterwards; docs/testing.md says what
# stays and why.
#   scripts/mutants.sh PART --kit
# Only builds: target/mutants/PART/kit has a run.sh then, which tries them on a machine without
# Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1 count=${2:-} seed=${3:-1}

out=$(realpath -m "${CARGO_TARGET_DIR:-target}/mutants")/$part
copy=$out/copy
case $part in
engine)
    what=(--module crates/engine/src/lib.rs --root crates/engine/src/lib.rs)
    tests=(--package engine --lib --test engine --test wire --test model)
    ;;
ofi)
    what=(--module crates/ofi/src/lib.rs --root crates/ofi/src/lib.rs)
    tests=(--package ofi --lib --test ofi --test topology)
    ;;
abi | channel)
    what=(--module "src/$part/mod.rs" --root src/lib.rs)
    tests=(--package nvshmem-transport-libfabric --lib)
    ;;
*)
    echo "No part '$part': engine, abi, channel or ofi." >&2
    exit 2
    ;;
esac
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard | scripts/copy-changed.sh "$copy"

scripts/cargo build --locked --profile checked -p nvshmem-mutants
tool=$(realpath "${CARGO_TARGET_DIR:-target}")/checked/nvshmem-mutants
cargo=$(realpath scripts/cargo)
# As the profile checked; not that itself, for the dependencies of the engine alone are few.
export CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_TEST_DEBUG=false CARGO_PROFILE_TEST_STRIP=true
CARGO_TARGET_DIR=$out/build "$tool" make "${what[@]}" --copy "$copy" --kit "$out/kit" -- \
    "$cargo" test --no-run "${tests[@]}"
cat >"$out/kit/run.sh" <<EOF
#!/bin/sh
# Tries the mutants; results go to the directory OUT, or beside this file.
cd "\$(dirname "\$0")" || exit 1
# A mutant may fill the memory.
ulimit -c 0
ulimit -v 4000000
exec ./nvshmem-mutants run --kit . --out "\${OUT:-out}" --name $part "\$@"
EOF
chmod +x "$out/kit/run.sh"
[[ $count != --kit ]] || exit 0
[[ -z ${LIST:-} ]] || LIST=$(realpath "$LIST")
OUT=$out "$out/kit/run.sh" ${count:+--count "$count" --seed "$seed"} ${MODULE:+--only "$MODULE"} ${LIST:+--list "$LIST"}
