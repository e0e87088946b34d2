#!/usr/bin/env bash
# Fails where a comment is wider than 100 columns, and says where. rustfmt keeps code within them,
# and comments only as a nightly one. Free are tables, a line that is one word, and in scripts what
# two spaces or more set apart.
set -euo pipefail
cd "$(dirname "$0")/.."
# Columns are characters.
export LC_ALL=C.UTF-8

wide() { xargs -r grep -nHE '^.{101,}$' | grep -E "^[^:]+:[0-9]+:$1" || true; }
files() { git ls-files "$@" ':!*generated*' ':!tests/data'; }
found=$(
    files '*.rs' '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | wide '[ ]*(//|/\*|\* )' | grep -vE ':[ ]*//[/!]? (\||[^ ]+$)' || true
    files '*.sh' '*.toml' '*.py' '*Makefile' '*Dockerfile' scripts/cargo .ci/run | wide '[ ]*# ?[^ !]' | grep -vE ':[ ]*# [^ ]+$' || true
)
[[ -z $found ]] || {
    echo "Comments are wider than 100 columns:" >&2
    echo "$found" >&2
    exit 1
}
