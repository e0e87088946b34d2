#!/usr/bin/env bash
# Runs the suites whose memory is on a device: a part of what 'make test' runs.
#   scripts/test-staged.sh PLUGIN_DIRECTORY CUDA_DIRECTORY
# NVSHMEM_TEST_LIBFABRIC2 as for scripts/test.sh. With NVSHMEM_TEST_GPU set the device is a real one.
set -euo pipefail
cd "$(dirname "$0")/.."

NVSHMEM_TEST_PLUGIN_DIR=$1
NVSHMEM_TEST_FAKE_CUDA=$2
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_PLUGIN_DIR NVSHMEM_TEST_FAKE_CUDA NVSHMEM_TEST_LIBFABRIC2
scripts/cargo test --locked --release --test cuda
exec scripts/cargo test --locked --release --test plugin -- staged::
