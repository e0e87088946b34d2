#!/usr/bin/env bash
# Makes packages of what was installed in a prefix of its own:
#   scripts/package.sh PREFIX DIRECTORY [PACKAGE]...
# A PACKAGE is 'wheel' for Python's pip, or 'deb' for Debian and Ubuntu; without one, both.
# DIRECTORY, which is empty or in a build directory, then holds them, the release notes and SHA256SUMS.
# The version is Cargo.toml's; SOURCE_DATE_EPOCH, DEBFULLNAME and DEBEMAIL are as for Debian's tools.
# NVSHMEM_LIBFABRIC_HOME_PAGE is the home page, or else where this tree was cloned from.
set -euo pipefail
umask 022
prefix=$(realpath "$1")
out=$(realpath -m "$2")
shift 2
cd "$(dirname "$0")/.."
[[ $# -gt 0 ]] || set -- wheel deb
version=$(sed -nE '/^\[workspace\.package\]/,/^$/ s/^version = "(.*)"$/\1/p' Cargo.toml)
tool=$prefix/bin/nvshmem-libfabric
built=$("$tool" -V)
if [[ $built != "nvshmem-libfabric $version" ]]; then
    echo "$tool is '$built', and Cargo.toml says $version: install what is to be packed first" >&2
    exit 1
fi
scripts/install.sh check "$prefix/lib"
# The processor that the files are for, as Rust and Debian call it.
machine=x86_64 architecture=amd64
! readelf --file-header "$tool" | grep -q 'Machine: *AArch64' || machine=aarch64 architecture=arm64
# Times in the packages, so that the same files make the same packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

author=${DEBFULLNAME:-nvshmem-libfabric maintainers}
address=${DEBEMAIL:-$(git config user.email 2>/dev/null || echo root@"$(uname -n)")}
home_page=${NVSHMEM_LIBFABRIC_HOME_PAGE:-$(git remote get-url origin 2>/dev/null | sed -nE 's|^(https://[^@ ]+)$|\1|p; s|^git@([^:]+):|https://\1/|p' || true)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/out"
packaging/release-notes.sh "$version" >"$work/out/RELEASE-NOTES.md"

scripts/cargo metadata --locked --format-version 1 --filter-platform "$machine-unknown-linux-gnu" |
    packaging/notices.py "$work/sbom.cdx.json" nvshmem-transport-libfabric nvshmem-libfabric-channel nccl-rma-nvshmem-libfabric nvshmem-libfabric >"$work/NOTICES"

# The oldest glibc that has every symbol that is asked for; all else that is linked is part of gcc's
# runtime.
libraries=("$prefix"/lib/*.so.* "$prefix"/lib/libnccl-rma-*.so)
glibc=$(readelf --version-info --wide "$tool" "${libraries[@]}" | grep -oE '\bGLIBC_2\.[0-9]+' | sort -uV | tail -n 1 | cut -d_ -f2)
others=$(readelf --dynamic --wide "$tool" "${libraries[@]}" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | sort -u |
    grep -vE '^(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-[a-z0-9-]+)\.so\.[0-9]+$' || true)
if [[ -n $others ]]; then
    echo "No package says yet that these libraries are needed: ${others//$'\n'/ }" >&2
    exit 1
fi

# Everything but debug information and the record of the prefix: copy_to DIRECTORY.
copy_to() {
    mkdir -p "$1"
    cp -a "$prefix/bin" "$prefix/lib" "$prefix/include" "$prefix/share" "$1/"
    rm -r "$1/lib/.debug" "$1/share/nvshmem-libfabric"
    chmod -R u=rwX,go=rX "$1"
}

make_wheel() {
    local tree=$work/python python found=
    cp -r packaging/python "$tree"
    copy_to "$tree/nvshmem_libfabric"
    # Where man and shells look, in the environment.
    mv "$tree/nvshmem_libfabric/share" "$tree/"
    # A wheel has no links. What the compiler's linker looks for may be a text.
    rm "$tree"/nvshmem_libfabric/lib/libnvshmem_libfabric_channel.so
    echo 'INPUT(-l:libnvshmem_libfabric_channel.so.0)' >"$tree/nvshmem_libfabric/lib/libnvshmem_libfabric_channel.so"
    cp LICENSE "$work/NOTICES" "$tree/"
    local -x NVSHMEM_LIBFABRIC_VERSION=$version NVSHMEM_LIBFABRIC_WHEEL_PLATFORM
    local -x DEBFULLNAME=$author DEBEMAIL=$address NVSHMEM_LIBFABRIC_HOME_PAGE=$home_page
    NVSHMEM_LIBFABRIC_WHEEL_PLATFORM=manylinux_${glibc/./_}_$machine
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import setuptools, wheel' 2>/dev/null && found=$python && break
    done
    if [[ -n $found ]]; then
        (cd "$tree" && "$found" -c "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])" "$work/out") >"$work/log" 2>&1
    else
        # pip fetches them for this alone.
        python3 -m pip wheel --quiet --no-deps --wheel-dir "$work/out" "$tree" >"$work/log" 2>&1
    fi || {
        cat "$work/log" >&2
        echo "The wheel cannot be made: see above. Python's setuptools and wheel are needed, here or from a package index." >&2
        exit 1
    }
}

make_deb() {
    local tree=$work/deb triplet=$machine-linux-gnu
    copy_to "$tree/usr"
    mv "$tree/usr/lib" "$work/$triplet" && mkdir "$tree/usr/lib" && mv "$work/$triplet" "$tree/usr/lib/"
    sed -i "s|}/\.\./\.\.|}/../../..|; s|}/lib\b|}/lib/$triplet|" "$tree/usr/lib/$triplet"/*/*.pc "$tree/usr/lib/$triplet"/cmake/*/*-config.cmake
    local doc=$tree/usr/share/doc/nvshmem-libfabric
    mkdir -p "$doc" "$tree/DEBIAN" && cp "$work/sbom.cdx.json" "$doc/"
    gzip -9 -n <CHANGELOG.md >"$doc/CHANGELOG.md.gz"
    {
        printf 'nvshmem-libfabric: Apache License, version 2.0, which is in /usr/share/common-licenses/Apache-2.0.\n\n'
        cat "$work/NOTICES"
    } >"$doc/copyright"
    gzip -9 -n "$tree"/usr/share/man/man1/*.1
    mv "$tree/usr/share/zsh/site-functions" "$tree/usr/share/zsh/vendor-completions"
    cp packaging/debian/triggers "$tree/DEBIAN/"
    sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@GLIBC@/$glibc/" \
        -e "s/@SIZE@/$(du -sk --apparent-size "$tree/usr" | cut -f1)/" \
        -e "s/@MAINTAINER@/$author <$address>/" -e "s|@HOMEPAGE@|$home_page|; /^Homepage: $/d" \
        packaging/debian/control >"$tree/DEBIAN/control"
    (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    chmod 644 "$tree/usr/lib/$triplet"/*.so*
    # Debian 12 does not know Ubuntu's own way to compress. At -z3 the plugin files, which are
    # alike, are found to be.
    dpkg-deb --root-owner-group -Zxz -z3 --build "$tree" "$work/out/nvshmem-libfabric_${version}_$architecture.deb" >/dev/null
}

for package in "$@"; do
    if ! declare -F "make_$package" >/dev/null; then
        echo "no package is called $package; there are wheel and deb" >&2
        exit 2
    fi
    "make_$package"
done
(cd "$work/out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
scripts/empty-dir.sh "$out"
cp -r "$work/out/." "$out"
echo "Packages of $version, for glibc $glibc and newer, in $out:"
(cd "$out" && du -h -- * | sed 's/^/  /')
