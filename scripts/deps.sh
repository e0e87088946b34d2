#!/usr/bin/env bash
# Installs what building and testing need and this machine lacks. Debian 12 and 13, Ubuntu 22.04
# and 24.04. Nothing is installed, and no right is asked for, when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OLDEST=85 # as rust-version in Cargo.toml: 1.85

have() { command -v "$1" >/dev/null 2>&1; }
have_header() { [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]]; }
have_libclang() {
    [[ -n ${LIBCLANG_PATH:-} ]] || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null ||
        compgen -G '/usr/lib/*/libclang*.so*' >/dev/null
}
have_libfabric() { have pkg-config && pkg-config --atleast-version=1.17 libfabric; }
have_pip() { python3 -m pip --version >/dev/null 2>&1; }
have_rust() { scripts/cargo --version >/dev/null 2>&1; }

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        echo "This needs root, and there is no sudo. Run as root: $*" >&2
        exit 1
    fi
}

updated=no
apt_update() {
    if [[ $updated == no ]]; then
        as_root apt-get update -q
        updated=yes
    fi
}

apt_install() {
    if ! have apt-get; then
        echo "Missing, and there is no apt-get to install it: $*" >&2
        exit 1
    fi
    apt_update
    echo "Installing: $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# Prints the version of an apt package as it would be installed, or nothing.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -nE 's/^  Candidate: ([^(].*)/\1/p'; }

# Whether the apt package $1 would install version 1.$OLDEST or newer.
apt_has_new() {
    local version
    version=$(candidate "$1")
    [[ $version =~ ^1\.([0-9]+) && ${BASH_REMATCH[1]} -ge $OLDEST ]]
}

# Installs those of the packages that exist. They are wanted, not needed.
apt_install_known() {
    local package known=()
    for package in "$@"; do
        [[ -n $(candidate "$package") ]] && known+=("$package")
    done
    if [[ ${#known[@]} -gt 0 ]]; then
        apt_install "${known[@]}"
    fi
}

install_libfabric() {
    apt_update
    local version
    version=$(candidate libfabric-dev)
    if ! dpkg --compare-versions "${version:-0}" ge 1.17; then
        cat >&2 <<END
libfabric 1.17 or newer is needed, and this system's packages have ${version:-none}.
Install one from its sources or from your network's vendor, and put the directory that holds its
libfabric.pc into PKG_CONFIG_PATH. What pkg-config finds now: $(pkg-config --modversion libfabric 2>&1 | head -n 1)
END
        exit 1
    fi
    apt_install libfabric-dev
}

install_rust() {
    apt_update
    # Debian 13 and later.
    if apt_has_new cargo && apt_has_new rustc; then
        apt_install cargo rustc
        apt_install_known rustfmt rust-clippy
        return
    fi
    # Debian 12: a newer toolchain, kept for its web browsers.
    if apt_has_new cargo-web && apt_has_new rustc-web; then
        apt_install cargo-web rustc-web
        apt_install_known rustfmt-web rust-web-clippy
        return
    fi
    # Ubuntu: one package per version. The newest.
    local package version
    for package in $(apt-cache search --names-only '^cargo-1\.[0-9]+$' | cut -d' ' -f1 | sort -rV); do
        version=${package#cargo-}
        if apt_has_new "$package" && apt_has_new "rustc-$version"; then
            apt_install "$package" "rustc-$version"
            return
        fi
    done
    echo "Installing the stable Rust toolchain into ~/.cargo with https://sh.rustup.rs"
    have curl || apt_install curl ca-certificates
    curl --proto '=https' --tlsv1.2 -fsSL https://sh.rustup.rs |
        sh -s -- -y --no-modify-path --profile minimal --component rustfmt --component clippy
}

missing=()
have gcc || missing+=(gcc)
have cc || missing+=(gcc)
have g++ || missing+=(g++)
have_header stdlib.h || missing+=(libc6-dev)
have readelf || missing+=(binutils)
have make || missing+=(make)
have pkg-config || missing+=(pkg-config)
have_libclang || missing+=(libclang-dev)
have patchelf || missing+=(patchelf)
have valgrind || missing+=(valgrind)
have python3 || missing+=(python3)
have_pip || missing+=(python3-pip)
have unzip || missing+=(unzip)
# ip and tc, for the rail laboratory.
if ! have ip || ! have tc; then
    missing+=(iproute2)
fi
# For cargo and pip.
[[ -e /etc/ssl/certs/ca-certificates.crt ]] || missing+=(ca-certificates)
if [[ ${#missing[@]} -gt 0 ]]; then
    apt_install "${missing[@]}"
fi
have_libfabric || install_libfabric
have_rust || install_rust

echo "Everything is there: $(scripts/cargo --version), $(cc --version | head -n 1)"
