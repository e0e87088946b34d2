#!/usr/bin/env bash
# Parts a built library from its debug information:
#   scripts/strip.sh BUILT STRIPPED DEBUG
# Debuggers and backtraces look for DEBUG by its name, in the directory of the library and in .debug
# below that. Copies of STRIPPED share it: their names inside are no part of what it describes.
set -euo pipefail
built=$1 stripped=$2 debug=$3

objcopy --only-keep-debug --compress-debug-sections "$built" "$debug"
chmod 644 "$debug"
objcopy --strip-all --remove-section=.gnu_debuglink --add-gnu-debuglink="$debug" "$built" "$stripped"
