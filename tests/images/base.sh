#!/usr/bin/env bash
# Makes the image localhost/python-base: Debian's own Python, for machines on which no base image can be pulled.
# Does nothing where it is there already. Needs root, and Debian's package mirror (MIRROR=, as debootstrap takes it).
set -euo pipefail
image="${1:-localhost/python-base}"
export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}"

missing=""
for tool in debootstrap buildah; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "error:$missing missing; as root on Debian or Ubuntu they are installed by themselves" >&2
        exit 1
    fi
    echo "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
buildah inspect --type image "$image" >/dev/null 2>&1 && exit 0

work="$(mktemp -d)"
container=""
clean_up() {
    [ -z "$container" ] || buildah rm "$container" >/dev/null
    rm -rf "$work"
}
trap clean_up EXIT

echo "making $image (one to two minutes)"
root="$work/root"
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" ${MIRROR:+"$MIRROR"} \
    >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }

# debootstrap copies the host's names, and leaves what only an installer needs.
rm -rf "$root/etc/hostname" "$root/etc/resolv.conf" "$root/etc/machine-id" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* \
    "$root"/var/log/* "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*
# The image names no mirror: whoever adds packages to it knows one.
: >"$root/etc/apt/sources.list"

container="$(buildah from scratch)"
tar -C "$root" --one-file-system -cf "$work/root.tar" .
buildah add --quiet "$container" "$work/root.tar" / >/dev/null
buildah config --cmd python3 --env LANG=C.UTF-8 "$container"
buildah commit --quiet "$container" "$image" >/dev/null
echo "made $image"
