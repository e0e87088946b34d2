#!/usr/bin/env bash
# Fetches a libfabric 2.x to test against into .deps/libfabric2, unless it is there, and prints
# the path of its library. What is fetched, and its hashes, are in libfabric2.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly WANTED=scripts/libfabric2.txt
readonly HOME_DIR=.deps/libfabric2

# The copy of the request tells what was fetched, and that all of it was.
if ! cmp -s "$WANTED" "$HOME_DIR/fetched.txt"; then
    mkdir -p .deps
    work=$(mktemp -d .deps/fetch.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --dest "$work" --requirement "$WANTED" >&2
    wheel=$(compgen -G "$work/mpich-*.whl")
    unzip -q "$wheel" '*/lib/mpich/libfabric.so.1' '*/lib/mpich/libfabric/*' -d "$work/wheel"
    libraries=$(dirname "$(find "$work/wheel" -name libfabric.so.1)")
    cp "$WANTED" "$libraries/fetched.txt"
    rm -rf "$HOME_DIR"
    mv "$libraries" "$HOME_DIR"
fi
echo "$PWD/$HOME_DIR/libfabric.so.1"
