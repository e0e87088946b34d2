#!/usr/bin/env bash
# A guest of the RDMA laboratory: makes its soft RoCE NICs, then does the job if it is guest 1, or
# starts what guest 1 asks for (elsewhere.sh). It is the first process, and its end powers the guest
# off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
# What is said before comes from the firmware and the kernel.
echo "rdma-lab: begins"

value() { sed -nE "s/.*lab\.$1=([^ ]*).*/\1/p" /proc/cmdline; }
me=$(value guest)
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /lib/modules
mount --bind "$(value modules)" /lib/modules
# rdma_rxe needs crc32_generic, and does not say so.
for module in virtio_net crc32_generic rdma_rxe ib_uverbs rdma_cm rdma_ucm; do
    modprobe "$module"
done
hostname "guest$me"
ulimit -l unlimited
ulimit -n 65536
# All NICs are on one network, each answers for itself, and what one sends to another of this guest
# goes by that network: within the guest it would arrive without a NIC.
sysctl -q net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=0 \
    net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.accept_local=1
ip link set lo up
ip rule add pref 100 lookup local
ip rule del pref 0
for nic in 0 1; do
    ip addr add "10.77.$nic.$me/16" dev "eth$nic"
    ip link set "eth$nic" up
    ip route add 10.77.0.0/16 dev "eth$nic" table "10$nic"
    ip rule add pref 10 iif lo from "10.77.$nic.$me" to "10.77.$((1 - nic)).$me" lookup "10$nic"
    ip rule add pref 200 from "10.77.$nic.$me" lookup "10$nic"
    rdma link add "rxe$nic" type rxe netdev "eth$nic"
done
# One with addresses of IPv6 alone, under a name as rdma-core gives to NICs of RoCE.
ip link set eth2 up
ip -6 addr add "fd77::$me/64" dev eth2 nodad
rdma link add rocep2s0 type rxe netdev eth2

status=0
if [[ $me -eq 1 ]]; then
    # Guest 2, if there is one, is ready when it takes a connection.
    if [[ $(value guests) -gt 1 ]]; then
        tries=0
        until (: <>/dev/tcp/10.77.0.2/7000) 2>/dev/null || [[ $((tries += 1)) -gt 60 ]]; do sleep 1; done
    fi
    bash "$(value job)"
    status=$?
else
    busybox nc -ll -p 7000 -e /bin/bash
fi
echo "rdma-lab: ends with $status"
echo o >/proc/sysrq-trigger
sleep 5
