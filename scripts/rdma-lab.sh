#!/usr/bin/env bash
# The RDMA laboratory: the plugin over kernel verbs, on soft RoCE NICs (rdma_rxe) of guests that
# QEMU emulates. First one guest alone, then two on a network of their own, with each job's PEs on
# both kernels. Prints what passed by place, libfabric, PEs and NICs, and ends with "MEASURE
# rdma_lab_failures N count"; N above zero is a failure.
#   scripts/rdma-lab.sh install  all; installs QEMU, and downloads a kernel, where they are missing
#   scripts/rdma-lab.sh all      all, where what it needs is there; else it is skipped, which is said
#   scripts/rdma-lab.sh short    likewise, one guest and one job
# The guests see this machine's file system, read only, and have no way out.
# NVSHMEM_TEST_LIBFABRIC2 names a libfabric 2.x with verbs; the system's is used beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
extent=${1:-install}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
home=$target/rdma-lab
lab=$PWD/tools/labs/rdma
mkdir -p "$home"
work=$(mktemp -d "$home/run.XXXXXX")
guests=()
end() {
    for guest in "${guests[@]}"; do
        kill "$guest" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap end EXIT
log=$work/log
: >"$log"

cannot() {
    echo "SKIPPED kernel verbs in a guest: $1"
    exit 0
}

# Sets 'image' and 'modules' to a kernel that has soft RoCE, or fails.
find_kernel() {
    local found
    for found in "$home"/kernel/lib/modules/* /lib/modules/*; do
        image=${found%/lib/modules/*}/boot/vmlinuz-${found##*/}
        modules=$found
        if compgen -G "$found/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*" >/dev/null && [[ -r $image ]]; then
            return
        fi
    done
    return 1
}
fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -nE 's/.*Depends: (linux-image-[0-9][^ ]*)/\1/p' | head -n 1)
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package" && dpkg -x "$package"_*.deb kernel)
    # Debian 13 has /lib in /usr.
    if [[ ! -d $work/kernel/lib ]]; then
        ln -s usr/lib "$work/kernel/lib"
    fi
    local version
    version=$(ls "$work/kernel/lib/modules")
    depmod -b "$work/kernel" "$version"
    mv "$work/kernel" "$home/kernel"
}

if [[ $extent != install ]]; then
    for program in qemu-system-x86_64 busybox cpio modprobe rdma; do
        command -v "$program" >/dev/null || cannot "no $program here ('make rdma-lab' installs it)"
    done
    find_kernel || cannot "no kernel with rdma_rxe here ('make rdma-lab' downloads one)"
else
    scripts/deps.sh rdma-lab
    find_kernel || fetch_kernel
    find_kernel
fi

# A RAM disk with what it takes to reach the host's file system.
ram=$work/ram
mkdir -p "$ram"/{bin,modules}
cp "$(command -v busybox)" "$ram/bin/busybox"
install -m 755 "$lab/init" "$ram/init"
number=10
while read -r file; do
    number=$((number + 1))
    case $file in
    *.xz) xz -dc "$file" ;;
    *.zst) zstd -qdc "$file" ;;
    *) cat "$file" ;;
    esac >"$ram/modules/$number.ko"
done < <(for module in virtio_pci 9p 9pnet_virtio overlay; do
    modprobe -d "${modules%/lib/modules/*}/" -S "${modules##*/}" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }')
(cd "$ram" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/ram.gz"

# The suite and the tool, built here and run there. The same choice of packages as in
# scripts/test.sh, and the tool as its own tests have it: another one would take its place under
# tests that run it meanwhile.
packages=(--locked --profile checked --workspace --exclude bindings)
suite() {
    scripts/cargo test "${packages[@]}" --test plugin --no-run "$@"
}
suite
scripts/cargo test "${packages[@]}" --test tool --no-run
program=$(suite --message-format json 2>/dev/null | sed -nE '/"kind":\["test"\]/s/.*"executable":"([^"]+)".*/\1/p' | tail -n 1)
# Copies, which a later build does not change under the guests. The suite looks for its libraries
# beside it.
mkdir "$work/tests"
cp "$program" "$work/tests/plugin"
cp "$target/checked/nvshmem-libfabric" "$work/tests/"
find "$(dirname "$program")" -maxdepth 1 -name 'lib*.so' ! -name '*-*' -exec cp {} "$work/tests/" \;
scripts/install.sh "$work/tests/libnvshmem_transport_libfabric.so" "$work/lib" >/dev/null

# boot NUMBER OF SECONDS: starts one of so many guests, and shows what it says but for the start and
# the end.
boot() {
    local me=$1 count=$2 seconds=$3 nics=() nic
    for nic in 0 1 2; do
        nics+=(-netdev "hubport,id=nic$nic,hubid=0" -device "virtio-net-pci,netdev=nic$nic,mac=52:54:00:00:0$me:0$nic")
    done
    # The guests' hubs are joined by a socket in the file system.
    if [[ $count -gt 1 ]]; then
        local server=off
        [[ $me -ne 1 ]] || server=on
        nics+=(-netdev "stream,id=cable,server=$server,addr.type=unix,addr.path=$work/cable"
            -netdev "hubport,id=socket,hubid=0,netdev=cable")
    fi
    local begin="console=ttyS0 quiet loglevel=3 panic=-1 lab.begin=$lab/guest.sh lab.guest=$me lab.guests=$count"
    exec timeout "$seconds" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 3G -no-reboot \
        -display none -monitor none -serial stdio -nic none "${nics[@]}" -kernel "$image" -initrd "$work/ram.gz" \
        -append "$begin lab.modules=${modules%/*} lab.job=$work/job" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        </dev/null 2>"$work/qemu.$me" >"$work/console.$me"
}
# runs PLACE OF SECONDS FILTER: runs the tests that match in the first of so many guests.
runs() {
    local place=$1 count=$2 seconds=$3 filter=$4
    cat >"$work/job" <<END
cd $(printf %q "$PWD")
export NVSHMEM_TEST_PLUGIN_DIR=$work/lib NVSHMEM_TEST_LIBFABRIC2=$(printf %q "${NVSHMEM_TEST_LIBFABRIC2:-}")
export NVSHMEM_TEST_RDMA=rxe0,rxe1 NVSHMEM_TEST_RDMA_IPV6=rocep2s0 NVSHMEM_TEST_RDMA_EXTENT=$extent
[[ $count -eq 1 ]] || export NVSHMEM_TEST_RDMA_ELSEWHERE="$lab/elsewhere.sh 10.77.0.2"
status=0
$work/tests/plugin --color never --test-threads 1 $filter || status=\$?
END
    # The tool's rows on one host, as a user of such NICs tries them first.
    [[ $extent == short || $count -ne 1 ]] || cat >>"$work/job" <<END
if NVSHMEM_LIBFABRIC_DEVICES=rxe0,rxe1 $work/tests/nvshmem-libfabric qualify --short --provider verbs \
    --plugin-dir $work/lib --deadline 300 --minutes 20 --out /tmp/qualify.txt; then
    echo "test rdma::one_host::qualify_system_2_pes_2_nics ... ok"
else
    cat /tmp/qualify.txt
    echo "test rdma::one_host::qualify_system_2_pes_2_nics ... FAILED"
    status=1
fi
END
    echo "exit \$status" >>"$work/job"
    echo "     Running $place"
    guests=()
    rm -f "$work/cable" "$work"/console.*
    for ((guest = 1; guest <= count; guest++)); do
        boot "$guest" "$count" "$seconds" &
        guests+=($!)
        # The socket of the first one is there before the second looks for it.
        until [[ $count -eq 1 || -S $work/cable ]] || ! kill -0 "${guests[0]}" 2>/dev/null; do sleep 0.1; done
    done
    # What the first guest says, as it says it.
    tail -n +1 --pid "${guests[0]}" -F "$work/console.1" 2>/dev/null |
        sed -un 's/\r$//; /^rdma-lab: ends/q; /^rdma-lab: begins/,$p' | sed -u '/^rdma-lab: begins/d' | tee -a "$log" || true
    wait "${guests[0]}" || true
    for guest in "${guests[@]:1}"; do
        kill "$guest" 2>/dev/null || true
        wait "$guest" || true
    done
    guests=()
    grep -q 'rdma-lab: ends with 0' "$work/console.1" && return
    echo "test rdma::$place ... FAILED" | tee -a "$log"
    tail -n 20 "$work"/console.* "$work"/qemu.* | tr -d '\r'
}

if [[ $extent == short ]]; then
    # Other tests may keep the processors busy.
    runs one_host 1 500 "rdma::one_host"
else
    runs one_host 1 3000 "rdma::"
    runs two_hosts 2 2400 "rdma::two_hosts"
fi

version() {
    python3 - "$1" <<'END' 2>/dev/null || echo none
import ctypes, sys
packed = ctypes.CDLL(sys.argv[1]).fi_version()
print(f"{packed >> 16}.{packed & 0xffff}")
END
}
echo
echo "system libfabric: $(version libfabric.so.1), second libfabric: $(version "${NVSHMEM_TEST_LIBFABRIC2:-none}")"
echo "kernel: ${modules##*/}"
awk '/^test rdma::/ && NF >= 4 {
        result = $4 ~ /^ok/ ? "passed" : $4 ~ /^FAILED/ ? "failed" : "skipped"
        if (split(substr($2, 7), part, "::") < 2) next
        split(part[2], word, "_")
        row = sprintf("%-10s %-8s %s PEs x %s NICs", part[1], word[2], word[3], word[5])
        if (!(row in rows)) { rows[row] = 1; order[++count] = row }
        done[row, result]++
        scenarios[row] = scenarios[row] " " word[1]
    }
    END {
        printf "%-10s %-8s %-14s %6s %6s %7s  %s\n", "place", "library", "job", "passed", "failed", "skipped", "scenarios"
        for (at = 1; at <= count; at++) {
            row = order[at]
            printf "%-34s %6d %6d %7d %s\n", row, done[row, "passed"], done[row, "failed"], done[row, "skipped"],
                scenarios[row]
        }
    }' "$log"
failures=$(grep -cE '^test rdma::.* FAILED$' "$log" || true)
passed=$(grep -cE '^test rdma::.* ok$' "$log" || true)
[[ $passed -gt 0 ]] || failures=$((failures + 1))
echo "MEASURE rdma_lab_failures $failures count"
[[ $failures -eq 0 ]]
