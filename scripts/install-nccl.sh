#!/usr/bin/env bash
# Installs the plugin for NCCL's RMA interface:
#   scripts/install-nccl.sh BUILT_LIBRARY DIRECTORY
# The library is stripped; DIRECTORY/.debug has its debug information.
set -euo pipefail

built=$1
directory=$2
scripts=$(cd "$(dirname "$0")" && pwd)
# NCCL makes this name of NCCL_RMA_PLUGIN=nvshmem-libfabric.
library=libnccl-rma-nvshmem-libfabric.so
debug=libnccl-rma-nvshmem-libfabric.debug
wanted="ncclRmaPlugin_v14 ncclRmaPlugin_v15 ncclRmaPlugin_v16"
missing=$(comm -23 <(tr ' ' '\n' <<<"$wanted") \
    <(nm -D --defined-only "$built" | awk '{ print $NF }' | sort -u))
if [[ -n $missing ]]; then
    echo "$built does not have what NCCL looks for: ${missing//$'\n'/ }" >&2
    exit 1
fi
mkdir -p "$directory/.debug"
work=$(mktemp -d "$directory/.install.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$scripts/strip.sh" "$built" "$work/$library" "$work/$debug"
# Its build has the plugin's name, as it contains the plugin's sources.
patchelf --set-soname "$library" "$work/$library"
chmod 755 "$work/$library"
# A rename replaces a file in one step and leaves a process that has the old one loaded alone.
mv -f "$work/$debug" "$directory/.debug/"
mv -f "$work/$library" "$directory/"
echo "Installed NCCL's RMA plugin in $directory"
