#!/usr/bin/env bash
# Installs the device channel's library and headers:
#   scripts/install-channel.sh BUILT_LIBRARY PREFIX
# The library is stripped; PREFIX/lib/.debug has its debug information.
set -euo pipefail

built=$1
prefix=$2
root=$(cd "$(dirname "$0")/.." && pwd)

# A file appears whole: a process that has the old one keeps it.
put() {
    install -m "$3" "$1" "$2.new"
    mv -f "$2.new" "$2"
}
library=libnvshmem_libfabric_channel.so
debug=libnvshmem_libfabric_channel.debug
missing=$(comm -23 \
    <(grep -oE '\bnlf_[a-z_]+\(' "$root/include/nvshmem_libfabric.h" | tr -d '(' | sort -u) \
    <(nm -D --defined-only "$built" | awk '{ print $NF }' | sort -u))
if [[ -n $missing ]]; then
    echo "$built does not have what the header declares: ${missing//$'\n'/ }" >&2
    exit 1
fi
mkdir -p "$prefix/lib/.debug" "$prefix/include"
work=$(mktemp -d "$prefix/lib/.install.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$root/scripts/strip.sh" "$built" "$work/$library" "$work/$debug"
# Its build has the plugin's name, as it contains the plugin's sources.
patchelf --set-soname "$library.0" "$work/$library"
put "$work/$debug" "$prefix/lib/.debug/$debug" 644
put "$work/$library" "$prefix/lib/$library.0" 755
ln -sfn "$library.0" "$prefix/lib/$library"
for header in "$root"/include/nvshmem_libfabric.h "$root"/include/nvshmem_libfabric_ring.h \
    "$root"/cuda/nvshmem_libfabric_*.cuh; do
    put "$header" "$prefix/include/$(basename "$header")" 644
done
echo "Installed the device channel in $prefix"
