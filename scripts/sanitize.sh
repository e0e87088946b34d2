#!/usr/bin/env bash
# Runs tests with every access to memory of ours checked by one of two sanitizers:
#   scripts/sanitize.sh address|threads [FILTER]
# A finding ends its process, and so fails the test. FILTER: only tests of the plugin whose names
# have it. AddressSanitizer takes a rustc that carries its runtime, as rustup's do; ThreadSanitizer
# takes the sources of the standard library (rust-src), which is built for it too, and clang 15 or
# newer. libfabric is built for neither, and not checked. Ends with status 2 where something lacks.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1 filter=${2:-}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sanitize-$kind
host=$(scripts/cargo -vV | sed -n 's/^host: //p')
lacking() {
    echo "$1" >&2
    exit 2
}
# A plugin that is loaded has the sanitizer of the program that loads it, which has to lend its
# symbols.
flags='-Cforce-frame-pointers=yes -Clink-arg=-rdynamic' std=()
case $kind in
address)
    runtimes=$(rustc --print target-libdir)
    compgen -G "$runtimes/librustc-*_rt.asan.a" >/dev/null ||
        lacking "This rustc has no runtime of AddressSanitizer in $runtimes: those of rustup have one."
    flags+=' -Zsanitizer=address'
    ;;
threads)
    sources=$(rustc --print sysroot)/lib/rustlib/src/rust/library
    [[ -d $sources/std ]] || lacking "There are no sources of the standard library in $sources: install rust-src."
    [[ $(clang++ -dumpversion 2>/dev/null | cut -d. -f1) -ge 15 ]] || lacking "There is no clang++ 15 or newer."
    flags+=' -Zsanitizer=thread -Zexternal-clangrt -Clinker=clang -Clink-arg=-fsanitize=thread'
    std=(-Zbuild-std)
    # Kernels' code is compiled for the CPU by the C++ compiler.
    export CXX=clang++ CXXFLAGS='-fsanitize=thread -Wno-unknown-warning-option'
    # Mutexes that libfabric has taken out of sight are no bugs, nor is what it copies.
    export TSAN_OPTIONS=history_size=4:allocator_may_return_null=1:report_mutex_bugs=0:ignore_noninstrumented_modules=1
    ;;
*) echo "usage: scripts/sanitize.sh address|threads [FILTER]" >&2 && exit 64 ;;
esac
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_LIBFABRIC2 NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-5}
# The variable lets a released rustc take options of nightly ones.
export NVCC='' RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags CARGO_PROFILE_CHECKED_DEBUG=line-tables-only
checked() {
    scripts/cargo test "${std[@]}" --locked --profile checked --target "$host" --target-dir "$target" \
        -p nvshmem-transport-libfabric -p engine -p ofi -p cuda --no-fail-fast "$@"
}
# Memory that the fabric may still write is kept for good, and libfabric keeps some of its own: leaks
# count where there is no fabric. Tests ask for more memory than there is.
address_options=detect_stack_use_after_return=1:allocator_may_return_null=1
if [[ -z $filter ]]; then
    ASAN_OPTIONS=$address_options:detect_leaks=1 checked --test engine
    ASAN_OPTIONS=$address_options:detect_leaks=0 checked --lib --test ofi --test channel --test nccl
    # Device memory that the CPU touches ends in a signal that the tests wait for.
    [[ $kind == threads ]] || ASAN_OPTIONS=$address_options:detect_leaks=0:handle_segv=0:handle_sigbus=0 checked --test cuda
fi
# The programs of `life` are C's and have no sanitizer to lend.
ASAN_OPTIONS=$address_options:detect_leaks=0 checked --test plugin -- --skip life ${filter:+"$filter"}
