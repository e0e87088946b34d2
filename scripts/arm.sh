#!/usr/bin/env bash
# Builds tests for Arm and runs them on this machine under QEMU's user mode, with Debian's libfabric:
#   scripts/arm.sh
# Takes root, rustup and Debian's packages, which it installs; ends with status 2 where it lacks them.
# QEMU has no seccomp, no system call that copies between processes and no faults ...
set -euo pipefail
cd "$(dirname "$0")/.."
readonly TARGET=aarch64-unknown-linux-gnu BINFMT=/proc/sys/fs/binfmt_misc
lacking() {
    echo "No tests for Arm here: $1" >&2
    exit 2
}
[[ $(id -u) -eq 0 ]] || lacking "they need root"
[[ $(uname -m) == x86_64 ]] || lacking "this machine is no x86-64"
rustup target add "$TARGET" || lacking "rustup has no standard library for $TARGET"
apt-get install -q -y --no-install-recommends qemu-user gcc-aarch64-linux-gnu g++-aarch64-linux-gnu mmdebstrap ||
    lacking "Debian's packages are not to be had"
home=$(realpath -m "${CARGO_TARGET_DIR:-target}")/arm
# Libraries alone: QEMU opens what is in this tree in place of this machine's.
if [[ ! -e $home/root/usr ]]; then
    scripts/empty-dir.sh "$home/root"
    mmdebstrap --quiet --variant=extract --arch=arm64 --include=libfabric1,libstdc++6 bookworm - |
        tar -x -C "$home/root" ./lib ./usr/lib || lacking "..."
fi
