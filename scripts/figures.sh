#!/usr/bin/env bash
# The figures of README.md and docs/performance.md that come from benchmarks of this machine.
#   scripts/figures.sh measure [TARGET...]   runs 'make bench bench-signal' (or these targets), puts
#                                            what they print into docs/figures.txt, then writes
#   scripts/figures.sh write                 puts the figures of docs/figures.txt into the pages
#   scripts/figures.sh check                 fails where a page says another figure than that file,
#                                            and where the file is older than the release before
#
# docs/figures.txt has the version, commit, date and machine of each target's run, and its lines
# "MEASURE name value unit". In a page, a block that ends with an empty line begins with
#   <!-- figures: put_{8B_rate,1MiB}_over_raw_{tcp,shm} -->
# Its decimals (digits, a point, digits) are, in order, the values of these names, whose braces are
# the shell's: a table row by row. A figure is written with as many digits as stand there; the axes
# of a chart are left as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly file=docs/figures.txt
pages=(README.md docs/performance.md)

version() { awk -F'"' '/^version/ { print $2; exit }' Cargo.toml; }

# Replaces the lines of a target in the file by those of a run just made.
measure() {
    local target said machine
    for target in "$@"; do
        said=$(mktemp)
        make --no-print-directory "$target" | tee "$said"
        grep -q '^MEASURE ' "$said" || { echo "'make $target' has measured nothing" >&2; return 1; }
        machine="$(nproc) cores, $(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo), Linux $(uname -r)"
        {
            awk -v target="$target" '/^# / { drop = $2 == target ":" } !drop' "$file" 2>/dev/null || true
            echo "# $target: version $(version), commit $(git describe --always --dirty --abbrev=8 --exclude "*" 2>/dev/null || echo unknown), $(date -u +%F), $machine"
            grep '^MEASURE ' "$said"
        } >"$file.new"
        mv "$file.new" "$file"
        rm "$said"
    done
}

# Prints a page with the file's figures in it.
written() {
    local names
    # Braces are expanded here, one block a line.
    names=$(sed -n 's/^<!-- figures: \([A-Za-z0-9_{},. ]*\) -->$/\1/p' "$1" | while read -r pattern; do eval echo "$pattern"; done)
    names=$names awk -v page="$1" '
        FNR == NR { if ($1 == "MEASURE") value[$2] = $3; next }
        # The figure with as many digits behind its point as the text has.
        function figure(name, text) {
            if (!(name in value)) { print page ": no figure is named " name > "/dev/stderr"; failed = 1; return text }
            return sprintf("%." (length(text) - index(text, ".")) "f", value[name])
        }
        function close_block() {
            if (left != "" && left <= count) { print page ": no place for " name[left] > "/dev/stderr"; failed = 1 }
            left = ""
        }
        BEGIN { blocks = split(ENVIRON["names"], block, "\n") }
        /^<!-- figures: / { close_block(); count = split(block[++at], name, " "); left = 1; print; next }
        /^$/ { close_block() }
        # The scale of a chart is no figure.
        left != "" && !/axis/ {
            line = ""
            while (match($0, /[0-9]+\.[0-9]+/)) {
                if (left > count) { print page ": a figure without a name: " $0 > "/dev/stderr"; failed = 1; break }
                line = line substr($0, 1, RSTART - 1) figure(name[left++], substr($0, RSTART, RLENGTH))
                $0 = substr($0, RSTART + RLENGTH)
            }
            $0 = line $0
        }
        { print }
        END { close_block(); exit failed }' "$file" "$1"
}

write() {
    local page new
    for page in "${pages[@]}"; do
        new=$(mktemp)
        written "$page" >"$new"
        cat "$new" >"$page"
        rm "$new"
    done
}

check() {
    local page now of status=0
    for page in "${pages[@]}"; do
        written "$page" | diff -u "$page" - || { echo "$page has other figures than $file: scripts/figures.sh write" >&2; status=1; }
    done
    # Major and minor count: figures may be of the release before, not of one before that.
    now=$(version)
    while read -r of; do
        awk -v of="$of" -v now="$now" 'BEGIN { split(of, o, "."); split(now, n, "."); exit !(o[1] == n[1] && n[2] - o[2] <= 1) }' ||
            { echo "figures of $of are older than the release before $now: scripts/figures.sh measure" >&2; status=1; }
    done < <(sed -n 's/^# .*: version \([0-9.]*\),.*/\1/p' "$file")
    return "$status"
}

case ${1:-} in
measure)
    shift
    [[ $# -gt 0 ]] || set -- bench bench-signal
    measure "$@"
    write
    ;;
write) write ;;
check) check ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1; exit 2 ;;
esac
