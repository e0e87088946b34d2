#!/usr/bin/env bash
# Collects what the suites on device memory need on a machine that has a GPU and no toolchain.
#   scripts/gpu-tests.sh PLUGIN_DIRECTORY DIRECTORY
# The machine needs CUDA's driver and a libfabric of 1.17 or newer. DIRECTORY/run.sh runs them
# there.
set -euo pipefail
cd "$(dirname "$0")/.."
plugins=$1
to=$2

# Prints the executable of a test program, built as shipped.
executable() {
    scripts/cargo test --locked --release --no-run --test "$1" --message-format json 2>/dev/null |
        sed -nE '/"kind":\["test"\]/s/.*"executable":"([^"]+)".*/\1/p' | tail -n 1
}

scripts/empty-dir.sh "$to"
mkdir -p "$to/lib"
for test in plugin cuda; do
    # A failed build says why here.
    scripts/cargo test --locked --release --no-run --test "$test"
    built=$(executable "$test")
    if [[ -z $built ]]; then
        echo "cargo does not say where it has built the test program $test" >&2
        exit 1
    fi
    # Symbols stay, for backtraces; line numbers are most of the size.
    objcopy --strip-debug "$built" "$to/$test"
done
cp -P "$plugins"/nvshmem_transport_libfabric.so* "$to/lib/"
for library in "$to"/lib/*; do
    [[ -L $library ]] || objcopy --strip-debug "$library"
done
cp scripts/gpu-tests-run.sh "$to/run.sh"
echo "$to: carry it to a machine with a GPU and start run.sh there"
