#!/usr/bin/env bash
# Builds tests and packages for Arm and runs them under QEMU's user mode, with Debian's libfabric and a 2.x:
#   scripts/arm.sh
# Takes an x86-64, root, rustup and Debian's packages; ends with status 2 where one lacks. QEMU keeps
# x86-64's order of memory accesses: Arm's is for tests/loom.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly TARGET=aarch64-unknown-linux-gnu BINFMT=/proc/sys/fs/binfmt_misc
home=$(realpath -m "${CARGO_TARGET_DIR:-target}")/arm
[[ $(id -u) -eq 0 && $(uname -m) == x86_64 ]] && rustup target add "$TARGET" || exit 2
apt-get install -q -y --no-install-recommends qemu-user mmdebstrap {gcc,g++}-aarch64-linux-gnu || exit 2
if [[ ! -e $home/root/complete ]]; then
    scripts/empty-dir.sh "$home/root"
    # Libraries alone: what is in this tree hides the machine's own files.
    mmdebstrap --quiet --variant=extract --arch=arm64 --include=libfabric1,libstdc++6 bookworm "$home/root.tar" || exit 2
    tar -x -f "$home/root.tar" -C "$home/root" ./lib ./usr/lib
    touch "$home/root/complete"
fi
# For programs that tests start, and compile.
mkdir -p "$home/bin" && ln -sfn /usr/bin/aarch64-linux-gnu-gcc "$home/bin/cc"
[[ -e $BINFMT/register ]] || mount -t binfmt_misc binfmt_misc "$BINFMT" || exit 2
[[ -e $BINFMT/qemu-aarch64 ]] || { trap 'echo -1 >"$BINFMT/qemu-aarch64"' EXIT && printf %s '@qemu-aarch64@M@@\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00@' \
    '\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff@/usr/bin/qemu-aarch64@FP' >"$BINFMT/register"; }
NVSHMEM_TEST_LIBFABRIC2=$(scripts/libfabric2.sh '' aarch64)
export NVSHMEM_TEST_LIBFABRIC2 NVSHMEM_TEST_FULL='' NVSHMEM_TEST_SEEDS=5 NVCC='' QEMU_LD_PREFIX=$home/root
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="env PATH=$home/bin:$PATH"
# QEMU has no seccomp.
scripts/cargo test --locked --profile checked --target "$TARGET" --workspace --exclude channel-loom --no-fail-fast \
    --lib --bins --test engine --test ofi --test plugin --test channel --test nccl --test cuda --test units -- --skip filtered_system_calls
CARGO_BUILD_TARGET=$TARGET CROSS_COMPILE=aarch64-linux-gnu- make --no-print-directory package
"$home/../$TARGET/package-prefix/bin/nvshmem-libfabric" perf --provider tcp --devices 127.0.0.1
