#!/usr/bin/env bash
# Prints the notes of one release, as a text that stands alone:
#   packaging/release-notes.sh VERSION [CHANGELOG]
# That is the version's part of the changelog, or, before it has one, what is to be released. Links
# into the source are words only, as the packages have no source beside them.
set -euo pipefail
version=$1
changelog=${2:-$(dirname "$0")/../CHANGELOG.md}

# Prints the part under a heading, without it: part NAME.
part() {
    awk -v head="## [$1]" 'index($0, head) == 1 { on = 1; next } /^## / { on = 0 } /^\[[^]]*\]: / { next } on' "$changelog" |
        sed -E 's/^#(#+ )/\1/; s/\[([^]]*)\]\(([^):#]*(#[^)]*)?)\)/\1/g'
}
date=$(sed -nE "s/^## \[${version//./\\.}\] - (.*)$/\1/p" "$changelog")
if [[ -n $date ]]; then
    text=$(part "$version")
else
    text=$(part Unreleased)
    date="not released"
fi
if [[ -z $text ]]; then
    echo "$changelog says nothing of $version" >&2
    exit 1
fi
printf '# nvshmem-libfabric %s, %s\n%s\n' "$version" "$date" "$text"
