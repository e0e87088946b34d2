#!/usr/bin/env bash
# Times the all-to-alls of a mixture of experts on NVSHMEM's device API and on our device channel,
# by turns, and prints what each takes in µs, medians, and the ratio:
#   [PROVIDERS="shm tcp"] [RUNS=3] experts.sh NVSHMEM PROGRAMS [LIBFABRIC]
# Two PEs, 128 tokens each, of 7 168 bfloat16, 8 of 16 experts for each token, all data compared.
# What 'make gpu-kit' has put beside this script is needed, and PROGRAMS that run.sh has built. PEs
# of one GPU run under CUDA's multi-process service.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
nvshmem=$1 programs=$2 libfabric=${3:-}
runs=${RUNS:-3}
[[ -z $libfabric ]] || export NVSHMEM_LIBFABRIC_LIBRARY=$libfabric

scratch=$(mktemp -d)
end() {
    [[ -z ${CUDA_MPS_PIPE_DIRECTORY:-} || ! -d $scratch/pipes ]] || echo quit | nvidia-cuda-mps-control >"$scratch/quit" 2>&1 || true
    rm -rf "$scratch"
}
trap end EXIT
if [[ $(nvidia-smi -L | wc -l) -lt 2 ]]; then
    mkdir "$scratch/pipes" "$scratch/logs"
    export CUDA_MPS_PIPE_DIRECTORY=$scratch/pipes CUDA_MPS_LOG_DIRECTORY=$scratch/logs CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50
    nvidia-cuda-mps-control -d
fi

# Each prints the µs of a round, or nothing and the reason on the other stream.
on_nvshmem() { # on_nvshmem PROVIDER
    "$here/nvshmem-gpu-run" --nvshmem "$nvshmem" --plugin-dir "$here/lib" --programs "$programs" --only experts --mps off \
        ${libfabric:+--libfabric "$libfabric"} --providers "$1" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; return 1; }
    awk '$2 == "128" && $3 == "tokens" { print $4 }' "$scratch/said"
}
on_channel() { # on_channel PROVIDER
    "$here/nvshmem-channel-check" --require-gpu --job --experts --memory device --providers "$1" >"$scratch/said" 2>&1 ||
        { cat "$scratch/said" >&2; return 1; }
    awk '$1 == "MEASURE" { print $3 }' "$scratch/said"
}
# Fails where there is nothing to take it of.
median() { sort -g | awk '{ value[NR] = $1 } END { if (!NR) exit 1; print value[int((NR + 1) / 2)] }'; }
# The same, and says of what.
measured() { # measured WHAT FILE
    median <"$2" || { echo "$1 has printed no figure" >&2; return 1; }
}

for provider in ${PROVIDERS:-shm tcp}; do
    for ((run = 0; run < runs; run++)); do
        on_nvshmem "$provider" >>"$scratch/nvshmem-$provider"
        on_channel "$provider" >>"$scratch/channel-$provider"
    done
    a=$(measured "NVSHMEM over $provider" "$scratch/nvshmem-$provider")
    b=$(measured "the channel over $provider" "$scratch/channel-$provider")
    echo "MEASURE experts_nvshmem_128_tokens_us_$provider $a"
    echo "MEASURE experts_channel_128_tokens_us_$provider $b"
    echo "MEASURE experts_channel_over_nvshmem_$provider $(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.2f", b / a }')"
done
