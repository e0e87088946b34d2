#!/usr/bin/env bash
# Runs every test of the workspace and sums what they report.
#   scripts/test.sh PLUGIN_DIRECTORY CUDA_DIRECTORY
# The plugins in PLUGIN_DIRECTORY, from 'make install', are what the multi-process suites load. The
# driver in CUDA_DIRECTORY, from 'make fake-cuda', gives them devices.
# NVSHMEM_TEST_LIBFABRIC2 names a libfabric 2.x to run against as well. Where it is not set one is
# fetched; set and empty, the tests that need it are skipped and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

NVSHMEM_TEST_PLUGIN_DIR=$1
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
NVSHMEM_TEST_FAKE_CUDA=$2
export NVSHMEM_TEST_PLUGIN_DIR NVSHMEM_TEST_LIBFABRIC2 NVSHMEM_TEST_FAKE_CUDA
# With a compiler, kernels that are missing are a failure.
if [[ $(scripts/cuda-compiler.sh) != none:* ]]; then
    export NVSHMEM_TEST_KERNELS=1
fi
# The reports are read below.
export CARGO_TERM_COLOR=never

scripts/check-plugin.sh "$NVSHMEM_TEST_PLUGIN_DIR"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
suite() {
    echo "== cargo test $*"
    scripts/cargo test --locked --no-fail-fast "$@" 2>&1 | tee -a "$log" || status=1
}
# The unit tests with overflow checks and debug assertions, the suites that move data as shipped.
suite --workspace --lib --bins
suite --workspace --doc
suite --workspace --release --test '*'
if [[ -n $NVSHMEM_TEST_LIBFABRIC2 ]]; then
    # A process loads one libfabric, so the other one takes another run.
    export OFI_TEST_LIBRARY=$NVSHMEM_TEST_LIBFABRIC2
    suite --release --test ofi
fi

# Each test program ends with "test result: ok. P passed; F failed; I ignored; ...".
read -r passed failed ignored < <(
    awk '/^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) p += $(i - 1)
            if ($i ~ /^failed/) f += $(i - 1)
            if ($i ~ /^ignored/) g += $(i - 1)
        }
    } END { print p + 0, f + 0, g + 0 }' "$log"
)
# No sum is given when a program is missing from it.
programs=$(grep -cE '^ +(Running|Doc-tests) ' "$log" || true)
results=$(grep -c '^test result: ' "$log" || true)
if grep -q '^error: could not compile' "$log" || [[ $results -lt $programs ]] ||
    [[ $status -ne 0 && $failed -eq 0 ]]; then
    echo "A test program could not be built or ended without a result: see above." >&2
    exit 1
fi
if [[ $ignored -gt 0 ]]; then
    echo "$ignored ignored: the reason stands beside each"
fi
echo "$passed passed, $failed failed"
exit "$status"
