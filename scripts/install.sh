#!/usr/bin/env bash
# Installs the built plugin once per major version of NVSHMEM's plugin interface:
#   scripts/install.sh BUILT_LIBRARY DIRECTORY
set -euo pipefail

built=$1
directory=$2

mkdir -p "$directory"
work=$(mktemp -d "$directory/.install.XXXXXX")
trap 'rm -rf "$work"' EXIT
for major in 3 4 5 6 7; do
    name=nvshmem_transport_libfabric.so.$major
    cp "$built" "$work/$name"
    # NVSHMEM's loader takes a library that is loaded already when it goes by the name asked for.
    # So the name inside makes LD_PRELOAD work.
    patchelf --set-soname "$name" "$work/$name"
    chmod 755 "$work/$name"
done
"$(dirname "$0")/check-plugin.sh" "$work"
# A rename replaces a file in one step and leaves a process that has the old one loaded alone.
mv -f "$work"/nvshmem_transport_libfabric.so.* "$directory/"
echo "Installed nvshmem_transport_libfabric.so.3 to .7 in $directory"
