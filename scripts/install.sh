#!/usr/bin/env bash
# Installs the built plugin once per major version of NVSHMEM's plugin interface:
#   scripts/install.sh BUILT_LIBRARY DIRECTORY
# They are stripped; DIRECTORY/.debug has the debug information of all of them.
set -euo pipefail

built=$1
directory=$2
scripts=$(dirname "$0")
debug=nvshmem_transport_libfabric.debug

mkdir -p "$directory"
work=$(mktemp -d "$directory/.install.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$scripts/strip.sh" "$built" "$work/stripped" "$work/$debug"
names=$("$scripts/plugin-names.sh")
for name in $names; do
    cp "$work/stripped" "$work/$name"
    # NVSHMEM's loader takes a library that is loaded already when it goes by the name asked for.
    # So the name inside makes LD_PRELOAD work.
    patchelf --set-soname "$name" "$work/$name"
    chmod 755 "$work/$name"
done
"$scripts/check-plugin.sh" "$work"
# A rename replaces a file in one step and leaves a process that has the old one loaded alone.
mkdir -p "$directory/.debug"
mv -f "$work/$debug" "$directory/.debug/"
mv -f "$work"/nvshmem_transport_libfabric.so.* "$directory/"
echo "Installed in $directory:" "${names//$'\n'/ }"
