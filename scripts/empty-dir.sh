#!/usr/bin/env bash
# Makes DIRECTORY an empty directory:
#   scripts/empty-dir.sh DIRECTORY
# What it holds is removed only where cargo's mark (CACHEDIR.TAG) in a directory above says that all
# of it was built: a path that was computed wrongly, or split at a space, is left alone.
set -euo pipefail
[[ $# -eq 1 && -n $1 ]] || { echo "usage: scripts/empty-dir.sh DIRECTORY" >&2; exit 2; }
directory=$(realpath -m -- "$1")
if [[ -d $directory && -n $(ls -A -- "$directory") ]]; then
    above=$directory
    until [[ -e $above/CACHEDIR.TAG ]]; do
        above=$(dirname -- "$above")
        if [[ $above == / ]]; then
            echo "$directory is not below a build directory: remove it yourself, or name another" >&2
            exit 1
        fi
    done
    [[ $above != "$directory" ]] || { echo "$directory is a build directory: 'make clean' removes it" >&2; exit 1; }
    rm -rf --one-file-system -- "$directory"
fi
mkdir -p -- "$directory"
