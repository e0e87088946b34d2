#!/usr/bin/env bash
# Breaks the code on purpose, one bug at a time, and fails if the tests that are there for it do not
# notice.
#   scripts/injected.sh [WORD]
#   scripts/injected.sh --places   only whether the code to break is there, which takes seconds
#   scripts/injected.sh --control  only the tests, without any bug: they are there, and pass
# The bugs are those of tests/injected; with WORD, those whose description has it.
# tests/injected/README.md says how they are written. Nothing of the tree is changed: copies of it
# are, in target/injected.
#
# The tests run without any bug first, and have to pass: else a failure with a bug says nothing. A
# bug is caught when a test fails that is named for it, when the program of those tests crashes, or
# when they do not come to an end that have come to one without it. A failure of anything else, such
# as a build, is none.
set -euo pipefail
cd "$(dirname "$0")/.."
what=bugs word=${1:-}
if [[ $word == --places || $word == --control ]]; then
    what=${word#--} word=
fi
readonly mode=$what word
# Seconds for a bug's tests, for what turns for ever; more where they take long without it.
readonly patience=${INJECTED_TIMEOUT:-180}
root=$PWD
work=$(realpath -m "${CARGO_TARGET_DIR:-target}/injected")
export CARGO_TERM_COLOR=never
mkdir -p "$work"

# Prints every bug as four lines: description, arguments of cargo test, what is there, what is put
# there. Lines of code that follow one another are joined by \001.
bugs() {
    awk '
        function out() {
            if (what == "") return
            if (tests == "" || old == "") {
                print FILENAME ": no tests or no code: " what > "/dev/stderr"
                exit 1
            }
            print what; print tests; print old; print new
            what = tests = old = new = ""
        }
        /^#/ { next }
        /^$/ { out(); next }
        /^caught by: / { tests = substr($0, 12); next }
        /^- / { old = old (old == "" ? "" : "\001") substr($0, 3); next }
        /^\+ / { new = new (new == "" ? "" : "\001") substr($0, 3); next }
        { what = what (what == "" ? "" : " ") $0 }
        END { out() }' tests/injected/*.bugs
}

# Puts the second text in the place of the first, without regard to indentation, in the one file of
# the directory that has it, once. Prints the file.
replace() {
    local dir=$1 old=$2 new=$3 first found file changed='' count=0
    first=${old%%$'\001'*}
    found=$(cd "$dir" && { grep -rlF -e "$first" src crates cuda include tools/simulator tools/nvshmem-libfabric/{src,bench/src} tools/recorder tests/model || true; })
    for file in $found; do
        old=$old new=$new awk '
            BEGIN { n = split(ENVIRON["old"], want, "\001"); m = split(ENVIRON["new"], put, "\001") }
            { lines[NR] = $0; bare = $0; sub(/^[ \t]+/, "", bare); bares[NR] = bare }
            END {
                for (at = 1; at <= NR; at++) {
                    for (i = 1; i <= n && bares[at + i - 1] == want[i]; i++) {}
                    if (i <= n) { print lines[at]; continue }
                    indent = lines[at]; sub(/[^ \t].*$/, "", indent)
                    for (i = 1; i <= m; i++) print indent put[i]
                    at += n - 1; made++
                }
                exit made == 1 ? 0 : made == 0 ? 3 : 4
            }' "$dir/$file" >"$work/changed" && {
            changed=$file
            cp "$work/changed" "$work/new"
            count=$((count + 1))
        }
    done
    [[ $count -eq 1 ]] || return 1
    cp "$dir/$changed" "$work/original"
    cp "$work/new" "$dir/$changed"
    echo "$changed"
}

copy_tree() {
    mkdir -p "$work/tree"
    git ls-files -z --cached --others --exclude-standard | scripts/copy-changed.sh "$work/tree"
    [[ ! -e .deps ]] || ln -sfn "$root/.deps" "$work/tree/.deps"
}

# Takes the bug out again, also when this script is stopped.
broken=
repair() {
    [[ -z $broken ]] || cp "$work/original" "$broken"
    broken=
}
trap repair EXIT

# Runs tests, with the arguments of cargo test in $1, in the copy of the tree, for at most $2
# seconds. Prints what became of them, in a word, and leaves what they have said in the file "log"
# and the seconds that they took in "took":
#   passed, skipped     none failed; all of them were skipped, for the machine lacks something
#   none                there are no such tests
#   failed, crashed     a test, or the program that has them
#   endless             they had not ended by then
#   unbuilt, other      they could not be built, or something else failed
run() {
    local arguments optimise=0 status=0 began
    read -ra arguments <<<"$1"
    # The model goes through millions of states.
    [[ $1 != *"--test model"* ]] || optimise=2
    cargo_test() {
        cd "$dir" && CARGO_TARGET_DIR=$dir/target$optimise CARGO_PROFILE_TEST_OPT_LEVEL=$optimise \
            NVSHMEM_TEST_EVERY_CASE=1 timeout "$1" "$root/scripts/cargo" test "${@:2}" </dev/null
    }
    # Building takes its time, which is not the tests'.
    echo 0 >"$work/took"
    if ! (cargo_test 0 --no-run "${arguments[@]}") >"$work/log" 2>&1; then
        echo unbuilt
        return
    fi
    began=$SECONDS
    # What processes of a test say may stand between its name and what became of it.
    (cargo_test "$2" "${arguments[@]}") >"$work/log" 2>&1 || status=$?
    echo $((SECONDS - began)) >"$work/took"
    if [[ $status -eq 124 ]]; then
        echo endless
    elif grep -q '^test result: FAILED' "$work/log" && grep -qE '^(test .*)?FAILED$' "$work/log"; then
        echo failed
    elif grep -q "(signal: " "$work/log"; then
        echo crashed
    elif [[ $status -ne 0 ]]; then
        echo other
    elif grep -qE '^(test .* \.\.\. )?ok$' "$work/log"; then
        echo passed
    elif grep -q '^test .* \.\.\. ignored' "$work/log"; then
        echo skipped
    else
        echo none
    fi
}

# The end of what the last run has said, or the first errors of the compiler.
said() {
    if grep -q '^error' "$work/log"; then
        sed -n '/^error/,$p' "$work/log" | head -20
    else
        tail -20 "$work/log"
    fi
}

# What became of tests without any bug, by their arguments, and how long they may take with one: a
# machine that is busy with other things is no endless loop.
declare -A sound=() limits=()
control() {
    [[ -z ${sound[$1]:-} ]] || return 0
    sound[$1]=$(run "$1" $((10 * patience)))
    limits[$1]=$((4 * $(<"$work/took")))
    [[ ${limits[$1]} -gt $patience ]] || limits[$1]=$patience
    case ${sound[$1]} in
    passed | none) ;;
    skipped) echo "SKIPPED bugs that $1 catches: the machine lacks what these tests need" ;;
    *) echo "without any bug, $1: ${sound[$1]}" && said ;;
    esac
}

tried=0 skipped=0 missed=()
copy_tree
dir=$work/tree
# With a line behind the last, which may be empty.
selected=$(bugs && echo end)
# All of them before the first bug, so that they are built together.
while [[ $mode != places ]] && IFS= read -r what && IFS= read -r tests && IFS= read -r _ && IFS= read -r _; do
    [[ $what != *"$word"* ]] || control "$tests"
done <<<"$selected"
if [[ $mode == control ]]; then
    for tests in "${!sound[@]}"; do
        [[ ${sound[$tests]} == passed || ${sound[$tests]} == skipped ]] || missed+=("$tests: ${sound[$tests]}")
    done
    echo "${#sound[@]} sets of tests, ${#missed[@]} of which do not pass"
    [[ ${#missed[@]} -eq 0 ]] || { printf '%s\n' "${missed[@]}" >&2; exit 1; }
    exit 0
fi
while IFS= read -r what && IFS= read -r tests && IFS= read -r old && IFS= read -r new; do
    [[ $what == *"$word"* ]] || continue
    tried=$((tried + 1))
    if ! file=$(replace "$dir" "$old" "$new"); then
        missed+=("$what: the code to change is not there, or more than once")
        continue
    fi
    broken=$dir/$file
    if [[ $mode == places ]]; then
        repair
        continue
    fi
    case ${sound[$tests]} in
    passed) verdict=$(run "$tests" "${limits[$tests]}") ;;
    *) verdict="not tried, ${sound[$tests]} without it" ;;
    esac
    case $verdict in
    failed | crashed | endless) verdict="caught, $verdict" ;;
    *", skipped without it") skipped=$((skipped + 1)) ;;
    passed | skipped | none)
        verdict=MISSED
        missed+=("$what: not noticed by $tests, $(grep -c '^test .* ok$' "$work/log" || true) tests")
        ;;
    unbuilt | other)
        missed+=("$what: $verdict, which is no failure of a test; see above")
        said
        ;;
    *) missed+=("$what: $verdict") ;;
    esac
    repair
    printf '%-15s %s (%s)\n' "$verdict" "$what" "$file"
done <<<"$selected"

if [[ $mode == bugs ]]; then
    echo "MEASURE injected_bugs $tried bugs"
    echo "MEASURE injected_bugs_missed ${#missed[@]} bugs"
    echo "MEASURE injected_bugs_skipped $skipped bugs"
fi
[[ $tried -gt 0 ]] || { echo "No bug has '$word' in its description." >&2; exit 1; }
[[ ${#missed[@]} -eq 0 ]] || { printf '%s\n' "${missed[@]}" >&2; exit 1; }
