#!/usr/bin/env bash
# Compiles and links the programs for NCCL's RMA and GIN against releases of NCCL, and runs what
# needs no GPU:
#   scripts/nccl-programs.sh DIRECTORY
# DIRECTORY/VERSION gets the programs for each version. NCCL_TEST_VERSIONS names the versions, whose
# wheels are fetched, 200 to 300 MB each; set and empty, all of this is skipped, and that is said.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
read -ra versions <<<"${NCCL_TEST_VERSIONS-2.30.7 2.32.3}"

if [[ ${#versions[@]} -eq 0 ]]; then
    echo "SKIPPED NCCL programs: NCCL_TEST_VERSIONS is empty"
    exit 0
fi
if [[ $(uname -m) != x86_64 ]]; then
    echo "SKIPPED NCCL programs: no wheels of NCCL are listed for $(uname -m)"
    exit 0
fi
cuda=$(scripts/nvshmem-wheels.sh cuda | cut -d' ' -f2)
programs=0
for version in "${versions[@]}"; do
    nccl=$(scripts/nvshmem-wheels.sh "nccl-$version" | cut -d' ' -f2)
    echo "== NCCL programs against $version, sm_90"
    make --no-print-directory -s -j "$(nproc)" -C cuda/nccl NCCL="$nccl" CUDA="$cuda" ARCHS=90 \
        OUT="$out/$version" programs
    for program in gin gin-times put-signal; do
        usage=$("$out/$version/$program" --help)
        [[ $usage == "usage: $program "* ]] || { echo "$program --help prints '$usage'" >&2; exit 1; }
        programs=$((programs + 1))
    done
done
echo "$programs NCCL programs link and start, against ${versions[*]}"
