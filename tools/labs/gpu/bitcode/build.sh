#!/usr/bin/env bash
# Builds the device API as LLVM bitcode, OUTPUT.bc, for compilers that link such, as Triton, and as
# PTX, OUTPUT.ptx, for those that link that, as Numba:
#   tools/labs/gpu/bitcode/build.sh OUTPUT
# and checks that nothing is missing in it; check.py then links kernels of those compilers that PYTHON
# (python3) has. It needs clang, from 14 on (CLANG, else the first of the PATH), with its llvm-nm; no
# CUDA. The oldest clang makes what most linkers read. Exit status 3 when there is none.
set -euo pipefail

output=$(realpath -m "$1")
readonly output
cd "$(dirname "$0")/../../../.."

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

undefined=$("$nm" --undefined-only "$output.new" | awk '{ print $NF }' | grep -v '^llvm\.' || true)
if [[ -n $undefined ]]; then
    echo "$output.bc lacks ${undefined//$'\n'/ }" >&2
    rm "$output.new" "$output.ptx"
    exit 1
fi
mv "$output.new" "$output.bc"
echo "$output.bc: $("$nm" --defined-only "$output.bc" | grep -c ' nlf_') functions, by $("$clang" --version | head -n 1)"
"${PYTHON:-python3}" tools/labs/gpu/bitcode/check.py "$output"
