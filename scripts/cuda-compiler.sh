#!/usr/bin/env bash
# Sees to it that there is an nvcc for the kernels of the device channel, and prints which. The
# order is that of cuda/kernels/build.rs; where there is none, one is fetched (nvshmem-wheels.sh).
# NVSHMEM_TEST_VERSIONS, set and empty, is for who wants nothing fetched: then kernels may be left
# out.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly FETCHED=.deps/nvshmem/cuda/bin/nvcc

if [[ -n ${NVCC+set} ]]; then
    echo "${NVCC:-none: NVCC is empty}"
    exit 0
fi
for nvcc in "$(command -v nvcc || true)" "${CUDA_HOME:-}/bin/nvcc" "${CUDA_PATH:-}/bin/nvcc" "$FETCHED"; do
    if [[ -f $nvcc ]]; then
        echo "$nvcc"
        exit 0
    fi
done
if [[ -z ${NVSHMEM_TEST_VERSIONS-unset} ]]; then
    echo "none: NVSHMEM_TEST_VERSIONS is empty"
    exit 0
fi
scripts/nvshmem-wheels.sh cuda >/dev/null
# Cargo watches the build script, and could not watch for a file that was not there.
touch build.rs
echo "$FETCHED"
