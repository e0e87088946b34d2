#!/usr/bin/env bash
# Installs the built plugin, or the recorder, once per major version of NVSHMEM's plugin interface:
#   scripts/install.sh BUILT_LIBRARY DIRECTORY [TRANSPORT]
# They are stripped; DIRECTORY/.debug has the debug information of all of them. TRANSPORT, which is
# 'libfabric' or 'recorder', is in the names of the files; inside, all go by that of libfabric.
set -euo pipefail

built=$1
directory=$2
transport=${3:-libfabric}
scripts=$(dirname "$0")
debug=nvshmem_transport_$transport.debug

mkdir -p "$directory"
work=$(mktemp -d "$directory/.install.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$scripts/strip.sh" "$built" "$work/stripped" "$work/$debug"
names=$("$scripts/plugin-names.sh" "$transport")
for name in $names; do
    cp "$work/stripped" "$work/$name"
    # NVSHMEM's loader takes a library that is loaded already when it goes by the name asked for.
    # So the name inside makes LD_PRELOAD work. The recorder's is one that NVSHMEM asks for.
    patchelf --set-soname "nvshmem_transport_libfabric.so.${name##*.}" "$work/$name"
    chmod 755 "$work/$name"
done
"$scripts/check-plugin.sh" "$work" "$transport"
# A rename replaces a file in one step and leaves a process that has the old one loaded alone.
mkdir -p "$directory/.debug"
mv -f "$work/$debug" "$directory/.debug/"
mv -f "$work/nvshmem_transport_$transport".so.* "$directory/"
echo "Installed in $directory:" "${names//$'\n'/ }"
