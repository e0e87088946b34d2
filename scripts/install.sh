#!/usr/bin/env bash
# Installs a built library, stripped; .debug beside it gets its debug information:
#   scripts/install.sh plugin BUILT DIRECTORY    NVSHMEM's plugin, a file for each major version of its interface
#   scripts/install.sh nccl BUILT DIRECTORY      the plugin for NCCL's RMA interface
#   scripts/install.sh channel BUILT PREFIX      the device channel's library and headers
#   scripts/install.sh check DIRECTORY           only looks at plugins that are installed, and says all that is wrong
# A file is replaced by a rename, in one step: a process that has loaded the old one keeps it.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)
kind=$1

wrong=0
complain() {
    echo "$1: $2" >&2
    wrong=1
}
# The names that NVSHMEM asks for.
plugins() { sed -nE 's/^ *"soname": "(.*)",$/\1/p' "$root/crates/nvshmem-abi/layouts.json" | sort -uV; }
# What plugins are, as the dynamic linker sees them.
check() {
    local file name dynamic soname exported
    for name in $(plugins); do
        file=$1/$name
        if [[ ! -f $file ]]; then
            complain "$file" "is missing"
            continue
        fi
        dynamic=$(readelf --dynamic --wide "$file")
        soname=$(sed -nE 's/.*\(SONAME\).*\[(.*)\]/\1/p' <<<"$dynamic")
        [[ $soname == "$name" ]] || complain "$file" "SONAME is '$soname' and should be '$name'"
        # Every other exported name could collide with one of the user's program.
        exported=$(nm --dynamic --defined-only --format=posix "$file" | cut -d' ' -f1 | xargs)
        [[ $exported == nvshmemt_init ]] ||
            complain "$file" "exports '$exported' and should export 'nvshmemt_init' alone"
        # These are loaded when the transport starts, so that their absence can be explained.
        ! grep -q 'NEEDED.*libfabric' <<<"$dynamic" || complain "$file" "is linked against libfabric"
        ! grep -qE 'NEEDED.*lib(cuda|gdrapi)' <<<"$dynamic" || complain "$file" "is linked against CUDA or GDRCopy"
        grep -q 'FLAGS_1.*NODELETE' <<<"$dynamic" || complain "$file" "is not linked with -z nodelete"
        grep -q 'FLAGS_1.*NOW' <<<"$dynamic" || complain "$file" "is not linked with -z now"
    done
}
# That a library exports all of the names on standard input.
exports() {
    local missing
    missing=$(comm -23 <(sort -u) <(nm -D --defined-only "$1" | awk '{ print $NF }' | sort -u))
    [[ -z $missing ]] || complain "$1" "does not have ${missing//$'\n'/ }"
}
# Makes $work/NAME of the built library, and its debug information, which debuggers look for in .debug:
# strip NAME.
strip() {
    "${CROSS_COMPILE-}objcopy" --only-keep-debug --compress-debug-sections "$built" "$work/${1%%.so*}.debug"
    chmod 644 "$work/${1%%.so*}.debug"
    "${CROSS_COMPILE-}objcopy" --strip-all --remove-section=.gnu_debuglink --add-gnu-debuglink="$work/${1%%.so*}.debug" "$built" "$work/$1"
    chmod 755 "$work/$1"
    mkdir -p "$directory/.debug"
}

if [[ $kind == check ]]; then
    check "$2"
    exit "$wrong"
fi
built=$2 directory=$3
[[ $kind != channel ]] || directory=$3/lib
mkdir -p "$directory"
work=$(mktemp -d "$directory/.install.XXXXXX")
trap 'rm -rf "$work"' EXIT
case $kind in
plugin)
    strip nvshmem_transport_libfabric
    for name in $(plugins); do
        cp "$work/nvshmem_transport_libfabric" "$work/$name"
        # NVSHMEM's loader takes a library that is loaded already when it goes by the name asked
        # for, so the name inside makes LD_PRELOAD work.
        patchelf --set-soname "$name" "$work/$name"
    done
    rm "$work/nvshmem_transport_libfabric"
    check "$work"
    ;;
nccl)
    # NCCL makes this name of NCCL_RMA_PLUGIN=nvshmem-libfabric.
    strip libnccl-rma-nvshmem-libfabric.so
    printf 'ncclRmaPlugin_%s\n' v14 v15 v16 | exports "$built"
    patchelf --set-soname libnccl-rma-nvshmem-libfabric.so "$work/libnccl-rma-nvshmem-libfabric.so"
    ;;
channel)
    library=libnvshmem_libfabric_channel.so
    strip "$library.0"
    grep -oE '\bnlf_[a-z_]+\(' "$root/include/nvshmem_libfabric.h" | tr -d '(' | exports "$built"
    patchelf --set-soname "$library.0" "$work/$library.0"
    ;;
*) echo "$0: no '$kind': plugin, nccl, channel or check" >&2 && exit 2 ;;
esac
[[ $wrong -eq 0 ]] || exit 1
mv -f "$work"/*.debug "$directory/.debug/"
mv -f "$work"/* "$directory/"
if [[ $kind == channel ]]; then
    ln -sfn "$library.0" "$directory/$library"
    mkdir -p "$3/include"
    for header in "$root"/include/nvshmem_libfabric.h "$root"/include/nvshmem_libfabric_ring.h "$root"/cuda/*.cuh; do
        install -m 644 "$header" "$work/header"
        mv -f "$work/header" "$3/include/$(basename "$header")"
    done
fi
echo "Installed in $directory"
