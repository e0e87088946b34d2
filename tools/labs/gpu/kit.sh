#!/usr/bin/env bash
# Collects in DIRECTORY what NVSHMEM programs need to run through this transport on a machine that
# has a GPU, nvcc, make, a C++ compiler and an NVSHMEM, and no Rust:
#   tools/labs/gpu/kit.sh PLUGIN_DIRECTORY DIRECTORY
# With "tests", collects instead what the suites on device memory need, on a machine with CUDA's
# driver and a libfabric of 1.17 or newer:
#   tools/labs/gpu/kit.sh tests PLUGIN_DIRECTORY DIRECTORY
# DIRECTORY/run.sh is then what is run there.
set -euo pipefail
cd "$(dirname "$0")/../../.."
kind=kit
[[ $1 != tests ]] || { kind=tests && shift; }
plugins=$1 to=$2
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
lab=tools/labs/gpu

scripts/empty-dir.sh "$to"
mkdir -p "$to/lib"
cp -P "$plugins"/nvshmem_transport_libfabric.so* "$to/lib/"
# Symbols stay, for backtraces; line numbers are most of the size.
strip_debug() {
    local file
    for file in "$@"; do [[ -L $file ]] || objcopy --strip-debug "$file"; done
}
if [[ $kind == tests ]]; then
    for test in plugin cuda; do
        scripts/cargo test --locked --release --no-run --test "$test"
        built=$(scripts/cargo test --locked --release --no-run --test "$test" --message-format json 2>/dev/null |
            sed -nE '/"kind":\["test"\]/s/.*"executable":"([^"]+)".*/\1/p' | tail -n 1)
        cp "$built" "$to/$test"
    done
    strip_debug "$to/plugin" "$to/cuda" "$to"/lib/*
    cp "$lab/tests-run.sh" "$to/run.sh"
else
    scripts/cargo build --locked --release -p nvshmem-libfabric -p nvshmem-libfabric-channel
    scripts/cargo build --manifest-path tools/labs/Cargo.toml --target-dir "$target/labs" --locked --release \
        -p nvshmem-gpu-run -p channel-check
    cp "$target"/labs/release/{nvshmem-gpu-run,nvshmem-channel-check} "$to/"
    # It finds the plugin files in ../lib: bin/nvshmem-libfabric qualify.
    install -D "$target/release/nvshmem-libfabric" "$to/bin/nvshmem-libfabric"
    cp "$plugins/libnccl-rma-nvshmem-libfabric.so" "$target/release/libnvshmem_libfabric_channel.so" "$to/lib/"
    strip_debug "$to"/nvshmem-* "$to"/bin/* "$to"/lib/*
    # Without a clang, the programs for Triton and Numba say what they lack.
    "$lab/bitcode/build.sh" "$to/lib/libnvshmem_libfabric_device" || [[ $? == 3 ]]
    # The systems that have one have 1.17, mostly; native tcp is in 2.x.
    cp -L "$(scripts/libfabric2.sh)" "$to/libfabric.so.1"
    mkdir "$to/programs"
    cp -r cuda/nvshmem cuda/nccl "$to/programs"
    cp -r "$lab/clients" "$lab/peers" "$to/"
    cp "$lab/kit-run.sh" "$to/run.sh"
fi
echo "$to: carry it to a machine with a GPU, and start run.sh there"
