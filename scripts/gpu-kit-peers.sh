#!/usr/bin/env bash
# Times NCCL, that of python3's PyTorch, and this transport by turns between two GPUs of this host,
# and prints a table of µs, medians, and ratios:
#   [RUNS=3] [RAILS=127.0.0.1,127.0.0.2,...] peers.sh NVSHMEM PROGRAMS [LIBFABRIC]
# P2P is off on both sides. NCCL goes over shared memory, over sockets as they come, and over
# sockets with four threads of four sockets each. Ours are puts with their quiet of 8 MiB, and puts
# with signal, one way, of 8 bytes to 1 MiB: over shm and tcp where PEs share their bounce memory,
# and over tcp with one rail and four where they do not, as between hosts. What 'make gpu-kit' has
# put beside this script is needed, and PROGRAMS that run.sh has built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
nvshmem=$1 programs=$2 libfabric=${3:-}
runs=${RUNS:-3}
rails=${RAILS:-127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4}

[[ $(nvidia-smi -L | wc -l) -ge 2 ]] || { echo "it takes two GPUs" >&2; exit 2; }
python3 -c 'import torch.distributed' 2>/dev/null || { echo "python3 has no PyTorch" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

nccl() { # nccl NAME VARIABLES...
    local name=$1
    shift
    env NCCL_P2P_DISABLE=1 "$@" python3 "$here/peers/nccl.py" ${what[@]+"${what[@]}"} >"$scratch/said" 2>"$scratch/errors" ||
        { cat "$scratch/errors" >&2; return 1; }
    while read -r size time; do echo "$time" >>"$scratch/$name-$size"; done <"$scratch/said"
}
# What nccl.py is asked for.
what=()
# The last table of a program whose title has these words has the row of that size.
row() { # row TITLE SIZE
    awk -v title="$1" -v size="$2" '/^#/ { on = index($0, title) > 0 } on && $1 == size && $2 == "block" { print $3 }' "$scratch/said"
}
ours() { # ours NAME PROVIDER VARIABLES...
    local name=$1 provider=$2
    shift 2
    local run=("$here/nvshmem-gpu-run" --nvshmem "$nvshmem" --plugin-dir "$here/lib" --programs "$programs" --mps off
        --providers "$provider" ${libfabric:+--libfabric "$libfabric"})
    env "$@" "${run[@]}" --only put --args "--min 1048576 --max 8388608 --iters 40" >"$scratch/said" 2>&1 ||
        { cat "$scratch/said" >&2; return 1; }
    row 'one put and its quiet' 8388608 >>"$scratch/$name-8388608"
    row 'put with signal' 1048576 >>"$scratch/$name-1048576"
    env "$@" "${run[@]}" --only put-signal --args "--min 8 --max 4096 --iters 100" >"$scratch/said" 2>&1 ||
        { cat "$scratch/said" >&2; return 1; }
    for size in 8 4096; do row 'put with signal' "$size" >>"$scratch/$name-$size"; done
}
# Fails where there is nothing to take it of.
median() { # median NAME SIZE
    sort -g "$scratch/$1-$2" | awk '{ value[NR] = $1 } END { if (!NR) exit 1; print value[int((NR + 1) / 2)] }' ||
        { echo "$1 has printed no time of $2 bytes" >&2; return 1; }
}

sockets=(NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo)
apart=NVSHMEM_LIBFABRIC_DEBUG=share_bounce=0
for ((run = 0; run < runs; run++)); do
    nccl nccl_shm NCCL_SHM_DISABLE=0
    ours shm shm
    nccl nccl_socket "${sockets[@]}"
    ours tcp tcp
    nccl nccl_socket_tuned "${sockets[@]}" NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4
    ours tcp_apart tcp "$apart" "NVSHMEM_LIBFABRIC_DEVICES=${rails%%,*}"
    ours tcp_apart_4_rails tcp "$apart" "NVSHMEM_LIBFABRIC_DEVICES=$rails"
done

printf '%-44s %10s %10s %10s %10s\n' "µs one way, medians of $runs" '8 B' '4 KiB' '1 MiB' '8 MiB'
sizes=(8 4096 1048576 8388608) names=(8B 4KiB 1MiB 8MiB)
line() { # line TEXT NAME
    local size times=()
    for size in "${sizes[@]}"; do
        # By itself, so that its failure is one of this script.
        times+=("$(median "$2" "$size")") || return 1
    done
    printf '%-44s %10s %10s %10s %10s\n' "$1" "${times[@]}"
    for size in "${!sizes[@]}"; do
        echo "MEASURE $2_${names[size]}_us ${times[size]} us" >>"$scratch/measures"
    done
}
line "NCCL, shared memory" nccl_shm
line "ours, shm" shm
line "ours, tcp, bounce memory shared" tcp
line "NCCL, sockets as they come" nccl_socket
line "NCCL, sockets, 4 threads by 4" nccl_socket_tuned
line "ours, tcp, nothing shared, one rail" tcp_apart
line "ours, tcp, nothing shared, four rails" tcp_apart_4_rails
cat "$scratch/measures"
: >"$scratch/measures"

# Rates above 1 and times below 1 are better than NCCL's.
rate() { # rate NAME OURS NCCL SIZE
    times "$1" "$3" "$2" "$4"
}
times() { # times NAME OURS NCCL SIZE
    local ours nccl
    ours=$(median "$2" "$4")
    nccl=$(median "$3" "$4")
    awk -v name="$1" -v ours="$ours" -v nccl="$nccl" 'BEGIN { printf "MEASURE %s %.2f ratio\n", name, ours / nccl }'
}
rate put_8MiB_over_nccl_shm shm nccl_shm 8388608
rate put_8MiB_tcp_shared_over_nccl_socket_tuned tcp nccl_socket_tuned 8388608
rate put_8MiB_1_rail_over_nccl_socket tcp_apart nccl_socket 8388608
rate put_8MiB_4_rails_over_nccl_socket_tuned tcp_apart_4_rails nccl_socket_tuned 8388608
times put_1MiB_oneway_over_nccl_shm shm nccl_shm 1048576
times put_8B_oneway_over_nccl_shm shm nccl_shm 8
times put_8B_oneway_over_nccl_socket tcp nccl_socket 8

gpus=$(nvidia-smi -L | wc -l)
[[ $gpus -gt 2 ]] || exit 0
ours_together() { # ours_together NAME PROVIDER VARIABLES...
    local name=$1 provider=$2 size
    shift 2
    env "$@" "$here/nvshmem-gpu-run" --nvshmem "$nvshmem" --plugin-dir "$here/lib" --programs "$here/clients" --mps off \
        --pes "$gpus" --providers "$provider" ${libfabric:+--libfabric "$libfabric"} --only torch-symmetric --args all_to_all \
        >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; return 1; }
    for size in 8 4096 65536 1048576; do
        # The sizes are the words of the first line, each with a column of figures below it.
        awk -v size="$size" '/microseconds by bytes/ { getline; for (i = 1; i <= NF; i++) if ($i == size) column = i + 1 }
            $1 == "all_to_all" { print $column }' "$scratch/said" >>"$scratch/$name-$size"
    done
}
what=(all-to-all "$gpus")
for ((run = 0; run < runs; run++)); do
    nccl nccl_shm_together NCCL_SHM_DISABLE=0
    ours_together shm_together shm
    nccl nccl_socket_together "${sockets[@]}" NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4
    ours_together tcp_together tcp
    ours_together tcp_apart_together tcp "$apart" "NVSHMEM_LIBFABRIC_DEVICES=$rails"
done
sizes=(8 4096 65536 1048576) names=(8B 4KiB 64KiB 1MiB)
printf '\n%-44s %10s %10s %10s %10s\n' "µs of an all-to-all of $gpus, medians of $runs" '8 B' '4 KiB' '64 KiB' '1 MiB'
line "NCCL, shared memory" nccl_shm_together
line "ours, shm" shm_together
line "ours, tcp, bounce memory shared" tcp_together
line "NCCL, sockets, 4 threads by 4" nccl_socket_together
line "ours, tcp, nothing shared, four rails" tcp_apart_together
cat "$scratch/measures"
times all_to_all_4KiB_over_nccl_shm shm_together nccl_shm_together 4096
times all_to_all_1MiB_over_nccl_shm shm_together nccl_shm_together 1048576
