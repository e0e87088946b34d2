#!/usr/bin/env bash
# Fetches headers that bindings are made of into .deps/NAME-headers/VERSION, unless they are there,
# and prints the directory with all versions:
#   scripts/headers.sh libfabric|verbs
# NAME-headers.txt lists them. They come as packages of Debian, from where this machine gets its
# own; no root is needed, and nothing is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly WANTED=scripts/$1-headers.txt HOME_DIR=.deps/$1-headers

# The copy of the request tells what was fetched, and that all of it was.
if ! cmp -s "$WANTED" "$HOME_DIR/fetched.txt"; then
    # shellcheck disable=SC2016 # apt's own names
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' | sed -nE 's/^Debian Debian (.*)/\1/p' | sed 1q) || true
    if [[ -z $mirror ]]; then
        echo "The headers of $1 come from Debian's packages, and this machine has no list of those ('apt-get update')." >&2
        exit 1
    fi
    mkdir -p .deps
    work=$(mktemp -d .deps/fetch.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    grep -v '^#' "$WANTED" | while read -r version package hash; do
        /usr/lib/apt/apt-helper -q -o APT::Sandbox::User= download-file "$mirror$package" "$work/package" "SHA256:$hash" >&2
        dpkg -x "$work/package" "$work/unpacked"
        mkdir -p "$work/headers"
        mv "$work/unpacked/usr/include" "$work/headers/$version"
        rm -r "$work/unpacked" "$work/package"
    done
    cp "$WANTED" "$work/headers/fetched.txt"
    rm -rf "$HOME_DIR"
    mv "$work/headers" "$HOME_DIR"
fi
echo "$PWD/$HOME_DIR"
