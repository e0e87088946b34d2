#!/usr/bin/env bash
# Checks the installed plugins in a directory as the dynamic linker sees them:
#   scripts/check-plugin.sh DIRECTORY
# Reports everything that is wrong.
set -euo pipefail
export LC_ALL=C

directory=$1
wrong=0

complain() {
    echo "$1: $2" >&2
    wrong=$((wrong + 1))
}

names=$("$(dirname "$0")/plugin-names.sh")
for name in $names; do
    file=$directory/$name
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

    # libfabric is loaded when the transport starts, so that its absence can be explained.
    if grep -q 'NEEDED.*libfabric' <<<"$dynamic"; then
        complain "$file" "is linked against libfabric"
    fi
    # The same for CUDA and GDRCopy, which most machines do not have.
    if grep -qE 'NEEDED.*lib(cuda|gdrapi)' <<<"$dynamic"; then
        complain "$file" "is linked against CUDA or GDRCopy"
    fi
    grep -q 'FLAGS_1.*NODELETE' <<<"$dynamic" || complain "$file" "is not linked with -z nodelete"
    grep -q 'FLAGS_1.*NOW' <<<"$dynamic" || complain "$file" "is not linked with -z now"
done

if [[ $wrong -gt 0 ]]; then
    exit 1
fi
