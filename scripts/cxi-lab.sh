#!/usr/bin/env bash
# The cxi laboratory: the plugin on a persona of cxi (tools/labs/cxi), which keeps cxi's rules over
# libfabric's tcp. Prints what passed by version of the persona, carrier and level of threading, and
# ends with "MEASURE cxi_lab_failures N count"; N above zero is a failure. NVSHMEM_TEST_LIBFABRIC2
# names a libfabric 2.x to carry the data; the system's is used beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export CARGO_TERM_COLOR=never NVSHMEM_TEST_CXI_LAB=1
{
    NVCC='' scripts/cargo test --locked --profile checked -p nvshmem-transport-libfabric --test plugin -- cxi:: 2>&1
    scripts/cargo test --locked --profile checked -p nvshmem-libfabric --test tool -- cxi:: 2>&1
} | tee "$log" || true

echo
awk '/^test cxi::/ && NF >= 4 {
        result = $4 ~ /^ok/ ? "passed" : $4 ~ /^FAILED/ ? "failed" : "skipped"
        if (split(substr($2, 6), word, "_") > 8)
            row = sprintf("%-8s %-8s %-11s", word[2] "." word[3], word[4], word[5])
        else
            row = word[1] == "memory" ? sprintf("%-8s memory of devices", word[4] "." word[5]) : substr($2, 6)
        if (!(row in rows)) { rows[row] = 1; order[++count] = row }
        done[row, result]++
        scenarios[row] = scenarios[row] " " (word[8] == "" ? "" : word[1] "-" word[6] "x" word[8])
    }
    END {
        printf "%-8s %-8s %-11s %6s %6s %7s  %s\n", "version", "carrier", "threading", "passed", "failed", "skipped",
            "scenarios-PEs x NICs"
        for (at = 1; at <= count; at++) {
            row = order[at]
            printf "%-29s %6d %6d %7d %s\n", row, done[row, "passed"], done[row, "failed"], done[row, "skipped"],
                scenarios[row]
        }
    }' "$log"
failures=$(grep -cE '^test cxi::.* FAILED$' "$log" || true)
passed=$(grep -cE '^test cxi::.* ok$' "$log" || true)
# A program that did not end has failed, whatever it had said by then.
[[ $(grep -c '^test result: ' "$log") -eq 2 ]] || failures=$((failures + 1))
[[ $passed -gt 0 ]] || failures=$((failures + 1))
echo "MEASURE cxi_lab_failures $failures count"
[[ $failures -eq 0 ]]
