#!/usr/bin/env bash
# Jobs that go on for so many minutes while rails die and processes are stopped, with what processes
# hold looked at every minute; beside them, random and faulty traffic again and again with fresh
# seeds, until the time is over or something fails:
#   scripts/soak.sh MINUTES
# Ends with figures, which docs/reliability.md explains.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=$1
if [[ ! $minutes =~ ^[1-9][0-9]*$ ]]; then
    echo "MINUTES is '$minutes', and has to be a number from 1 on" >&2
    exit 2
fi

NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_LIBFABRIC2
export NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-500}
checked() { scripts/cargo test --locked --quiet --profile checked --workspace "$@"; }

checked --no-run --test engine --test plugin --test channel --test nccl
log=$(mktemp)
trap 'rm -f "$log"' EXIT
NVSHMEM_TEST_SOAK_MINUTES=$minutes checked --test plugin >"$log" 2>&1 &
jobs=$!
# On a failure, the seed or the job stands above; the jobs go on to their end.
end=$((SECONDS + minutes * 60))
round=0 status=0
while [[ $SECONDS -lt $end && $status -eq 0 ]]; do
    round=$((round + 1))
    echo "== round $round, $(((end - SECONDS) / 60)) minutes left"
    for suite in "engine" "plugin -- storm" "plugin -- signals_" "channel" "nccl -- order"; do
        [[ $SECONDS -lt $end ]] || break 2
        # shellcheck disable=SC2086 # a name, and perhaps what is picked of it
        checked --test $suite || { status=$? && break 2; }
    done
    NVSHMEM_TEST_CAMPAIGN=1 checked --test plugin || status=$?
done
echo "$round rounds in $((SECONDS / 60)) minutes, status $status"
wait "$jobs" || status=$?
cat "$log"
if ! grep -q '^MEASURE soak_operations [1-9]' "$log"; then
    echo "the jobs have told of no operation" >&2
    status=1
fi
exit "$status"
