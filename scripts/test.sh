#!/usr/bin/env bash
# Runs one tier of the tests. Says what each part took, lists what was skipped and why, and ends
# with "N passed, N failed, N skipped".
#   scripts/test.sh quick|test|full
# CONTRIBUTING.md says what the tiers hold and which variables the tests read.
# shellcheck disable=SC2317 # functions are called by part
set -euo pipefail
cd "$(dirname "$0")/.."
tier=$1

# Who may make a mount namespace has tests that find two things empty. The names of the kernel's
# symbols: libfabric 1.17 reads all of them when it starts, twice, a tenth of a second of a core in
# every process of every job. And shared memory: what shm leaves of processes that were killed is in
# the way of those that get their numbers.
readonly EMPTIED='mount --bind /dev/null /proc/kallsyms && mount -t tmpfs tmpfs /dev/shm'
if [[ -f /proc/kallsyms ]] && unshare --mount bash -c "$EMPTIED" 2>/dev/null; then
    exec unshare --mount bash -c "$EMPTIED && exec scripts/test.sh $tier"
fi

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
plugins=$target/install/lib # as the Makefile has it
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
: >"$log"
: >"$work/failed"
: >"$work/parts"
# The reports are read below.
export CARGO_TERM_COLOR=never

# What a user has set for programs on NVSHMEM and libfabric is not for the tests.
for variable in $(compgen -e); do
    case $variable in
    NVSHMEM_TEST_*) ;;
    NVSHMEM_* | FI_* | FAKE_CUDA_* | CUDA_MODULE_LOADING | CUDA_DEVICE_MAX_CONNECTIONS) unset "$variable" ;;
    esac
done

# Sets 'now' to "WALL CPU": seconds since some time, and of processor time of what has ended in this
# shell.
clock() {
    local own=$work/times.$BASHPID
    times >"$own" # not in a subshell, which has times of its own
    now=$(awk -v wall="$EPOCHREALTIME" 'NR == 2 { gsub(/[ms]/, " ")
        printf "%.3f %.3f\n", wall, $1 * 60 + $2 + $3 * 60 + $4 }' "$own")
}
# Runs a command as a part of the tier, named by the first argument.
part() {
    local name=$1 now began said
    shift
    said=$(mktemp -p "$work")
    echo "== $name"
    clock
    began=$now
    if ! "$@" 2>&1 | tee "$said" | heard; then
        echo "$name" >>"$work/failed"
        { echo "Last of \"$name\", which failed:" && tail -n 12 "$said" | sed 's/^/  /'; } >"$said.last"
    fi
    rm "$said"
    clock
    awk -v name="$name" -v began="$began" -v now="$now" 'BEGIN { split(began, b, " "); split(now, n, " ")
        printf "%-42s %7.0f s  %7.0f s\n", name, n[1] - b[1], n[2] - b[2] }' | tee -a "$work/parts"
}
# Shows what a part says, and keeps it: at once, or in one piece while other parts run beside it.
lane=
heard() {
    if [[ -z $lane ]]; then
        tee -a "$log"
    else
        cat >"$work/$lane"
        flock "$log" tee -a "$log" <"$work/$lane"
    fi
}
# Runs functions that have parts beside each other: where one part keeps a single core busy, another
# has the rest.
beside() {
    local pids=()
    for lane in "$@"; do
        "$lane" &
        pids+=($!)
    done
    lane=
    wait "${pids[@]}"
}
skip() {
    echo "SKIPPED $1: $2" | tee -a "$log"
}

# Without the tool that reads sources, which check.sh tests: a program that uses crates of the
# macros makes cargo build these, and all that have macros, another time for every choice of test
# programs.
checked() {
    scripts/cargo test --locked --profile checked --workspace --exclude bindings \
        --no-fail-fast "$@"
}

fetch() {
    scripts/cargo fetch --locked
    scripts/cuda-compiler.sh
    if [[ -n ${NVSHMEM_TEST_VERSIONS} ]]; then
        # shellcheck disable=SC2086 # several names
        scripts/nvshmem-wheels.sh cuda $NVSHMEM_TEST_VERSIONS
        # Every release that the list has is one for the tool to recognise.
        [[ $tier != full ]] || scripts/nvshmem-wheels.sh
    fi
}
shipped() {
    make --no-print-directory plugins
    scripts/check-plugin.sh "$plugins"
}
checked_builds() {
    part "build of the tests" checked --no-run --lib --bins --test '*'
    part "formatting and lints" scripts/check.sh
}
shipped_builds() {
    part "shipped plugin" shipped
    # Linking one like the other, one stands for all outside of the full tier.
    local some=(put-signal)
    [[ $tier != full ]] || some=()
    part "NVSHMEM programs" scripts/nvshmem-programs.sh "$target/nvshmem" "${some[@]}"
    # Half a gigabyte of wheels.
    [[ $tier != full ]] || part "NCCL programs" scripts/nccl-programs.sh "$target/nccl"
    [[ $tier != full ]] || part "device API as bitcode" bitcode
}
# Not to be built without clang.
bitcode() {
    local status=0
    tools/labs/gpu/bitcode/build.sh "$target/libnvshmem_libfabric_device" || status=$?
    [[ $status -ne 3 ]] || echo "SKIPPED device API as bitcode: no clang here"
    [[ $status -eq 0 || $status -eq 3 ]]
}
# A process loads one libfabric, so the second one takes another run.
second_libfabric() { OFI_TEST_LIBRARY=$NVSHMEM_TEST_LIBFABRIC2 checked --test ofi; }
# The two lanes take about the same time.
plugin_suite() { part "tests of the plugin and the tool" checked --test 'p*' --test 't*'; }
programs() { part "other test programs" checked --test '[!pt]*'; }
other_tests() {
    part "unit tests" checked --lib --bins
    part "documentation tests" checked --doc
    if [[ -n $NVSHMEM_TEST_LIBFABRIC2 ]]; then
        part "libfabric's objects, libfabric 2.x" second_libfabric
    else
        skip "libfabric's objects, libfabric 2.x" "NVSHMEM_TEST_LIBFABRIC2 is empty"
    fi
    part "shipped plugin on tcp and shm" smoke
}
smoke() { NVSHMEM_TEST_PLUGIN_DIR=$plugins checked --test plugin -- smoke::; }

# Each campaign for a minute or a few, so that one which no longer builds or finds its tests is
# noticed here.
campaigns() {
    part "faults, short" campaign scripts/reliability.sh 500 1
    part "fuzzing, short" campaign scripts/fuzz.sh 2000
    part "AddressSanitizer, short" sanitizer AddressSanitizer scripts/sanitize.sh
    part "ThreadSanitizer, short" sanitizer ThreadSanitizer scripts/sanitize-threads.sh
    part "soak, short" campaign scripts/soak.sh 1
    local some
    for some in engine abi job channel cuda ofi; do
        part "mutants of $some, three" campaign scripts/mutants.sh "$some" 3
    done
}
# Runs a campaign with few seeds. Its tests are none of this tier's: they are not counted, nor what
# they skip.
campaign() {
    env -u NVSHMEM_TEST_FULL NVSHMEM_TEST_SEEDS=2 "$@" 2>&1 |
        sed -E '/^ +(Running|Doc-tests) /d; /^test .* \.\.\. (ok|ignored)/d; /^test result: /d; s/^SKIPPED /left out: /'
}
# The same of one that says by its status, 2, that the machine lacks something.
sanitizer() {
    local name=$1 status=0
    campaign "$2" || status=$?
    [[ $status -ne 2 ]] || { echo "SKIPPED $name: the machine lacks what $2 needs" && status=0; }
    return "$status"
}

# Releases of NVSHMEM that programs are compiled against, unless the user says which.
case $tier in
full) NVSHMEM_TEST_VERSIONS=${NVSHMEM_TEST_VERSIONS-3.4.5 3.6.5 3.8.0} ;;
*) NVSHMEM_TEST_VERSIONS=${NVSHMEM_TEST_VERSIONS-3.8.0} ;;
esac
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_VERSIONS NVSHMEM_TEST_LIBFABRIC2

if [[ $tier == quick ]]; then
    export NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-25}
    part "build of the tests" checked --no-run --lib --bins --test engine --test wire --test plugin
    part "unit tests" checked --lib --bins
    part "engine on the fake" checked --test engine --test wire
    part "plugin on tcp and shm" checked --test plugin -- smoke::
    ! git rev-parse --is-inside-work-tree >/dev/null 2>&1 || part "places of injected bugs" scripts/injected.sh --places
else
    part "downloads" fetch
    # With a compiler, kernels that are missing are a failure.
    if [[ $(scripts/cuda-compiler.sh) != none:* ]]; then
        export NVSHMEM_TEST_KERNELS=1
    fi
    if [[ $tier == full ]]; then
        export NVSHMEM_TEST_FULL=1 NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-2000}
        part "licences and origins of crates" scripts/deny.sh --install
    fi
    # Fresh schedules in every run find in many short ones what one long run would.
    export NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-20}
    # Cargo builds two profiles at a time.
    beside checked_builds shipped_builds
    beside plugin_suite programs other_tests
    if [[ $tier == full ]]; then
        part "injected bugs" scripts/injected.sh
        campaigns
        part "laboratories" env EXTENT=full tools/labs/run.sh
        part "minimal trees of Debian" scripts/fresh.sh
    fi
fi

echo
# Each test program says "Running PROGRAM", or "Doc-tests CRATE", and ends with
# "test result: ok. P passed; F failed; I ignored; ...; finished in N s".
awk '/^ +(Running|Doc-tests) / { program = $1 == "Running" && $2 != "unittests" ? $2 : "" }
    /^test result: / && program != "" { sub(/s$/, "", $NF)
        if ($NF >= 5) printf "  %-40s %7.0f s\n", program, $NF }' "$log" >"$work/programs"
printf '%-42s %9s  %9s\n' "part" "wall" "processor"
awk '{ print } /^other test programs/ { while ((getline line < programs) > 0) print line }' \
    programs="$work/programs" "$work/parts"
# Some parts ran beside each other, so their times are no sum.
awk -v wall="$SECONDS" '{ cpu += $(NF - 1) } END {
    printf "%-42s %7.0f s  %7.0f s: %.0f s on two idle cores at best\n", "all", wall, cpu, cpu / 2 }' \
    "$work/parts"

# What was skipped, as "WHAT: REASON".
sed -nE 's/^SKIPPED (.+: .+)$/\1/p
    s/^test (.*[^ ]) +\.\.\. ignored, (.+)$/\1: \2/p
    s/^test (.*[^ ]) +\.\.\. ignored \((.+)\)$/\1: \2/p
    s/^test (.*[^ ]) +\.\.\. ignored$/\1: no reason given/p' "$log" | sort >"$work/skips"
read -r passed failed ignored < <(
    awk '/^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) p += $(i - 1)
            if ($i ~ /^failed/) f += $(i - 1)
            if ($i ~ /^ignored/) g += $(i - 1)
        }
    } END { print p + 0, f + 0, g + 0 }' "$log"
)
status=0
wrong() {
    echo "$1" >&2
    status=1
}
# No sum is right when a program is missing from it, or a skip is without a reason.
programs=$(grep -cE '^ +(Running|Doc-tests) ' "$log" || true)
results=$(grep -c '^test result: ' "$log" || true)
[[ $results -eq $programs ]] ||
    wrong "$programs test programs were started and $results gave a result: see above"
# A log of thousands of lines is read from its end.
if [[ -s $work/failed ]]; then
    cat "$work"/*.last >&2
    grep -E '^test .* \.\.\. FAILED' "$log" >&2 || true
    wrong "Failed: $(sed 's/$/; /' "$work/failed" | tr -d '\n')see above"
fi
by_name=$(grep -cE '^test .* \.\.\. ignored(,| \(|$)' "$log" || true)
[[ $by_name -eq $ignored ]] || wrong "$ignored tests were skipped and $by_name are named"
! grep -q ': no reason given$' "$work/skips" || wrong "A skip is without a reason"
if [[ -s $work/skips ]]; then
    sed 's/^/SKIPPED /' "$work/skips"
fi
# In a file that NVSHMEM_TEST_SKIPS_ALLOWED names, regular expressions for the skips that may be.
if [[ -n ${NVSHMEM_TEST_SKIPS_ALLOWED:-} ]]; then
    sed '/^#/d; /^$/d' "$NVSHMEM_TEST_SKIPS_ALLOWED" >"$work/allowed"
    if grep -vEf "$work/allowed" "$work/skips" >"$work/unexpected"; then
        wrong "Not among the skips that $NVSHMEM_TEST_SKIPS_ALLOWED allows:"
        sed 's/^/  /' "$work/unexpected" >&2
    fi
fi
echo "$passed passed, $failed failed, $(wc -l <"$work/skips") skipped"
exit "$status"
