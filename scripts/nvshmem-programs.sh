#!/usr/bin/env bash
# Compiles and links the NVSHMEM programs against releases of NVSHMEM, and runs what needs no GPU.
#   scripts/nvshmem-programs.sh DIRECTORY [PROGRAM]...
# DIRECTORY/VERSION gets the programs for each version; those that are named, where some are, and
# all of them as one object then, which takes a quarter of the time. What has not changed is not
# built again. NVSHMEM_TEST_VERSIONS names the versions; set and empty, all of this is skipped, and
# that is said. NVSHMEM_TEST_ARCHS names the GPUs, as compute capabilities; one is enough to see
# that it compiles.
set -euo pipefail
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."
linked=("$@")
[[ $# -gt 0 ]] || mapfile -t linked < <(basename -s .cu cuda/nvshmem/*.cu)
read -ra versions <<<"${NVSHMEM_TEST_VERSIONS-3.4.5 3.6.5 3.8.0}"
archs=${NVSHMEM_TEST_ARCHS-90}

if [[ ${#versions[@]} -eq 0 ]]; then
    echo "SKIPPED NVSHMEM programs: NVSHMEM_TEST_VERSIONS is empty"
    exit 0
fi

# The fetched prefix of a name.
declare -A prefix
while read -r name path; do
    prefix[$name]=$path
done <<<"$(scripts/nvshmem-wheels.sh cuda "${versions[@]}")"

make --no-print-directory -s -C cuda/nvshmem OUT="$out" test

wrong=0
complain() {
    echo "$1: $2" >&2
    wrong=$((wrong + 1))
}

# Programs start without a driver as far as their options, which needs NVSHMEM's library to load.
check_program() {
    local program=$1 usage status=0
    readelf --dynamic --wide "$program" | grep -q 'NEEDED.*\[libnvshmem_host.so.3\]' ||
        complain "$program" "does not need libnvshmem_host.so.3"
    usage=$("$program" --help) || complain "$program" "--help ends with status $?"
    [[ $usage == "usage: ${program##*/} "* ]] || complain "$program" "--help prints '$usage'"
    "$program" --no-such-option 1 >/dev/null 2>&1 || status=$?
    [[ $status -eq 2 ]] || complain "$program" "a bad option ends with status $status, not 2"
}

programs=0
for version in "${versions[@]}"; do
    echo "== NVSHMEM programs against $version, sm_${archs// / sm_}"
    goals=("${linked[@]/#/$out/$version/}" "$out/$version/abi.o")
    [[ $# -eq 0 ]] || goals+=(together)
    make --no-print-directory -s -j "$(nproc)" -C cuda/nvshmem NVSHMEM="${prefix[$version]}" \
        CUDA="${prefix[cuda]}" ARCHS="$archs" OUT="$out/$version" "${goals[@]}"
    for program in "${linked[@]}"; do
        check_program "$out/$version/$program"
        programs=$((programs + 1))
    done
done
if [[ $wrong -gt 0 ]]; then
    exit 1
fi
echo "$programs NVSHMEM programs link and start, against ${versions[*]}; the sources of all compile"
