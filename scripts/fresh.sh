#!/usr/bin/env bash
# Runs README's first command on machines that have next to nothing: trees of Debian, made for it and removed again.
#   scripts/fresh.sh [--commit COMMIT] [TREE]...
# Without a TREE, all but 'short':
#   bookworm      Debian 12
#   trixie        Debian 13, whose Rust is the oldest that will do
#   libclang-cpp  Debian 12 with a part of clang that is not libclang
#   user          Debian 13, an ordinary user, everything installed, libfabric where only LD_LIBRARY_PATH finds it
#   short         as trixie, and only what is missing is installed and the plugin built
# Needs root, mmdebstrap (installed if missing) and Debian's packages, from where this machine gets its own.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=HEAD
if [[ ${1:-} == --commit ]]; then
    commit=$2
    shift 2
fi
commit=$(git rev-parse --verify "$commit^{commit}")
names=("$@")
[[ ${#names[@]} -gt 0 ]] || names=(bookworm trixie libclang-cpp user)

cannot() {
    echo "SKIPPED make fresh (${names[*]}): $1"
    exit 0
}
[[ $(id -u) -eq 0 ]] || cannot "it needs root"
command -v apt-get >/dev/null || cannot "it needs apt-get"
unshare --mount --pid --fork true 2>/dev/null || cannot "it needs namespaces of its own (unshare)"
# Prints the address that this machine has packages of Debian from; $1 is how Debian labels them.
mirror() {
    # shellcheck disable=SC2016 # apt's own names
    apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' | sed -nE "s/^Debian $1 (.*)/\1/p" | sed 1q
}
main=$(mirror Debian)
[[ -n $main ]] || cannot "this machine has no list of Debian's packages ('apt-get update')"
security=$(mirror Debian-Security)
command -v mmdebstrap >/dev/null || apt-get install -q -y --no-install-recommends mmdebstrap

# Nothing of it is mounted outside of the namespaces that in_tree makes, which end with their first process.
work=$(mktemp -d "${TMPDIR:-/var/tmp}/fresh.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# What package clients here need to reach their registries, they need there.
variables=()
for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -n ${!variable:-} ]] && variables+=("$variable=${!variable}")
done
apt-config dump | grep -E '^Acquire::(https?::|Retries|Check-Valid-Until|Check-Date)' >"$work/apt.conf" || true
take_over() {
    local tree=$1 home=$2
    cp /etc/resolv.conf "$tree/etc/"
    cp "$work/apt.conf" "$tree/etc/apt/apt.conf.d/90host"
    if [[ -e /etc/pip.conf ]]; then cp /etc/pip.conf "$tree/etc/"; fi
    mkdir -p "$tree/usr/local/share/ca-certificates" "$home/.cargo" "$home/.config/pip"
    find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$tree/usr/local/share/ca-certificates/" \;
    if [[ -e ~/.cargo/config.toml ]]; then cp ~/.cargo/config.toml "$home/.cargo/"; fi
    if [[ -e ~/.config/pip/pip.conf ]]; then cp ~/.config/pip/pip.conf "$home/.config/pip/"; fi
}

# Runs a command in a tree: in_tree TREE COMMAND...
in_tree() {
    local tree=$1
    shift
    # shellcheck disable=SC2016 # for the shell in the namespace
    unshare --mount --pid --fork --kill-child bash -c '
        set -e
        tree=$1
        shift
        mount --rbind /dev "$tree/dev"
        mount -t tmpfs tmpfs "$tree/dev/shm"
        mount -t proc proc "$tree/proc"
        exec chroot "$tree" "$@"' in_tree "$tree" \
        env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
        "${variables[@]}" "$@"
}
as_root() { in_tree "$1" sh -c "cd /home/someone/tree && $2"; }
# As at a user's login: no root, no sudo, no /usr/sbin in the PATH.
as_user() {
    in_tree "$1" setpriv --reuid 1000 --regid 1000 --clear-groups \
        env HOME=/home/someone PATH=/usr/local/bin:/usr/bin:/bin sh -c "cd /home/someone/tree && $2"
}

# Makes a tree of a release with further packages: make_tree TREE RELEASE PACKAGE...
make_tree() {
    local tree=$1 release=$2 sources=("deb $main $2 main")
    shift 2
    [[ -n $security ]] && sources+=("deb $security $release-security main")
    local include=make,ca-certificates package
    for package in "$@"; do include+=,$package; done
    # shellcheck disable=SC2016 # for the shells of the hooks
    unshare --mount --fork --kill-child mmdebstrap --quiet --mode=root --variant=minbase --include="$include" --aptopt="$work/apt.conf" \
        --dpkgopt=force-unsafe-io \
        --setup-hook='mkdir -p "$1/usr/local/share/ca-certificates"' \
        --setup-hook='cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/" 2>/dev/null || true' \
        "$release" "$tree" "${sources[@]}"
    mkdir -p "$tree/home/someone"
    take_over "$tree" "$tree/root"
    take_over "$tree" "$tree/home/someone"
    git clone --quiet --no-hardlinks --no-checkout . "$tree/home/someone/tree"
    git -C "$tree/home/someone/tree" checkout --quiet --detach "$commit"
    echo 'someone:x:1000:1000::/home/someone:/bin/sh' >>"$tree/etc/passwd"
    echo 'someone:x:1000:' >>"$tree/etc/group"
}

fresh_bookworm() { make_tree "$1" bookworm && as_root "$1" 'make demo'; }
fresh_trixie() { make_tree "$1" trixie && as_root "$1" 'make demo'; }
fresh_short() { make_tree "$1" trixie && as_root "$1" 'make build-deps build'; }
fresh_libclang-cpp() { make_tree "$1" bookworm libclang-cpp14 && as_root "$1" 'make demo'; }
fresh_user() {
    make_tree "$1" trixie
    as_root "$1" 'scripts/deps.sh test && mkdir -p /opt/libfabric && cp /usr/lib/*/libfabric.so.1* /opt/libfabric/ &&
        dpkg --remove --force-depends libfabric1'
    chown -R 1000:1000 "$1/home/someone"
    if as_user "$1" 'scripts/deps.sh test'; then
        echo "libfabric is not where programs look for it, and this was not noticed" >&2
        return 1
    fi
    as_user "$1" 'export LD_LIBRARY_PATH=/opt/libfabric && scripts/deps.sh test && make demo'
}

failed=()
for name in "${names[@]}"; do
    if ! declare -F "fresh_$name" >/dev/null; then
        echo "no tree is called $name; there are bookworm, trixie, libclang-cpp, user, short" >&2
        exit 2
    fi
    echo "== fresh $name, of $commit"
    began=$SECONDS
    # In a process of its own: 'set -e' does not hold within an 'if'.
    status=0
    (set -e && "fresh_$name" "$work/$name") > >(sed -u "s/^/$name: /") 2>&1 &
    wait $! || status=$?
    rm -rf --one-file-system "${work:?}/$name"
    echo "== fresh $name: $([[ $status -eq 0 ]] && echo passed || echo FAILED), $((SECONDS - began)) s"
    [[ $status -eq 0 ]] || failed+=("$name")
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "Failed: ${failed[*]}" >&2
    exit 1
fi
