#!/usr/bin/env bash
# Runs the tests with every read and write of ours checked by AddressSanitizer:
#   scripts/sanitize.sh [FILTER]
# What it finds ends the process that did it, and so fails the test, with a text that begins "ERROR:
# AddressSanitizer". No nightly Rust is needed, only a rustc that carries the sanitizer's runtime,
# as rustup's do. What is not built here (libfabric, the standard library) is not checked itself;
# what it does to memory by the C library's functions is. With FILTER, only tests of the plugin
# whose names have it.
set -euo pipefail
cd "$(dirname "$0")/.."
filter=${1:-}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sanitize
host=$(scripts/cargo -vV | sed -n 's/^host: //p')
runtimes=$(rustc --print target-libdir)
if ! compgen -G "$runtimes/librustc-*_rt.asan.a" >/dev/null; then
    echo "This rustc has no runtime of AddressSanitizer in $runtimes: those of rustup have one" >&2
    exit 2
fi
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_LIBFABRIC2 NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-20}

# A plugin that is loaded has the sanitizer of the program that loads it, which has to lend its
# symbols. The variable lets a released rustc take the option.
checked() {
    env NVCC='' RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zsanitizer=address -Cforce-frame-pointers=yes -Clink-arg=-rdynamic' \
        CARGO_PROFILE_CHECKED_DEBUG=line-tables-only scripts/cargo test --locked --profile checked --target "$host" \
        --target-dir "$target" -p nvshmem-transport-libfabric -p engine -p ofi -p cuda --no-fail-fast "$@"
}
# Memory that the fabric may still write to is kept for good, and libfabric keeps some of its own:
# leaks count where there is no fabric. Tests ask for more memory than there is.
readonly OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1
if [[ -z $filter ]]; then
    ASAN_OPTIONS=$OPTIONS:detect_leaks=1 checked --test engine --test wire
    ASAN_OPTIONS=$OPTIONS:detect_leaks=0 checked --lib --test ofi --test memory --test channel --test nccl
    # What is no memory of the host's ends in a signal that the tests wait for.
    ASAN_OPTIONS=$OPTIONS:detect_leaks=0:handle_segv=0:handle_sigbus=0 checked --test cuda
fi
# The programs of `life` are C's and have no sanitizer to lend. NICs that are not there are not
# found under it.
echo "SKIPPED life, efa: they do not run under AddressSanitizer"
ASAN_OPTIONS=$OPTIONS:detect_leaks=0 checked --test plugin -- --skip life --skip efa:: ${filter:+"$filter"}
