#!/usr/bin/env bash
# Builds the programs beside this script for this machine, and runs them through the transport in
# lib:
#   [NVSHMEM=prefix] [CUDA=toolkit] [ARCHS="80 90"] [PERFTEST=tree/perftest] [EXAMPLES=tree/examples] [PPLX=tree/csrc] \
#       [PYTORCH_TESTS=directory] [NVSHMEM4PY_TESTS=directory] [DEEPEP=tree] [LIBFABRIC=file] \
#       ./run.sh [clients | experts | peers | nccl] [ARGUMENTS OF nvshmem-gpu-run, such as --only put,get --out DIRECTORY]
# With "clients" it runs Python programs on PyTorch and nvshmem4py instead, for which no nvcc is
# needed, and tests of others where their sources are named: PYTORCH_TESTS is test/distributed of
# PyTorch's, NVSHMEM4PY_TESTS nvshmem4py/test of NVSHMEM's, DEEPEP a tree of DeepEP V1, built, PPLX
# csrc of a tree of pplx-kernels.
# With "experts" it compares NVSHMEM's device API and our device channel at the all-to-alls of a
# mixture of experts. With "peers" it compares this transport and NCCL between two GPUs.
# NVSHMEM is a prefix with include and lib; without it, the one that pip has installed for python3,
# or /usr/local/nvshmem. PERFTEST and EXAMPLES are the directories of these names in NVSHMEM's
# source tree: their programs run as well. With "nccl" the programs are NCCL's, by its RMA plugin:
# NCCL is then its prefix, without which pip's is taken, EXAMPLES the directory docs/examples of its
# source tree, and TESTS a tree of nccl-tests, whose programs of the device API run as well.
# LIBFABRIC is the libfabric to use, "system" the system's; without it, the 2.x in here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

fail() {
    echo "$*" >&2
    exit 2
}

nvshmem=${NVSHMEM:-}
if [[ ${1:-} == nccl ]]; then
    nccl=${NCCL:-$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null || echo /usr)}
    [[ -f $nccl/include/nccl.h ]] || fail "no NCCL in $nccl: name its prefix with NCCL=..."
elif [[ -z $nvshmem ]]; then
    nvshmem=$(python3 -c 'import nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null) ||
        nvshmem=/usr/local/nvshmem
fi
[[ ${1:-} == nccl || -d $nvshmem/include ]] || fail "no NVSHMEM in $nvshmem: name its prefix with NVSHMEM=..."

case ${LIBFABRIC:-} in
system) libfabric=() ;;
'') libfabric=(--libfabric "$here/libfabric.so.1") ;;
*) libfabric=(--libfabric "$(realpath "$LIBFABRIC")") ;;
esac
if [[ ${1:-} == clients && -z ${PPLX:-} ]]; then
    shift
    exec "$here/nvshmem-gpu-run" --nvshmem "$nvshmem" --plugin-dir "$here/lib" --programs "$here/clients" \
        "${libfabric[@]}" "$@"
fi

cuda=${CUDA:-}
if [[ -z $cuda ]]; then
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    [[ -x $nvcc ]] || fail "no nvcc: put it on PATH, or name the toolkit with CUDA=..."
    cuda=$(dirname "$(dirname "$(realpath "$nvcc")")")
fi

archs=${ARCHS:-}
if [[ -z $archs ]]; then
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | xargs) ||
        fail "nvidia-smi does not list the GPUs: name their compute capabilities with ARCHS=\"90\""
fi

# One directory per library: programs run with the release that they were built with.
build=$here/build/$(printf '%s' "${nccl:-$nvshmem} $archs" | cksum | cut -d' ' -f1)
if [[ ${1:-} == nccl ]]; then
    shift
    goals=(programs ${EXAMPLES:+examples} ${TESTS:+tests})
    make --silent --keep-going --directory "$here/programs/nccl" --jobs "$(nproc)" NCCL="$nccl" CUDA="$cuda" \
        ARCHS="$archs" OUT="$build" ${EXAMPLES:+EXAMPLES="$(realpath "$EXAMPLES")"} \
        ${TESTS:+TESTS="$(realpath "$TESTS")"} "${goals[@]}" ||
        echo "some programs do not build with the NCCL in $nccl: see above" >&2
    exec "$here/nvshmem-gpu-run" --nccl "$nccl" --plugin-dir "$here/lib" --programs "$build" "${libfabric[@]}" "$@"
fi
arguments=(NVSHMEM="$nvshmem" CUDA="$cuda" ARCHS="$archs")

# Those of others that do not build with this NVSHMEM are left out.
upstream() { # upstream KIND VARIABLE DIRECTORY
    make --silent --keep-going --file "$here/programs/nvshmem/upstream.mk" --jobs "$(nproc)" \
        "${arguments[@]}" "$2=$(realpath "$3")" OUT="$build/$1" "$1" ||
        echo "some $1 do not build with the NVSHMEM in $nvshmem: see above" >&2
    run+=("--$1" "$build/$1")
}
if [[ ${1:-} == clients ]]; then
    shift
    run=(--nvshmem "$nvshmem" --plugin-dir "$here/lib" --programs "$here/clients")
    upstream pplx PPLX "$PPLX"
    exec "$here/nvshmem-gpu-run" "${run[@]}" "${libfabric[@]}" "$@"
fi
make --silent --directory "$here/programs/nvshmem" --jobs "$(nproc)" "${arguments[@]}" \
    OUT="$build/programs" programs
run=(--nvshmem "$nvshmem" --plugin-dir "$here/lib" --programs "$build/programs")

if [[ ${1:-} == experts || ${1:-} == peers ]]; then
    exec "$here/$1.sh" "$nvshmem" "$build/programs" ${libfabric[1]:+"${libfabric[1]}"}
fi

[[ -z ${PERFTEST:-} ]] || upstream perftests PERFTEST "$PERFTEST"
[[ -z ${EXAMPLES:-} ]] || upstream examples EXAMPLES "$EXAMPLES"

exec "$here/nvshmem-gpu-run" "${run[@]}" "${libfabric[@]}" "$@"
