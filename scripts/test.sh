#!/usr/bin/env bash
# Runs one tier of the tests, says what each part took, lists what was skipped and why, and ends with
# "N passed, N failed, N skipped":
#   scripts/test.sh quick|test|full
# CONTRIBUTING.md says what the tiers hold and which variables the tests read.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=$1

# In a mount namespace of our own two things are empty. The names of the kernel's symbols, all of
# which libfabric 1.17 reads twice when it starts: a tenth of a second of a core in every process.
# And shared memory, where killed processes leave files of shm that those with their numbers meet.
readonly EMPTIED='mount --bind /dev/null /proc/kallsyms && mount -t tmpfs tmpfs /dev/shm'
if [[ -f /proc/kallsyms ]] && unshare --mount bash -c "$EMPTIED" 2>/dev/null; then
    exec unshare --mount bash -c "$EMPTIED && exec scripts/test.sh $tier"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TERM_COLOR=never # the log is read below
# What a user has set for programs on NVSHMEM and libfabric is not for the tests.
for variable in $(compgen -e); do
    case $variable in
    NVSHMEM_TEST_*) ;;
    NVSHMEM_* | FI_* | FAKE_CUDA_* | CUDA_MODULE_LOADING | CUDA_DEVICE_MAX_CONNECTIONS) unset "$variable" ;;
    esac
done

# Runs a command as a part of the tier: part NAME COMMAND...
failed=()
part() {
    local name=$1 TIMEFORMAT='%0R %0U %0S'
    shift
    echo "== $name"
    { time "$@" 2>&1 | tee -a "$work/log"; } 2>"$work/time" || failed+=("$name")
    read -r wall user system < <(tail -n 1 "$work/time")
    printf '%-42s %6d s %6d s\n' "$name" "$wall" "$((user + system))" | tee -a "$work/parts"
}
checked() { scripts/cargo test --locked --profile checked --workspace --no-fail-fast "$@"; }
# A process loads one libfabric, so the second one takes another run.
second_libfabric() {
    if [[ -n $NVSHMEM_TEST_LIBFABRIC2 ]]; then
        OFI_TEST_LIBRARY=$NVSHMEM_TEST_LIBFABRIC2 checked --test ofi
    else
        echo "SKIPPED libfabric's objects, libfabric 2.x: NVSHMEM_TEST_LIBFABRIC2 is empty"
    fi
}
# Runs a script that ends with status 2, or 3, where the machine lacks something.
unless_lacking() {
    local status=0
    "$@" || status=$?
    [[ $status -ne 2 && $status -ne 3 ]] || { echo "SKIPPED $1: this machine lacks what it needs" && status=0; }
    return "$status"
}

NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_LIBFABRIC2
case $tier in
quick)
    export NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-5}
    # Loom's tests take many cores' seconds, and are of few files.
    readonly QUICK=(--lib --bins --test engine --exclude channel-loom)
    part "build" checked --no-run "${QUICK[@]}" --test plugin
    part "unit tests, engine on the fake" checked "${QUICK[@]}"
    part "plugin on tcp and shm" checked --test plugin -- smoke::
    ;;
test | full)
    if [[ $tier == full ]]; then
        export NVSHMEM_TEST_FULL=1 NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-2000}
        scripts/cuda-compiler.sh >/dev/null || true # kernels are compiled, where they can be
    fi
    # Fresh schedules in every run find in many short ones what one long run would.
    export NVSHMEM_TEST_SEEDS=${NVSHMEM_TEST_SEEDS:-12}
    part "formatting and lints" scripts/check.sh
    part "build" checked --no-run --lib --bins --test '*'
    part "unit tests" checked --lib --bins
    part "test programs" checked --test '*'
    part "ofi on libfabric 2.x" second_libfabric
    ;;
esac
if [[ $tier == full ]]; then
    part "rustdoc, oldest Rust, licences, bindings" scripts/check.sh full
    part "documentation tests" checked --doc
    part "model of the engine" \
        scripts/cargo test --locked --profile checked -p engine --features model --test engine model::
    part "shipped plugin" make --no-print-directory stage
    part "shipped plugin on tcp and shm" \
        env NVSHMEM_TEST_PLUGIN_DIR="$PWD/${CARGO_TARGET_DIR:-target}/install/lib" \
        scripts/cargo test --locked --profile checked --workspace --test plugin -- smoke::
    part "NVSHMEM programs" scripts/nvshmem-programs.sh "${CARGO_TARGET_DIR:-target}/nvshmem"
    part "NCCL programs" scripts/nccl-programs.sh "${CARGO_TARGET_DIR:-target}/nccl"
    part "device API as bitcode" unless_lacking tools/labs/gpu/bitcode/build.sh "${CARGO_TARGET_DIR:-target}/libnvshmem_libfabric_device"
    part "laboratories" env EXTENT=full tools/labs/run.sh
    part "faults" scripts/reliability.sh 500 1
    part "fuzzing" scripts/fuzz.sh 2000
    part "AddressSanitizer" unless_lacking scripts/sanitize.sh address
    part "ThreadSanitizer" unless_lacking scripts/sanitize.sh threads
    part "Arm under QEMU" unless_lacking scripts/arm.sh
    part "minimal trees of Debian" scripts/fresh.sh
fi

printf '\n%-42s %8s %8s\n' "part" "wall" "processor"
cat "$work/parts"
awk '{ wall += $(NF - 3); cpu += $(NF - 1) } END { printf "%-42s %6d s %6d s\n", "all", wall, cpu }' "$work/parts"
# Skips are "SKIPPED WHAT: REASON", and tests that are ignored.
sed -nE 's/^SKIPPED (.+: .+)$/\1/p
    s/^test (.*[^ ]) +\.\.\. ignored, (.+)$/\1: \2/p
    s/^test (.*[^ ]) +\.\.\. ignored \((.+)\)$/\1: \2/p
    s/^test (.*[^ ]) +\.\.\. ignored$/\1: no reason given/p' "$work/log" | sort >"$work/skips"
sed 's/^/SKIPPED /' "$work/skips"
grep -E '^test .* \.\.\. FAILED' "$work/log" >&2 || true
if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'Failed: %s\n' "${failed[@]}" >&2
fi
# A file that NVSHMEM_TEST_SKIPS_ALLOWED names has regular expressions for the skips that may be.
unexpected=
if [[ -n ${NVSHMEM_TEST_SKIPS_ALLOWED:-} ]]; then
    unexpected=$(grep -vEf <(sed '/^#/d; /^$/d' "$NVSHMEM_TEST_SKIPS_ALLOWED") "$work/skips" || true)
    [[ -z $unexpected ]] || printf 'Not a skip that %s allows: %s\n' "$NVSHMEM_TEST_SKIPS_ALLOWED" "$unexpected" >&2
fi
awk -v skipped="$(wc -l <"$work/skips")" '/^test result: / {
        for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i - 1); if ($i ~ /^failed/) f += $(i - 1) }
    } END { printf "%d passed, %d failed, %d skipped\n", p, f, skipped }' "$work/log"
[[ ${#failed[@]} -eq 0 && -z $unexpected ]]
