#!/usr/bin/env bash
# Runs random and faulty traffic again and again, with fresh seeds, until the time is over or something fails:
#   scripts/soak.sh MINUTES
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

checked --no-run --test engine --test plugin --test lab --test channel
# On a failure, the seed or the job stands above.
end=$((SECONDS + minutes * 60))
round=0
while [[ $SECONDS -lt $end ]]; do
    round=$((round + 1))
    echo "== round $round, $(((end - SECONDS) / 60)) minutes left"
    checked --test engine
    checked --test plugin -- storm
    [[ $SECONDS -lt $end ]] || break
    checked --test plugin -- signals_
    checked --test channel
    checked --test lab
    [[ $SECONDS -lt $end ]] || break
    NVSHMEM_TEST_CAMPAIGN=1 checked --test plugin
done
echo "$round rounds in $((SECONDS / 60)) minutes without a failure"
