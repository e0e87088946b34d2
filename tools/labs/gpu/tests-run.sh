#!/usr/bin/env bash
# Runs the suites on memory of this machine's GPU, with a kernel that stays on it in every PE:
#   ./run.sh [FILTER]
# NVSHMEM_TEST_LIBFABRIC2, if set, names a libfabric 2.x; without it native tcp is left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export NVSHMEM_TEST_GPU=1 NVSHMEM_TEST_PLUGIN_DIR=$here/lib NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-}
status=0
[[ $# -gt 0 ]] || "$here/cuda" gpu:: || status=1
"$here/plugin" "${1-staged::}" || status=1
exit "$status"
