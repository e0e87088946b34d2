#!/usr/bin/env bash
# Builds a libfabric with CUDA and efa, which no package has, into .deps/libfabric-cuda, unless it is
# there, and prints the path of its library. CUDA's libraries and EFA's are found when it runs.
# The source is that of Debian's package, from where this machine gets its own; autoconf, automake
# and libtool are installed where they are missing, which takes root.
set -euo pipefail
cd "$(dirname "$0")/../../.."

readonly WANTED=tools/labs/efa/libfabric-cuda.txt
readonly HOME_DIR=.deps/libfabric-cuda
read -r version release package hash < <(grep -v '^#' "$WANTED")

# The copy of the request tells what was built.
! cmp -s "$WANTED" "$HOME_DIR/built.txt" || { echo "$PWD/$HOME_DIR/libfabric.so.1" && exit 0; }

verbs=$(scripts/headers.sh verbs)
scripts/nvshmem-wheels.sh cuda >/dev/null
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scripts/cargo build --locked --quiet --profile checked -p fake-cuda >&2
scripts/cargo build --manifest-path tools/labs/Cargo.toml --target-dir "$target/labs" --locked --quiet --profile checked \
    -p efa-lab -p cudart-lab >&2
{ command -v autoreconf && command -v libtoolize; } >/dev/null ||
    apt-get install -q -y --no-install-recommends autoconf automake libtool >&2
# shellcheck disable=SC2016 # apt's own names
mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' | sed -nE 's/^Debian Debian (.*)/\1/p' | head -n 1)

work=$(mktemp -d "$PWD/.deps/build.XXXXXX")
trap 'rm -rf "${work:?}"' EXIT
mkdir -p "$work"/{lists,cache/archives}/partial "$work"/{source,verbs/lib,cuda/lib64,nvml}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keyring] $mirror $release main" >"$work/sources.list"
# The machine's own configuration, with lists and downloads of our own.
apt() {
    apt-get -qq -o APT::Sandbox::User= -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
        -o APT::Update::Post-Invoke-Success::= -o Acquire::Languages=none "$@" >&2
}
apt update
# What Debian adds is not needed, and some mirrors lack it; the hash tells what is there.
(cd "$work/source" && apt source --download-only "libfabric=$package") || true
sha256sum --check --quiet <<<"$hash  $work/source/libfabric_$version.orig.tar.xz" >&2
tar -xf "$work/source/libfabric_$version.orig.tar.xz" -C "$work/source"

# What it is linked to: linker scripts keep the names that the stand-ins are found by.
for name in libibverbs libefa; do
    cp "$target/labs/checked/libefa_lab.so" "$work/verbs/lib/$name.so.1"
    echo "INPUT ( -l:$name.so.1 )" >"$work/verbs/lib/$name.so"
done
ln -s "$(echo "$verbs"/[0-9]*)" "$work/verbs/include"
ln -s "$target/checked/libfake_cuda.so" "$work/cuda/lib64/libcuda.so"
ln -s "$target/labs/checked/libcudart_lab.so" "$work/cuda/lib64/libcudart.so"
ln -s "$PWD/.deps/nvshmem/cuda/include" "$work/cuda/include"
# NVML is optional where it runs, and not where it is built.
cat >"$work/nvml/nvml.h" <<'END'
typedef enum { NVML_SUCCESS = 0 } nvmlReturn_t;
nvmlReturn_t nvmlInit_v2(void), nvmlShutdown(void), nvmlDeviceGetCount_v2(unsigned int *);
END
(
    cd "$work/source/libfabric-$version"
    ./autogen.sh
    left_out=(lpp mrail opx psm2 psm3 rxd sm2 sockets udp usnic ucx verbs cxi lnx perf trace profile
        hook_debug hook_hmem dmabuf_peer_mem)
    ./configure --disable-static "${left_out[@]/#/--disable-}" --enable-shm --enable-efa="$work/verbs" \
        --with-cuda="$work/cuda" --enable-cuda-dlopen CFLAGS=-O1 \
        CPPFLAGS="-I$work/nvml -I$work/cuda/include -I$work/verbs/include"
    make -j"$(nproc)" src/libfabric.la
) >"$work/log" 2>&1 || {
    tail -n 40 "$work/log" >&2
    exit 1
}
rm -rf "${HOME_DIR:?}"
mkdir -p "$HOME_DIR"
cp -L "$work/source/libfabric-$version/src/.libs/libfabric.so.1" "$HOME_DIR/"
cp "$WANTED" "$HOME_DIR/built.txt"
echo "$PWD/$HOME_DIR/libfabric.so.1"
