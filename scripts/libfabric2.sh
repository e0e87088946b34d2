#!/usr/bin/env bash
# Fetches a libfabric to test against into .deps/libfabric-VERSION, unless it is there, and prints
# the path of its library:
#   scripts/libfabric2.sh [VERSION [MACHINE]]
# What can be had, and its hashes, are in libfabric2.txt; without a VERSION, or with an empty one, it
# is the last of them. MACHINE is aarch64 or x86_64, where it is not this one.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LIST=scripts/libfabric2.txt
wanted=$(awk -v version="${1:-}" '!/^#/ && (version == "" || $1 == version)' "$LIST" | tail -n 1)
if [[ -z $wanted ]]; then
    echo "$LIST has no libfabric ${1:-}" >&2
    exit 1
fi
read -r version wheel hashes <<<"$wanted"
read -ra hashes <<<"$hashes"
home=.deps/libfabric-$version${2:+-$2}

# The copy of the request tells what was fetched, and that all of it was.
if ! cmp -s <(echo "$wanted") "$home/fetched.txt"; then
    mkdir -p .deps
    work=$(mktemp -d .deps/fetch.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    echo "$wheel ${hashes[*]/#/--hash=sha256:}" >"$work/requirements.txt"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: ${2:+"--platform=manylinux_2_28_$2"} --dest "$work" --requirement "$work/requirements.txt" >&2
    unzip -q "$(compgen -G "$work/mpich-*.whl")" '*/lib/mpich/libfabric.so.1' '*/lib/mpich/libfabric/*' -d "$work/wheel"
    libraries=$(dirname "$(find "$work/wheel" -name libfabric.so.1)")
    echo "$wanted" >"$libraries/fetched.txt"
    rm -rf "$home"
    mv "$libraries" "$home"
fi
echo "$PWD/$home/libfabric.so.1"
