#!/usr/bin/env bash
# Collects in DIRECTORY what NVSHMEM programs need to run through this transport on a machine that
# has a GPU, nvcc, make, a C++ compiler and an NVSHMEM, and no Rust:
#   scripts/gpu-kit.sh PLUGIN_DIRECTORY DIRECTORY
# DIRECTORY/run.sh builds the programs there and runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
plugins=$1
to=$2
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

scripts/cargo build --locked --release -p nvshmem-gpu-run -p channel-check -p nvshmem-libfabric \
    -p nvshmem-libfabric-channel
libfabric2=$(scripts/libfabric2.sh)

scripts/empty-dir.sh "$to"
mkdir -p "$to/bin" "$to/lib"
cp -P "$plugins"/nvshmem_transport_libfabric.so* "$plugins"/libnccl-rma-nvshmem-libfabric.so "$to/lib/"
cp "$target/release/nvshmem-gpu-run" "$target/release/nvshmem-channel-check" "$to/"
cp "$target/release/libnvshmem_libfabric_channel.so" "$to/lib/"
# It finds the plugin files in ../lib: bin/nvshmem-libfabric qualify.
cp "$target/release/nvshmem-libfabric" "$to/bin/"
for file in "$to/nvshmem-gpu-run" "$to/nvshmem-channel-check" "$to"/bin/* "$to"/lib/*; do
    [[ -L $file ]] || objcopy --strip-debug "$file"
done
# Without a clang, the programs for Triton and Numba say what they lack.
scripts/device-bitcode.sh "$to/lib/libnvshmem_libfabric_device" || [[ $? == 3 ]]
# The systems that have one have 1.17, mostly; native tcp is in 2.x.
cp -L "$libfabric2" "$to/libfabric.so.1"
mkdir "$to/programs"
cp -r cuda/nvshmem cuda/nccl "$to/programs"
cp -r tools/labs/gpu/clients "$to/clients"
cp scripts/gpu-kit-run.sh "$to/run.sh"
cp scripts/gpu-kit-experts.sh "$to/experts.sh"
cp scripts/gpu-kit-peers.sh "$to/peers.sh"
cp -r tools/labs/gpu/peers "$to/peers"
echo "$to: carry it to a machine with a GPU, nvcc and an NVSHMEM, and start run.sh there"
