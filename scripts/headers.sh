#!/usr/bin/env bash
# Fetches headers that bindings are made of into .deps/NAME-headers/VERSION, unless they are there,
# and prints the directory with all versions:
#   scripts/headers.sh libfabric|verbs
# NAME-headers.txt lists them. They come as packages of Debian, from where this machine gets its
# own; no root is needed, and nothing is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly NAME=$1
readonly WANTED=scripts/$NAME-headers.txt
readonly HOME_DIR=.deps/$NAME-headers
case $NAME in
libfabric) readonly PACKAGE=libfabric-dev ;;
verbs) readonly PACKAGE=libibverbs-dev ;;
esac

# The copy of the request tells what was fetched, and that all of it was.
if cmp -s "$WANTED" "$HOME_DIR/fetched.txt"; then
    echo "$PWD/$HOME_DIR"
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "The headers of $NAME come from Debian's packages, and there is no apt-get here." >&2
    exit 1
fi
# shellcheck disable=SC2016 # apt's own names
mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' | sed -nE 's/^Debian Debian (.*)/\1/p' | head -n 1)
if [[ -z $mirror ]]; then
    echo "The headers of $NAME come from Debian's packages, and this machine has no list of those ('apt-get update')." >&2
    exit 1
fi

mkdir -p .deps
work=$(mktemp -d "$PWD/.deps/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,cache/archives}/partial "$work/headers"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
grep -v '^#' "$WANTED" | while read -r _ release _; do
    echo "deb [arch=amd64 signed-by=$keyring] $mirror $release main"
done >"$work/sources.list"
# The machine's own configuration, with lists and downloads of our own.
apt() {
    apt-get -qq -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User= \
        -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o APT::Update::Post-Invoke-Success::= -o Acquire::Languages=none "$@" >&2
}
apt update
grep -v '^#' "$WANTED" | while read -r version _ package hash; do
    (cd "$work" && apt download "$PACKAGE=$package")
    file=$work/${PACKAGE}_${package}_amd64.deb
    sha256sum --check --quiet <<<"$hash  $file" >&2
    dpkg -x "$file" "$work/unpacked"
    mv "$work/unpacked/usr/include" "$work/headers/$version"
    rm -rf "$work/unpacked"
done
cp "$WANTED" "$work/headers/fetched.txt"
rm -rf "$HOME_DIR"
mv "$work/headers" "$HOME_DIR"
echo "$PWD/$HOME_DIR"
