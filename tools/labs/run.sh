#!/usr/bin/env bash
# Builds all laboratories, and runs their own tests and some laboratories, without names all:
#   [EXTENT=full] [VERSIONS="2.1 cuda"] tools/labs/run.sh [efa | cxi | rdma]...
# EXTENT=full runs every case, else one in four. VERSIONS names libfabrics that efa runs over one
# after the other, in place of the newest and the system's: those of scripts/libfabric2.txt, 'cuda'
# (efa/libfabric-cuda.sh), or 'all'.
set -euo pipefail
cd "$(dirname "$0")/../.."
names=("$@")
[[ $# -gt 0 ]] || names=(efa cxi rdma)

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/labs
# Nothing here runs kernels.
export NVCC=''
labs() { # labs SUBCOMMAND ARGUMENTS...
    scripts/cargo "$1" --manifest-path tools/labs/Cargo.toml --target-dir "$target" --locked --profile checked "${@:2}"
}
NVSHMEM_TEST_LIBFABRIC2=${NVSHMEM_TEST_LIBFABRIC2-$(scripts/libfabric2.sh)}
export NVSHMEM_TEST_LIBFABRIC2
[[ ${EXTENT:-} != full ]] || export NVSHMEM_TEST_FULL=1

labs test --workspace --exclude lab-tests
labs test -p lab-tests --no-run
failed=()
for name in "${names[@]}"; do
    case $name in
    efa)
        read -ra versions <<<"${VERSIONS:-}"
        [[ ${VERSIONS:-} != all ]] || mapfile -t versions < <(awk '!/^#/ { print $1 }' scripts/libfabric2.txt && echo cuda)
        [[ ${#versions[@]} -gt 0 ]] || labs test -p lab-tests -- efa:: || failed+=(efa)
        for version in ${versions[@]+"${versions[@]}"}; do
            echo "== efa of libfabric $version"
            case $version in
            cuda) library=$(tools/labs/efa/libfabric-cuda.sh) && variables=("NVSHMEM_TEST_LIBFABRIC_CUDA=$library") ;;
            *) library=$(scripts/libfabric2.sh "$version") && variables=() ;;
            esac
            (
                export NVSHMEM_TEST_LIBFABRIC2=$library ${variables[@]+"${variables[@]}"}
                labs test -p lab-tests -- efa:: --skip system_libfabric
            ) || failed+=("efa-$version")
        done
        ;;
    cxi) labs test -p lab-tests -- cxi:: || failed+=(cxi) ;;
    rdma) tools/labs/rdma/run.sh "$target" || failed+=(rdma) ;;
    *) echo "no laboratory is named $name: efa, cxi, rdma" >&2 && exit 2 ;;
    esac
done
[[ ${#failed[@]} -eq 0 ]] || { echo "failed: ${failed[*]}" >&2 && exit 1; }
