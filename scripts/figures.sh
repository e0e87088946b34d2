#!/usr/bin/env bash
# The figures of README.md, docs/performance.md and docs/gpu.md.
#   scripts/figures.sh measure [TARGET...]   runs 'make bench bench-signal' (or these targets), puts
#                                            what they print into docs/figures.txt, then writes
#   scripts/figures.sh take NAME FILE ABOUT  puts what ran elsewhere, and printed FILE, there as NAME,
#                                            then writes; ABOUT is its commit, date and machine, as
#                                            "commit 1234abcd, 2026-01-31, two H100s"
#   scripts/figures.sh write                 puts the figures of docs/figures.txt into the pages
#   scripts/figures.sh check                 fails where a page says another figure than that file,
#                                            and where the file is older than the release before
#
# docs/figures.txt has the version, commit, date and machine of each run, and its lines
# "MEASURE name value unit". Taken are such lines, and rows of tables of the programs of
# cuda/nvshmem; their names begin with NAME_, as NAME_put_1048576B_block_us_shm. A NAME that ends
# with @ and a number is one of several runs, and so do its figures' names. In a page, a block that
# ends with an empty line begins with
#   <!-- figures: put_{8B_rate,1MiB}_over_raw_{tcp,shm} -->
# Its decimals (digits, a point, digits) are, in order, the values of these names, whose braces are
# the shell's: a table row by row. A figure is written with as many digits as stand there; the axes
# of a chart are left as they are. With "cells" in place of "figures" it is all numbers of a table,
# but those of its first row and first column. A name may end with a divisor, as in time_us/1000.
set -euo pipefail
readonly from=$PWD
cd "$(dirname "$0")/.."
readonly file=docs/figures.txt
pages=(README.md docs/performance.md docs/gpu.md)

version() { awk -F'"' '/^version/ { print $2; exit }' Cargo.toml; }

# Replaces the lines in the file that are of one name by those of standard input, with a header.
replace() { # replace NAME ABOUT
    {
        awk -v name="$1" '/^# / { drop = $2 == name ":" } !drop' "$file" 2>/dev/null || true
        echo "# $1: version $(version), $2"
        cat
    } >"$file.new"
    mv "$file.new" "$file"
}

# Puts the figures of a run elsewhere into the file.
take() { # take NAME FILE ABOUT
    local taken
    taken=$(awk -v name="${1%@*}" -v run="${1#"${1%@*}"}" '
        $1 == "MEASURE" { $2 = name "_" $2 run; print; next }
        # Programs: "== put over shm: ok", the head of a table, then a size, a scope and a figure.
        /^== / { program = $2; gsub(/-/, "_", program); provider = $4; sub(/:$/, "", provider); unit = "" }
        /^RESULT / { unit = "" }
        /^size\(B\) / { unit = $0; sub(/^.*\(/, "", unit); sub(/\).*/, "", unit); gsub(/[^A-Za-z0-9]/, "", unit); next }
        unit != "" && $1 ~ /^[0-9]+$/ && $NF ~ /^[0-9.]+$/ {
            scope = $0
            sub(/^[0-9]+ +/, "", scope); sub(/ +[0-9.]+$/, "", scope); gsub(/[^A-Za-z0-9]+/, "_", scope)
            print "MEASURE", name "_" program "_" $1 "B_" scope "_" unit "_" provider run, $NF, unit
        }' "$2")
    [[ -n $taken ]] || { echo "$2 has no figures" >&2; return 1; }
    replace "$1" "$3" <<<"$taken"
}

# Replaces the lines of a target in the file by those of a run just made.
measure() {
    local target said machine
    for target in "$@"; do
        said=$(mktemp)
        make --no-print-directory "$target" | tee "$said"
        grep -q '^MEASURE ' "$said" || { echo "'make $target' has measured nothing" >&2; return 1; }
        machine="$(nproc) cores, $(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo), Linux $(uname -r)"
        grep '^MEASURE ' "$said" |
            replace "$target" "commit $(git describe --always --dirty --abbrev=8 --exclude "*" 2>/dev/null || echo unknown), $(date -u +%F), $machine"
        rm "$said"
    done
}

# Prints a page with the file's figures in it.
written() {
    local names
    # Braces are expanded here, one block a line.
    names=$(sed -nE 's,^<!-- (figures|cells): ([A-Za-z0-9_{}\,. /@]*) -->$,\2,p' "$1" | while read -r pattern; do eval echo "$pattern"; done)
    names=$names awk -v page="$1" '
        FNR == NR { if ($1 == "MEASURE") value[$2] = $3; next }
        # A number with its digits in groups of three.
        function grouped(text,    whole, rest) {
            match(text, /^[0-9]+/)
            whole = substr(text, 1, RLENGTH); rest = substr(text, RLENGTH + 1)
            while (length(whole) > 3) {
                rest = " " substr(whole, length(whole) - 2) rest
                whole = substr(whole, 1, length(whole) - 3)
            }
            return whole rest
        }
        # The figure with as many digits behind its point as the text has.
        function figure(name, text,    part, digits) {
            split(name "/1", part, "/")
            if (!(part[1] in value)) { print page ": no figure is named " part[1] > "/dev/stderr"; failed = 1; return text }
            digits = index(text, ".") ? length(text) - index(text, ".") : 0
            text = sprintf("%." digits "f", value[part[1]] / part[2])
            return cells ? grouped(text) : text
        }
        function close_block() {
            if (left != "" && left <= count) { print page ": no place for " name[left] > "/dev/stderr"; failed = 1 }
            left = ""
        }
        # A line with its figures, which look like that.
        function filled(text, like,    line, there) {
            while (match(text, like)) {
                if (left > count) { print page ": a figure without a name: " text > "/dev/stderr"; failed = 1; break }
                there = substr(text, RSTART, RLENGTH)
                line = line substr(text, 1, RSTART - 1)
                text = substr(text, RSTART + RLENGTH)
                line = line figure(name[left++], there)
            }
            return line text
        }
        BEGIN { blocks = split(ENVIRON["names"], block, "\n") }
        /^<!-- (figures|cells): / {
            close_block()
            count = split(block[++at], name, " "); left = 1; cells = $2 == "cells:"; rows = 0
            print; next
        }
        /^$/ { close_block() }
        left != "" && cells && /^\|/ {
            if (++rows > 2) {
                match($0, /^\|[^|]*\|/)
                $0 = substr($0, 1, RLENGTH) filled(substr($0, RLENGTH + 1), "[0-9]+( [0-9][0-9][0-9])*([.][0-9]+)?")
            }
        }
        # The scale of a chart is no figure.
        left != "" && !cells && !/axis/ { $0 = filled($0, "[0-9]+[.][0-9]+") }
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
take)
    [[ $# -eq 4 ]] || { echo "take NAME FILE ABOUT" >&2; exit 2; }
    # A file is named from where the caller is.
    take "$2" "$(cd "$from" && realpath "$3")" "$4"
    write
    ;;
write) write ;;
check) check ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1; exit 2 ;;
esac
