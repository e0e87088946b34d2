#!/usr/bin/env bash
# Runs the suites on memory of this machine's GPU, with a kernel that stays on it in every PE.
#   ./run.sh [FILTER]
# What 'make gpu-tests' has put beside this script is all they need but CUDA's driver and a
# libfabric. NVSHMEM_TEST_LIBFABRIC2, if set, names a libfabric 2.x; without it native tcp is left
# out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

export NVSHMEM_TEST_GPU=1
export NVSHMEM_TEST_PLUGIN_DIR=$here/lib
export NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-}
status=0
if [[ $# -eq 0 ]]; then
    "$here/cuda" gpu:: || status=1
fi
"$here/plugin" "${1-staged::}" || status=1
exit "$status"
