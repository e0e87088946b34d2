#!/usr/bin/env bash
# Runs README's first commands on machines that have next to nothing: trees of Debian and Ubuntu,
# made for it and removed again.
#   scripts/fresh.sh [--commit COMMIT] [TREE]...
# Without a TREE, all of them:
#   bookworm  Debian 12: README's block as it is, and what it prints; then 'make uninstall'
#   trixie    the same on Debian 13, whose Rust is the oldest that is supported
#   noble     the same on Ubuntu 24.04, from UBUNTU (http://archive.ubuntu.com/ubuntu)
#   packages  Debian 12, where packages are made; trees of Debian 12 and 13 without Rust, where they are installed as
#             docs/install.md says
#   docker    Debian 12, and the Dockerfile is built on it, by buildah
# Needs root, mmdebstrap (installed if missing) and Debian's packages, from where this machine gets
# its own. Without, each tree is skipped; where NVSHMEM_TEST_SKIPS_ALLOWED names a list, as for
# scripts/test.sh, a skip that is not on it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=HEAD
if [[ ${1:-} == --commit ]]; then
    commit=$2
    shift 2
fi
commit=$(git rev-parse --verify "$commit^{commit}")
names=("$@")
[[ ${#names[@]} -gt 0 ]] || names=(bookworm trixie noble packages docker)

# Says that a tree is skipped: skip NAME REASON. Fails where that is not allowed.
skip() {
    local skip="fresh $1: $2"
    echo "SKIPPED $skip"
    [[ -n ${NVSHMEM_TEST_SKIPS_ALLOWED:-} ]] || return 0
    grep -qEf <(sed '/^#/d; /^$/d' "$NVSHMEM_TEST_SKIPS_ALLOWED") <<<"$skip" && return
    echo "Not among the skips that $NVSHMEM_TEST_SKIPS_ALLOWED allows" >&2
    return 1
}
cannot() {
    local name status=0
    for name in "${names[@]}"; do skip "$name" "$1" || status=1; done
    exit "$status"
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
readonly UBUNTU=${UBUNTU:-http://archive.ubuntu.com/ubuntu}
# The package of its keys: Debian 12 has none.
readonly UBUNTU_KEYS=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
readonly UBUNTU_KEYS_SHA256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
command -v mmdebstrap >/dev/null || apt-get install -q -y --no-install-recommends mmdebstrap

# Nothing of it is mounted outside of the namespaces that in_tree makes, which end with their first
# process.
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

# Makes a tree of a release with packages: bootstrap TREE RELEASE PACKAGE...
bootstrap() {
    local tree=$1 release=$2 sources=("deb $main $2 main") include=() keyring=()
    shift 2
    if [[ $release == noble ]]; then
        sources=("deb $UBUNTU noble main universe" "deb $UBUNTU noble-updates main universe")
        keyring=(--keyring="$work/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg")
    elif [[ -n $security ]]; then
        sources+=("deb $security $release-security main")
    fi
    [[ $# -eq 0 ]] || include=("--include=$*")
    # shellcheck disable=SC2016 # for the shells of the hooks
    unshare --mount --fork --kill-child mmdebstrap --quiet --mode=root --variant=minbase "${keyring[@]}" "${include[@]}" --aptopt="$work/apt.conf" \
        --dpkgopt=force-unsafe-io \
        --setup-hook='mkdir -p "$1/usr/local/share/ca-certificates"' \
        --setup-hook='cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/" 2>/dev/null || true' \
        "$release" "$tree" "${sources[@]}"
    take_over "$tree" "$tree/root"
}
clone() {
    git clone --quiet --no-hardlinks --no-checkout . "$1"
    git -C "$1" checkout --quiet --detach "$commit"
}
# The same with a user, and a clone of this tree: make_tree TREE RELEASE PACKAGE...
make_tree() {
    local tree=$1
    bootstrap "$@" make ca-certificates
    mkdir -p "$tree/home/someone"
    take_over "$tree" "$tree/home/someone"
    clone "$tree/home/someone/tree"
    echo 'someone:x:1000:1000::/home/someone:/bin/sh' >>"$tree/etc/passwd"
    echo 'someone:x:1000:' >>"$tree/etc/group"
}

# Prints the commands of a page that are marked with a name: documented PAGE NAME.
documented() {
    awk -v mark="<!-- run: $2 -->" '$0 == mark { here = 1; next }
        here && /^```sh$/ { on = 1; next }
        on && /^```$/ { exit }
        on' "$1" | grep . || { echo "$1 has no commands marked $2" >&2; return 1; }
}

# README's block on a release: readme TREE RELEASE. Each of its commands has to end well, and to
# print what its reader is to see.
readme() {
    local said=$1.said commands wanted missing=()
    make_tree "$@"
    commands=$(documented README.md five-minutes)
    as_root "$1" "set -ex
$commands
make uninstall PREFIX=\$HOME/nvshmem-libfabric" 2>&1 | tee "$said"
    for wanted in \
        '^Installed in /root/nvshmem-libfabric:$' \
        '^ok +plugin-files( |$)' 'usable with tcp' \
        '^([0-9]+) of \1 passed, with 2 PEs$' \
        '^export LD_PRELOAD=/root/nvshmem-libfabric/lib/nvshmem_transport_libfabric\.so\.3:' \
        '^#put_bw$' '^8 +host +[0-9.]+ ' 'was compared: 0 wrong' \
        '^/root/nvshmem-libfabric/bin/nvshmem-libfabric is removed$'; do
        grep -qE "$wanted" "$said" || missing+=("$wanted")
    done
    if [[ ${#missing[@]} -gt 0 ]]; then
        printf 'it did not print %s\n' "${missing[@]}" >&2
        return 1
    fi
    if [[ -e $1/root/nvshmem-libfabric ]]; then
        echo "'make uninstall' left: $(find "$1/root/nvshmem-libfabric")" >&2
        return 1
    fi
}

fresh_bookworm() { readme "$1" bookworm; }
fresh_trixie() { readme "$1" trixie; }
fresh_noble() {
    if ! /usr/lib/apt/apt-helper -q download-file "$UBUNTU/$UBUNTU_KEYS" "$work/keys.deb" "SHA256:$UBUNTU_KEYS_SHA256"; then
        skip noble "Ubuntu's packages are not at $UBUNTU"
        return
    fi
    dpkg-deb --extract "$work/keys.deb" "$work/keys"
    # Neither is among what Ubuntu calls required.
    readme "$1" noble apt ubuntu-keyring
}
fresh_packages() {
    local release tree nvshmem commands
    make_tree "$1" bookworm
    as_root "$1" 'make package'
    nvshmem=$(scripts/nvshmem-wheels.sh 3.4.5 | cut -d' ' -f2)
    for release in bookworm trixie; do
        tree=$1/$release
        make_tree "$tree" "$release" python3-venv gcc libc6-dev
        cp -r "$nvshmem/." "$tree/usr/local/nvshmem"
        cp "$1"/home/someone/tree/target/package/* crates/channel-c/tests/example.c "$tree/home/someone/tree/"
        chown -R 1000:1000 "$tree/home/someone"
        commands=$(documented docs/install.md deb)
        as_root "$tree" "set -ex; sudo() { \"\$@\"; }
$commands
dpkg --verify nvshmem-libfabric && apt-get remove -q -y nvshmem-libfabric"
        commands=$(documented docs/install.md pip && documented docs/install.md pip-channel)
        as_user "$tree" "set -ex
$commands
sha256sum --check SHA256SUMS && NVSHMEM_LIBFABRIC_PROVIDER=shm ./example"
    done
}
fresh_docker() {
    command -v buildah >/dev/null || apt-get install -q -y --no-install-recommends buildah
    local options=(--root "$1/images" --runroot "$1/run" --storage-driver vfs) base image
    mkdir "$1"
    bootstrap "$1/debian" bookworm
    clone "$1/tree"
    base=$(buildah "${options[@]}" from scratch)
    buildah "${options[@]}" copy --quiet "$base" "$1/debian" /
    for image in debian:12 debian:12-slim; do
        buildah "${options[@]}" commit --quiet "$base" "docker.io/library/$image"
    done
    buildah "${options[@]}" build --isolation chroot --pull-never --tag nvshmem-libfabric \
        --file "$1/tree/packaging/Dockerfile" --ignorefile "$1/tree/packaging/Dockerfile.dockerignore" "$1/tree"
    image=$(buildah "${options[@]}" from --pull-never nvshmem-libfabric)
    buildah "${options[@]}" run --isolation chroot "$image" -- nvshmem-libfabric doctor
    buildah "${options[@]}" run --isolation chroot "$image" -- nvshmem-libfabric selftest
}

failed=()
for name in "${names[@]}"; do
    if ! declare -F "fresh_$name" >/dev/null; then
        echo "no tree is called $name; there are bookworm, trixie, noble, packages and docker" >&2
        exit 2
    fi
    echo "== fresh $name, of $commit"
    began=$SECONDS
    # In a process of its own: 'set -e' does not hold within an 'if'.
    status=0
    (set -e && "fresh_$name" "$work/$name") > >(sed -u "/^SKIPPED /!s/^/$name: /") 2>&1 &
    wait $! || status=$?
    rm -rf --one-file-system "${work:?}/$name"
    echo "== fresh $name: $([[ $status -eq 0 ]] && echo passed || echo FAILED), $((SECONDS - began)) s"
    [[ $status -eq 0 ]] || failed+=("$name")
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "Failed: ${failed[*]}" >&2
    exit 1
fi
