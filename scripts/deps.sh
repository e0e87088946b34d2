#!/usr/bin/env bash
# Installs what this machine lacks. Debian 12 and 13, Ubuntu 22.04 and 24.04.
#   scripts/deps.sh build    for building, and for running what was built ('make demo')
#   scripts/deps.sh package  for building, and for making packages of it
#   scripts/deps.sh [test]   for the tests as well
#   scripts/deps.sh rdma-lab for the tests and the guests of 'make labs LAB=rdma'
# Nothing is installed, and no right is asked for, when nothing is missing. Each thing is looked for
# in the way in which it is used, so what is installed elsewhere than by packages counts.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OLDEST=85 # as rust-version in Cargo.toml: 1.85
readonly OLDEST_LIBFABRIC=1.17

purpose=${1:-test}
if [[ $purpose != @(build|package|test|rdma-lab) ]]; then
    echo "usage: scripts/deps.sh [build|package|test|rdma-lab]" >&2
    exit 2
fi

# Debian keeps ip, tc and ldconfig where only root's PATH leads.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

have() { command -v "$1" >/dev/null 2>&1; }
have_rust() { scripts/cargo --version >/dev/null 2>&1; }
have_pip() { python3 -m pip --version >/dev/null 2>&1; }
# For the wheel; in either Python that scripts/package.sh tries.
have_wheel() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import setuptools, wheel' 2>/dev/null && return
    done
    return 1
}
have_certificates() { [[ -n ${SSL_CERT_FILE:-} || -e /etc/ssl/certs/ca-certificates.crt || -d /etc/pki/tls/certs ]]; }

# Whether programs in C link.
have_c() { cc -x c -o /dev/null - 2>/dev/null <<<'#include <stdlib.h>
int main(void) { return EXIT_SUCCESS; }'; }
have_cxx() { g++ -x c++ -o /dev/null - 2>/dev/null <<<'#include <atomic>
int main() { return 0; }'; }

# Prints the version of the libfabric that programs find, or says why they find none.
libfabric_version() {
    local work status=0
    work=$(mktemp -d) || return 1
    cc -x c -o "$work/probe" - -ldl <<'END' && "$work/probe" || status=1
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    void *library = dlopen("libfabric.so.1", RTLD_NOW);
    unsigned (*version)(void) = library ? (unsigned (*)(void))dlsym(library, "fi_version") : NULL;
    if (!version) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    printf("%u.%u\n", version() >> 16, version() & 0xffff);
    return 0;
}
END
    rm -rf "$work"
    return "$status"
}
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }
have_libfabric() {
    local version
    version=$(libfabric_version 2>/dev/null) && at_least "$OLDEST_LIBFABRIC" "$version"
}

# Installs packages; without the right to, says once all that is missing.
as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        echo "This needs root, and there is no sudo. What is missing can be installed as root by:" >&2
        echo "    apt-get update && apt-get install ${missing[*]}" >&2
        exit 1
    fi
}
updated=no
apt_update() {
    [[ $updated == yes ]] || as_root apt-get update -q
    updated=yes
}
apt_install() {
    have apt-get || { echo "Missing, and there is no apt-get to install it: $*" >&2 && exit 1; }
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

install_libfabric() {
    local version told
    # That none is found is no reason to end here.
    told="What programs find now: $(libfabric_version 2>&1 | head -n 1 || true); LD_LIBRARY_PATH is '${LD_LIBRARY_PATH:-}'."
    have apt-get && apt_update
    version=$(candidate libfabric1)
    if ! at_least "$OLDEST_LIBFABRIC" "${version:-0}"; then
        echo "libfabric $OLDEST_LIBFABRIC or newer is needed, and this system's packages have ${version:-none}. Install one" >&2
        echo "from its sources or your network's vendor, and name its directory in LD_LIBRARY_PATH. $told" >&2
        exit 1
    fi
    apt_install libfabric1
    have_libfabric || { echo "libfabric is installed, but programs find another one. $told" >&2 && exit 1; }
}
install_rust() {
    local package
    have apt-get && apt_update
    # Debian 13 and later; Debian 12, which keeps a newer toolchain for its web browsers; Ubuntu,
    # which has one package per version: the newest.
    for package in cargo cargo-web $(apt-cache search --names-only '^cargo-1\.[0-9]+$' | cut -d' ' -f1 | sort -rV); do
        if apt_has_new "$package" && apt_has_new "rustc${package#cargo}"; then
            apt_install "$package" "rustc${package#cargo}"
            return
        fi
    done
    echo "Installing the stable Rust toolchain into ~/.cargo with https://sh.rustup.rs"
    have curl || apt_install curl ca-certificates
    curl --proto '=https' --tlsv1.2 -fsSL https://sh.rustup.rs |
        sh -s -- -y --no-modify-path --profile minimal --component rustfmt --component clippy
}
# rustfmt and clippy of the packages that Rust came from; rustup brings its own. Wanted, not needed.
install_rust_lints() {
    local package known=() wanted=()
    case $(dpkg-query -S "$(command -v cargo)" 2>/dev/null) in
    cargo-web:*) wanted=(rustfmt-web rust-web-clippy) ;;
    cargo:*) wanted=(rustfmt rust-clippy) ;;
    esac
    for package in ${wanted[@]+"${wanted[@]}"}; do
        [[ -z $(candidate "$package") ]] || known+=("$package")
    done
    [[ ${#known[@]} -eq 0 ]] || apt_install "${known[@]}"
}
have_rust_lints() {
    scripts/cargo fmt --version >/dev/null 2>&1 && scripts/cargo clippy --version >/dev/null 2>&1
}

missing=()
have cc || missing+=(gcc)
have_c || missing+=(gcc libc6-dev)
have readelf && have objcopy || missing+=(binutils)
have make || missing+=(make)
have patchelf || missing+=(patchelf)
have_certificates || missing+=(ca-certificates)
if [[ $purpose != build ]]; then
    have python3 || missing+=(python3)
    have_wheel || missing+=(python3-setuptools python3-wheel)
fi
if [[ $purpose == test || $purpose == rdma-lab ]]; then
    have_cxx || missing+=(g++)
    have valgrind || missing+=(valgrind)
    have shellcheck || missing+=(shellcheck)
    have_pip || missing+=(python3-pip)
    have unzip || missing+=(unzip)
    # For tests on several hosts.
    have ip && have tc || missing+=(iproute2)
fi
if [[ $purpose == rdma-lab ]]; then
    have qemu-system-x86_64 || missing+=(qemu-system-x86)
    have busybox || missing+=(busybox-static)
    have cpio || missing+=(cpio)
    have modprobe || missing+=(kmod)
    have rdma || missing+=(iproute2)
    have sysctl || missing+=(procps)
    # What libibverbs loads for soft RoCE.
    compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null || missing+=(ibverbs-providers)
fi
have_libfabric || missing+=(libfabric1)
have_rust || missing+=(cargo rustc)
lacking=()
for package in ${missing[@]+"${missing[@]}"}; do
    # These have ways of their own, below.
    [[ $package == @(libfabric1|cargo|rustc) ]] || lacking+=("$package")
done
[[ ${#lacking[@]} -eq 0 ]] || apt_install "${lacking[@]}"
have_libfabric || install_libfabric
have_rust || install_rust
if [[ $purpose == test || $purpose == rdma-lab ]]; then
    have_rust_lints || install_rust_lints
fi

echo "Everything is there: $(scripts/cargo --version), $(cc --version | head -n 1), libfabric $(libfabric_version)"
