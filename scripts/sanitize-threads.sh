#!/usr/bin/env bash
# Runs the tests under ThreadSanitizer, which sees every access to memory of ours and reports two
# that nothing has ordered:
#   scripts/sanitize-threads.sh [FILTER]
# What threads wait by is the standard library's, so that is built for it too: rustc's sources are
# needed, as Debian's package rust-src has them, or 'rustup component add rust-src'; and clang,
# whose runtime it is. libfabric is not built for it: what it does to memory is not looked at.
# 'scripts/fresh.sh threads' makes a tree of Debian 13 that has all of it. With FILTER, only tests
# of the plugin whose names have it.
set -euo pipefail
cd "$(dirname "$0")/.."
filter=${1:-}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/threads
host=$(scripts/cargo -vV | sed -n 's/^host: //p')
sources=$(rustc --print sysroot)/lib/rustlib/src/rust/library
if [[ ! -d $sources/std ]]; then
    echo "There are no sources of the standard library in $sources: install rust-src" >&2
    exit 2
fi
if ! command -v clang++ >/dev/null; then
    echo "There is no clang++, whose runtime of ThreadSanitizer is needed: install clang" >&2
    exit 2
fi
version=$(clang++ -dumpversion)
if [[ ${version%%.*} -lt 15 ]]; then
    echo "clang++ is version $version, whose ThreadSanitizer lacks functions that rustc's code calls: install 15 or newer" >&2
    exit 2
fi
export RUSTC_BOOTSTRAP=1 NVCC=''

# Debian's sources come without the library's own lock file, and take what the compiler's has.
if [[ ! -e $sources/Cargo.lock ]]; then
    (
        cd "$sources"
        scripts=$OLDPWD/scripts
        "$scripts/cargo" generate-lockfile --quiet
        versions=$(sed -nE '/^name = /{s/name = "(.*)"/\1/;h;n;s/version = "(.*)"/\1/;x;G;s/\n/ /p}' ../Cargo.lock)
        while read -r name version; do
            # Of several versions, only those that the library's requirements allow are taken.
            if grep -q "^name = \"$name\"$" Cargo.lock; then
                "$scripts/cargo" update --quiet "$name" --precise "$version" 2>/dev/null || true
            fi
        done <<<"$versions"
    )
fi

NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_LIBFABRIC2 NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-5}
# Kernels' code is compiled for the CPU by the C++ compiler.
export CXX=clang++ CXXFLAGS='-fsanitize=thread -Wno-unknown-warning-option'
flags='-Zsanitizer=thread -Zexternal-clangrt -Cforce-frame-pointers=yes -Clinker=clang -Clink-arg=-fsanitize=thread'
export RUSTFLAGS="$flags -Clink-arg=-rdynamic" CARGO_PROFILE_CHECKED_DEBUG=line-tables-only
# Mutexes that libfabric has taken out of sight are no bugs, nor is what it copies by the C
# library's functions.
export TSAN_OPTIONS=history_size=4:allocator_may_return_null=1:report_mutex_bugs=0:ignore_noninstrumented_modules=1

checked() {
    scripts/cargo test -Zbuild-std --locked --profile checked --target "$host" --target-dir "$target" \
        -p nvshmem-transport-libfabric -p engine -p ofi -p cuda --no-fail-fast "$@"
}
[[ -n $filter ]] || checked --lib --test engine --test channel
# The programs of `life` are C's and have no runtime to lend. NICs that are not there are not found
# under it.
echo "SKIPPED life, efa: they do not run under ThreadSanitizer"
checked --test plugin -- --skip life --skip efa:: ${filter:+"$filter"}
