#!/bin/sh
# usage: unshare --mount node-mounts.sh FOLDER NAMESERVER
# Gives a node folders and settings of its own, then holds them for its components.
set -eu
folder=$1
resolver=$(readlink -f /etc/resolv.conf)
if mountpoint -q /run/netns; then
    umount --recursive /run/netns # else this node would keep other namespaces alive after they are deleted
fi
for path in /var/lib /var/log; do
    mkdir -p "$folder$path"
    mount --bind "$folder$path" "$path"
done
mount -t tmpfs -o mode=755 node-run /run
mkdir -p /run/netns /run/sysctl /var/lib/kubelet
mount --bind /var/lib/kubelet /var/lib/kubelet # kubelet's folder is to be a mount, and a shared one
# Names of registries are refused at once by the site's DNS, instead of after long waiting for a server out of reach.
mkdir -p "$(dirname "$resolver")"
echo "nameserver $2" >/run/resolv.conf
[ -e "$resolver" ] || touch "$resolver"
mount --bind /run/resolv.conf "$resolver"
# What kubelet wants of the machine's settings: it finds them so and leaves the machine's as they are.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl/$(basename "${setting%=*}")
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
mount --make-rshared /
touch "$folder/mounted"
exec sleep infinity
