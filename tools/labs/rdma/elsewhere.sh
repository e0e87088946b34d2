#!/usr/bin/env bash
# Runs a command in another guest, with this environment and in a directory of the same name, and
# prints what it prints.
#   elsewhere.sh ADDRESS COMMAND [ARGUMENT]...
# What it ends with is lost: a PE tells its launcher how it has ended.
set -euo pipefail
exec 3<>"/dev/tcp/$1/7000"
shift
{
    export -p
    printf 'mkdir -p %q && cd %q && exec 2>&1 && exec' "$PWD" "$PWD"
    printf ' %q' "$@"
    echo
} >&3
cat <&3
