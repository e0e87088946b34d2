#!/usr/bin/env bash
# Runs lab-tests over kernel verbs, on soft RoCE NICs (rdma_rxe) of guests that QEMU emulates: one
# guest, and with NVSHMEM_TEST_FULL two on a network of their own, with each job's PEs on both:
#   tools/labs/rdma/run.sh TARGET [flap]
# TARGET is the laboratories' target directory, with lab-tests built. With 'flap', and that built,
# it measures instead what rails do while all packets are lost for a minute. Without QEMU or a kernel
# with soft RoCE it says so and is done; 'scripts/deps.sh rdma-lab' installs QEMU, INSTALL=1 does that
# and downloads a kernel. The guests see this machine's file system, read only, and have no way out.
set -euo pipefail
target=$1
cd "$(dirname "$0")/../../.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

home=$target/rdma
lab=$PWD/tools/labs/rdma
mkdir -p "$home"
work=$(mktemp -d "$home/run.XXXXXX")
guests=()
trap 'kill "${guests[@]}" 2>/dev/null || true; rm -rf "${work:?}"' EXIT
cannot() { echo "SKIPPED kernel verbs in a guest: $1; INSTALL=1 helps" && exit 0; }
# Sets 'image' and 'modules' to a kernel that has soft RoCE, or fails.
find_kernel() {
    for modules in "$home"/kernel/lib/modules/* /lib/modules/*; do
        image=${modules%/lib/modules/*}/boot/vmlinuz-${modules##*/}
        ! compgen -G "$modules/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*" >/dev/null || [[ ! -r $image ]] || return 0
    done
    return 1
}
fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -nE 's/.*Depends: (linux-image-[0-9][^ ]*)/\1/p' | head -n 1)
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package" && dpkg -x "$package"_*.deb kernel)
    # Debian 13 has /lib in /usr.
    [[ -d $work/kernel/lib ]] || ln -s usr/lib "$work/kernel/lib"
    depmod -b "$work/kernel" "$(ls "$work/kernel/lib/modules")"
    mv "$work/kernel" "$home/kernel"
}
[[ -z ${INSTALL:-} ]] || { scripts/deps.sh rdma-lab && { find_kernel || fetch_kernel; }; }
for program in qemu-system-x86_64 busybox cpio modprobe rdma; do
    command -v "$program" >/dev/null || cannot "no $program here"
done
find_kernel || cannot "no kernel with rdma_rxe here"

# A RAM disk with what it takes to reach the host's file system.
mkdir -p "$work"/ram/{bin,modules} "$work/tests"
cp "$(command -v busybox)" "$work/ram/bin/busybox"
install -m 755 "$lab/init" "$work/ram/init"
number=10
while read -r file; do
    number=$((number + 1))
    case $file in *.xz) xz -dc "$file" ;; *.zst) zstd -qdc "$file" ;; *) cat "$file" ;; esac >"$work/ram/modules/$number.ko"
done < <(for module in virtio_pci 9p 9pnet_virtio overlay; do
    modprobe -d "${modules%/lib/modules/*}/" -S "${modules##*/}" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }')
(cd "$work/ram" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/ram.gz"

# Copies, which a later build does not change under the guests. The program looks for its libraries
# beside it.
built=$(find "$target/checked/deps" -maxdepth 1 -name 'labs-*' -type f -perm -u+x -printf '%T@ %p\n' | sort -n | tail -n 1)
cp "${built#* }" "$work/tests/labs"
find "$target/checked/deps" -maxdepth 1 -name 'lib*.so' ! -name '*-*' -exec cp {} "$work/tests/" \;
[[ ${2:-} != flap ]] || cp "$target/checked/flap" "$work/tests/"
scripts/install.sh plugin "$work/tests/libnvshmem_transport_libfabric.so" "$work/lib" >/dev/null

# boot NUMBER OF SECONDS: becomes one of so many guests.
boot() {
    local me=$1 count=$2 seconds=$3 nics=() nic
    for nic in 0 1 2; do
        nics+=(-netdev "hubport,id=nic$nic,hubid=0" -device "virtio-net-pci,netdev=nic$nic,mac=52:54:00:00:0$me:0$nic")
    done
    # The guests' hubs are joined by a socket in the file system, which the first one makes.
    [[ $count -eq 1 ]] || nics+=(-netdev "stream,id=cable,server=$([[ $me -eq 1 ]] && echo on || echo off),addr.type=unix,addr.path=$work/cable"
        -netdev "hubport,id=socket,hubid=0,netdev=cable")
    local begin="console=ttyS0 quiet loglevel=3 panic=-1 lab.begin=$lab/guest.sh lab.guest=$me lab.guests=$count"
    exec timeout "$seconds" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 3G -no-reboot \
        -display none -monitor none -serial stdio -nic none "${nics[@]}" -kernel "$image" -initrd "$work/ram.gz" \
        -append "$begin lab.modules=${modules%/*} lab.job=$work/job" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        </dev/null 2>"$work/qemu.$me" >"$work/console.$me"
}
# runs PLACE OF SECONDS: runs the tests of a place in the first of so many guests, and shows what it says.
runs() {
    local place=$1 count=$2 seconds=$3
    cat >"$work/job" <<END
export NVSHMEM_TEST_PLUGIN_DIR=$work/lib NVSHMEM_TEST_LIBFABRIC2=$(printf %q "${NVSHMEM_TEST_LIBFABRIC2:-}")
export NVSHMEM_TEST_RDMA=rxe0,rxe1 NVSHMEM_TEST_RDMA_IPV6=rocep2s0 NVSHMEM_TEST_FULL=${NVSHMEM_TEST_FULL:-}
[[ $count -eq 1 ]] || export NVSHMEM_TEST_RDMA_ELSEWHERE="$lab/elsewhere.sh 10.77.0.2"
[[ $place == flap ]] || exec $work/tests/labs --color never --test-threads 1 rdma::$place
modprobe sch_netem
export FI_UNIVERSE_SIZE=127
change() { echo "for nic in eth0 eth1; do tc qdisc \$1 dev \\\$nic root netem loss 100%; done"; }
for who in both one; do
    $work/tests/flap "\${NVSHMEM_TEST_LIBFABRIC2:-libfabric.so.1}" verbs rxe0 rxe1 60 \$who "\$(change add)" "\$(change del)"
done
END
    echo "     Running $place"
    rm -f "$work/cable" "$work"/console.*
    for ((guest = 1; guest <= count; guest++)); do
        boot "$guest" "$count" "$seconds" &
        guests+=($!)
        until [[ $count -eq 1 || -S $work/cable ]] || ! kill -0 "${guests[0]}" 2>/dev/null; do sleep 0.1; done
    done
    tail -n +1 --pid "${guests[0]}" -F "$work/console.1" 2>/dev/null |
        sed -un 's/\r$//; /^rdma-lab: ends/q; /^rdma-lab: begins/,$p' | sed -u '/^rdma-lab: begins/d' || true
    wait "${guests[0]}" || true
    [[ $count -eq 1 ]] || kill "${guests[@]:1}" 2>/dev/null || true
    wait || true
    guests=()
    grep -q 'rdma-lab: ends with 0' "$work/console.1" && return
    tail -n 20 "$work"/console.* "$work"/qemu.* | tr -d '\r'
    return 1
}
[[ ${2:-} != flap ]] || { runs flap 1 900; exit; }
# A busy machine takes long for a short run too.
[[ -n ${NVSHMEM_TEST_FULL:-} ]] || { runs one_host 1 500; exit; }
runs one_host 1 3000
runs two_hosts 2 2400
