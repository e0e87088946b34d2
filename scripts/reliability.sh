#!/usr/bin/env bash
# The fault campaign: every fault of processes and networks in every phase of a job, and random
# schedules of faults on the fake network:
#   scripts/reliability.sh SCHEDULES [TIMES]
# TIMES is how often each fault of a process happens in each phase, 2 unless it is given. Prints
# what was promised and what was seen, and ends with figures; docs/reliability.md explains both.
# Seeds that fail are added to target/reliability/failed.txt, as lines that say how to bring them
# back.
set -euo pipefail
cd "$(dirname "$0")/.."
schedules=$1 times=${2:-2}
kept=$(realpath -m "${CARGO_TARGET_DIR:-target}")/reliability
mkdir -p "$kept"
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_LIBFABRIC2
unset NVSHMEM_TEST_SEED NVSHMEM_TEST_SEEDS
checked() { scripts/cargo test --locked --quiet --profile checked -p engine -p nvshmem-transport-libfabric "$@"; }
checked --no-run --test engine --test plugin

log=$kept/log
status=0
{
    # Jobs mostly wait, so they leave the cores to the schedules.
    NVSHMEM_TEST_CAMPAIGN=$times checked --test plugin >"$kept/processes" 2>&1 &
    processes=$!
    NVSHMEM_TEST_CAMPAIGN=$schedules checked --test engine -- --nocapture schedules::promises_survive 2>&1 || status=1
    NVSHMEM_TEST_SEEDS=5 checked --test engine -- --nocapture iterations::refusals_cost 2>&1 || status=1
    wait "$processes" || status=1
    cat "$kept/processes"
    echo "$status" >"$kept/status"
} | tee "$log" | grep -v '^running\|^$\|^test result'
status=$(<"$kept/status")
# Without a figure of how many there were, the zeros of what went wrong say nothing.
for figure in process_faults strangers_packets schedules; do
    if ! grep -q "^MEASURE $figure [1-9]" "$log"; then
        echo "nothing has told how many ${figure//_/ } there were" >&2
        status=1
    fi
done
sed -nE 's/.*(NVSHMEM_TEST_SEED=[0-9]+).*/\1/p' "$log" | sort -u >>"$kept/failed.txt"
exit "$status"
