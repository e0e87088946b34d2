#!/usr/bin/env bash
# Builds the device API as LLVM bitcode, OUTPUT.bc, for compilers that link such, as Triton, and as
# PTX, OUTPUT.ptx, for those that link that, as Numba:
#   scripts/device-bitcode.sh OUTPUT
# and checks it: every function that the headers have for kernels is in it, and nothing is missing.
# cuda/bitcode/check.py then links kernels of those compilers to it, of those that PYTHON (python3)
# has. It needs clang, from 14 on (CLANG, else the first of the PATH), with its llvm-nm; no CUDA.
# The oldest clang makes what most linkers read. Exit status 3 when there is none.
set -euo pipefail

readonly output=$1
cd "$(dirname "$0")/.."

clang=${CLANG:-}
for candidate in clang-14 clang-15 clang-16 clang-17 clang-18 clang-19 clang-20 clang; do
    [[ -n $clang ]] || clang=$(command -v "$candidate" || true)
done
if [[ -z $clang ]]; then
    echo "no clang: the device API's bitcode is not built" >&2
    exit 3
fi
nm=$("$clang" -print-prog-name=llvm-nm)
mkdir -p "$(dirname "$output")"
# One set of instructions for all GPUs from Volta on.
gpu=(-Xclang -target-feature -Xclang +ptx63)
"$clang" -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 "${gpu[@]}" -nocudainc -nocudalib -std=c++14 -O2 -Wall -Wextra -Werror \
    -Wno-unused-function -Wno-unknown-cuda-version -include cuda/bitcode/builtins.h -Iinclude \
    -emit-llvm -S cuda/bitcode/device.cu -o "$output.ll"
# Who links it has flags of its own for the module, and refuses others, as Triton does for that of
# how denormal numbers are taken. There are no such numbers here.
sed -i '/^!llvm\.module\.flags = /d' "$output.ll"
from_text=("$clang" -x ir --target=nvptx64-nvidia-cuda -O2 -Xclang -target-cpu -Xclang sm_70 "${gpu[@]}")
"${from_text[@]}" -emit-llvm -c "$output.ll" -o "$output.new"
"${from_text[@]}" -S "$output.ll" -o "$output.ptx"
rm "$output.ll"

# Functions of the headers, without the type that ends those of templates.
named() {
    sed 's/_[ui][0-9]*$//' | sort -u
}
missing=$(comm -23 \
    <({
        grep -hoE '\bNLF(_TEMPLATE)?_FN [a-z0-9_]+ \*?nlf_[a-z_]+\(' cuda/nvshmem_libfabric_{device,wait}.cuh |
            grep -oE 'nlf_[a-z_]+'
        grep -hoE 'NLFI_FETCHING\(nlf_[a-z_]+' cuda/nvshmem_libfabric_device.cuh | grep -oE 'nlf_[a-z_]+'
        grep -hoE 'NLFI_COOPERATIVE\(nlf_[a-z_]+' cuda/nvshmem_libfabric_{device,wait}.cuh |
            grep -oE 'nlf_[a-z_]+' | sed 's/$/_warp/;p;s/_warp$/_block/'
    } | sort -u) \
    <("$nm" --defined-only "$output.new" | awk '{ print $NF }' | named))
undefined=$("$nm" --undefined-only "$output.new" | awk '{ print $NF }' | grep -v '^llvm\.' || true)
if [[ -n $missing$undefined ]]; then
    echo "$output.bc lacks ${missing//$'\n'/ } ${undefined//$'\n'/ }" >&2
    rm "$output.new" "$output.ptx"
    exit 1
fi
mv "$output.new" "$output.bc"
echo "$output.bc: $("$nm" --defined-only "$output.bc" | grep -c ' nlf_') functions, by $("$clang" --version | head -n 1)"
"${PYTHON:-python3}" cuda/bitcode/check.py "$output"
