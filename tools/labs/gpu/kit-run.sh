#!/usr/bin/env bash
# Builds the programs beside this script for this machine, and runs them through the transport in
# lib:
#   [VARIABLES] ./run.sh [clients | peers | nccl] [ARGUMENTS OF nvshmem-gpu-run, such as --only put,get --out DIRECTORY]
# clients  Python programs on PyTorch and nvshmem4py, without nvcc, and suites of others:
#          PYTORCH_TESTS (test/distributed of PyTorch), NVSHMEM4PY_TESTS (nvshmem4py/test of
#          NVSHMEM), DEEPEP (a built tree of DeepEP V1), PPLX (csrc of pplx-kernels, which is built)
# peers    this transport and NCCL between two GPUs, by turns
# nccl     programs of NCCL's RMA and GIN; EXAMPLES is then NCCL's docs/examples, TESTS nccl-tests
# NVSHMEM, NCCL  a prefix with include and lib; without, pip's for python3
# CUDA, ARCHS    the toolkit, and compute capabilities: "80 90"
# PERFTEST, EXAMPLES  directories of NVSHMEM's source tree, whose programs are run as well
# LIBFABRIC      the libfabric to use, "system" the system's; without, the 2.x in here
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

fail() {
    echo "$*" >&2
    exit 2
}
installed() { # installed PACKAGE: prints pip's directory of it
    python3 -c "import nvidia.$1 as n; print(list(n.__path__)[0])" 2>/dev/null
}
what=programs
case ${1:-} in clients | peers | nccl) what=$1 && shift ;; esac

if [[ $what == nccl ]]; then
    library=${NCCL:-$(installed nccl || echo /usr)}
    [[ -f $library/include/nccl.h ]] || fail "no NCCL in $library: name its prefix with NCCL=..."
else
    library=${NVSHMEM:-$(installed nvshmem || echo /usr/local/nvshmem)}
    [[ -d $library/include ]] || fail "no NVSHMEM in $library: name its prefix with NVSHMEM=..."
fi
libfabric=(--libfabric "$here/libfabric.so.1")
case ${LIBFABRIC:-} in
system) libfabric=() ;;
?*) libfabric=(--libfabric "$(realpath "$LIBFABRIC")") ;;
esac
run=("$here/nvshmem-gpu-run" --plugin-dir "$here/lib" ${libfabric[@]+"${libfabric[@]}"})
[[ $what != clients || -n ${PPLX:-} ]] || exec "${run[@]}" --nvshmem "$library" --programs "$here/clients" "$@"

cuda=${CUDA:-}
if [[ -z $cuda ]]; then
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    [[ -x $nvcc ]] || fail "no nvcc: put it on PATH, or name the toolkit with CUDA=..."
    cuda=$(dirname "$(dirname "$(realpath "$nvcc")")")
fi
archs=${ARCHS:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | xargs)}
[[ -n $archs ]] || fail "nvidia-smi does not list the GPUs: name their compute capabilities with ARCHS=\"90\""
# One directory per library: programs run with the release that they were built with.
build=$here/build/$(printf '%s' "$library $archs" | cksum | cut -d' ' -f1)
built() { # built MAKEFILE OUT GOALS AND VARIABLES...
    make --silent --keep-going --file "$here/programs/$1" --directory "$here/programs/$(dirname "$1")" --jobs "$(nproc)" \
        CUDA="$cuda" ARCHS="$archs" OUT="$build/$2" "${@:3}"
}
upstream() { # upstream KIND VARIABLE [DIRECTORY]
    [[ -n ${3:-} ]] || return 0
    built nvshmem/upstream.mk "$1" NVSHMEM="$library" "$2=$(realpath "$3")" "$1" ||
        echo "some $1 do not build with $library: see above" >&2
    run+=("--$1" "$build/$1")
}
case $what in
nccl)
    built nccl/Makefile . NCCL="$library" programs ${EXAMPLES:+EXAMPLES="$(realpath "$EXAMPLES")" examples} \
        ${TESTS:+TESTS="$(realpath "$TESTS")" tests} || echo "some do not build with $library: see above" >&2
    cp "$here"/clients/{pe.py,ep_environment.py,nccl-ep,flashinfer-ep,torch-nccl-symmetric} "$build/"
    exec "${run[@]}" --nccl "$library" --programs "$build" "$@"
    ;;
clients)
    upstream pplx PPLX "$PPLX"
    exec "${run[@]}" --nvshmem "$library" --programs "$here/clients" "$@"
    ;;
esac
built nvshmem/Makefile programs NVSHMEM="$library" programs
run+=(--nvshmem "$library" --programs "$build/programs")
[[ $what != peers ]] || exec python3 "$here/peers/run.py" "${run[@]}"
upstream perftests PERFTEST "${PERFTEST:-}"
upstream examples EXAMPLES "${EXAMPLES:-}"
exec "${run[@]}" "$@"
