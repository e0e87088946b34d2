#!/usr/bin/env bash
# The efa laboratory: libfabric's own efa provider, and the plugin over it, on EFA NICs that are not
# there (tools/labs/efa). Prints what passed by machine, fabric and libfabric, and ends with
# "MEASURE efa_lab_failures N count"; N above zero is a failure. NVSHMEM_TEST_LIBFABRIC2 names a
# libfabric 2.x with efa; the system's is used beside it.
#
# VERSIONS has other libfabrics, each of which takes the place of that one in a run of its own: of
# those that libfabric2.txt lists, and 'cuda', which is built (libfabric-cuda.sh) and reaches memory
# of devices. 'all' is all of them.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -n ${VERSIONS:-} ]]; then
    # Not what this script is to do each time.
    read -ra versions <<<"$VERSIONS"
    unset VERSIONS
    if [[ ${versions[*]} == all ]]; then
        mapfile -t versions < <(awk '!/^#/ { print $1 }' scripts/libfabric2.txt)
        versions+=(cuda)
    fi
    failed=()
    for version in "${versions[@]}"; do
        if [[ $version == cuda ]]; then
            library=$(scripts/libfabric-cuda.sh)
            export NVSHMEM_TEST_LIBFABRIC_CUDA=$library
        else
            library=$(scripts/libfabric2.sh "$version")
        fi
        echo "== libfabric $version"
        NVSHMEM_TEST_LIBFABRIC2=$library EFA_LAB_SYSTEM=0 "$0" || failed+=("$version")
        unset NVSHMEM_TEST_LIBFABRIC_CUDA
    done
    [[ ${#failed[@]} -eq 0 ]] || echo "libfabrics with failures: ${failed[*]}"
    exit $((${#failed[@]} > 0))
fi

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
export CARGO_TERM_COLOR=never NVSHMEM_TEST_EFA_LAB=1

version() {
    python3 - "$1" <<'END' 2>/dev/null || echo none
import ctypes, sys
packed = ctypes.CDLL(sys.argv[1]).fi_version()
print(f"{packed >> 16}.{packed & 0xffff}")
END
}

skipped=()
[[ ${EFA_LAB_SYSTEM:-1} == 1 ]] || skipped=(--skip system_libfabric)
{
    NVCC='' scripts/cargo test --locked --profile checked -p nvshmem-transport-libfabric --test plugin -- \
        efa:: "${skipped[@]}" 2>&1
    scripts/cargo test --locked --profile checked -p nvshmem-libfabric --test tool -- efa:: 2>&1
} | tee "$log" || true

# libfabric's own program, which checks what it gets, to tell a fault of the laboratory from one of
# the plugin.
pingpong() {
    local name=$1 library=$2 port=$((20000 + RANDOM % 10000)) job=$work/$1 server
    shift 2
    mkdir -p "$job" "$work/names"
    ln -sf "$target/checked/deps/libefa_lab.so" "$work/names/libibverbs.so.1"
    ln -sf "$target/checked/deps/libefa_lab.so" "$work/names/libefa.so.1"
    local run=(env EFA_LAB_DIR="$job" EFA_LAB_NICS=1 SYSFS_PATH="$job/sys" FI_PROVIDER=efa
        LD_LIBRARY_PATH="$work/names:$library" timeout 60 "$work/bin/fi_pingpong" -p efa -e rdm -c -I 20)
    "${run[@]}" -B "$port" "$@" >"$job/server" 2>&1 &
    server=$!
    local tries=0 status=1
    # The server may not listen yet; a client that finds none ends at once.
    until "${run[@]}" -P "$port" "$@" 127.0.0.1 >"$job/client" 2>&1; do
        tries=$((tries + 1))
        if [[ $tries -eq 50 ]] || ! kill -0 "$server" 2>/dev/null; then
            break
        fi
        sleep 0.1
    done
    if wait "$server" && grep -q '=20' "$job/client"; then
        status=0
    fi
    if [[ $status -eq 0 ]]; then
        echo "test efa::fi_pingpong_$name ... ok"
    else
        cat "$job/server" "$job/client"
        echo "test efa::fi_pingpong_$name ... FAILED"
    fi
}
if (cd "$work" && apt-get -qq download libfabric-bin && dpkg -x libfabric-bin_*.deb unpacked) >/dev/null 2>&1; then
    ln -s unpacked/usr/bin "$work/bin"
    {
        # Without a call for tags it takes the fabric that is listed first.
        [[ -z ${NVSHMEM_TEST_LIBFABRIC2:-} ]] ||
            pingpong second_libfabric "$(dirname "$NVSHMEM_TEST_LIBFABRIC2")"
        if grep -q 'system_libfabric.* ok$' "$log"; then
            pingpong system_libfabric ''
            pingpong system_libfabric_tagged '' -m tagged
        fi
    } 2>&1 | tee -a "$log"
else
    echo "SKIPPED libfabric's fi_pingpong: apt-get cannot download libfabric-bin here"
fi

echo
echo "second libfabric: $(version "${NVSHMEM_TEST_LIBFABRIC2:-none}"), system libfabric: $(version libfabric.so.1)"
echo "fabric auto: the plugin chooses"
awk '/^test efa::/ && NF >= 4 {
        name = substr($2, 6)
        result = $4 ~ /^ok/ ? "passed" : $4 ~ /^FAILED/ ? "failed" : "skipped"
        if (match(name, /_(p4d|p5|p5en|p6)_(auto|efa)_(second|system)_libfabric_/)) {
            split(substr(name, RSTART + 1, RLENGTH - 1), part, "_")
            row = sprintf("%-6s %-8s %-17s", part[1], part[2], part[3])
            rest = substr(name, RSTART + RLENGTH)
            split(rest, number, "_")
            shape = number[1] "x" number[3]
            if (!((row, shape) in seen)) { seen[row, shape] = 1; shapes[row] = shapes[row] " " shape }
            layout = rest; sub(/.*layout_/, "", layout)
            if (!((row, "l" layout) in seen)) { seen[row, "l" layout] = 1; layouts[row] = layouts[row] " " layout }
        } else {
            row = name; shapes[row] = layouts[row] = ""
        }
        if (!(row in rows)) { rows[row] = 1; order[++count] = row }
        done[row, result]++
    }
    END {
        printf "%-6s %-8s %-18s %6s %6s %7s  %s\n", "NICs", "fabric", "library", "passed", "failed", "skipped",
            "PEs x NICs; layouts"
        for (at = 1; at <= count; at++) {
            row = order[at]
            printf "%-34s %6d %6d %7d %s%s%s\n", row, done[row, "passed"], done[row, "failed"], done[row, "skipped"],
                shapes[row], layouts[row] == "" ? "" : ";", layouts[row]
        }
    }' "$log"
failures=$(grep -cE '^test efa::.* FAILED$' "$log" || true)
passed=$(grep -cE '^test efa::.* ok$' "$log" || true)
# A program that did not end has failed, whatever it had said by then.
[[ $(grep -c '^test result: ' "$log") -eq 2 ]] || failures=$((failures + 1))
[[ $passed -gt 0 ]] || failures=$((failures + 1))
echo "MEASURE efa_lab_failures $failures count"
[[ $failures -eq 0 ]]
