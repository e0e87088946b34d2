#!/usr/bin/env bash
# Makes a directory's files equal to those named on standard input, each ended by a zero byte, and
# touches none that is: cargo then builds what has changed, and nothing else.
#   git ls-files -z | scripts/copy-changed.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/.."
to=$1

declare -A named
while IFS= read -r -d '' file; do
    named[$file]=1
    # It may be deleted, and git not know it yet.
    if [[ -e $file ]] && ! cmp -s "$file" "$to/$file"; then
        mkdir -p "$to/$(dirname "$file")"
        cp "$file" "$to/$file"
    fi
done
while IFS= read -r -d '' file; do
    [[ -n ${named[$file]:-} && -e $file ]] || rm "$to/$file"
done < <(cd "$to" && find src crates tests tools -type f -not -path "*/target/*" -print0)
