"""Builds what the clusters run, once a machine: the binaries are kept by the digest of what they are built from."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusters.layout import Layout

KUBERNETES_VERSION = "v1.34.4"
"""Also in kubernetes/go.mod. From 1.35 on kubelets refuse cgroup v1."""

_HERE = Path(__file__).parent
_COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "conntrack": "conntrack",
    "nft": "nftables",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "/bin/busybox": "busybox-static",
}
"""Debian package by a command or file it brings."""


INOTIFY_INSTANCES = 1024
_INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")


def raise_limits() -> None:
    """A cluster takes 16 inotify instances; of the usual 128, three sets would leave some kubelet without any."""
    if int(_INOTIFY_LIMIT.read_text()) < INOTIFY_INSTANCES:
        _INOTIFY_LIMIT.write_text(str(INOTIFY_INSTANCES))


def install_packages() -> None:
    """Install the packages whose commands are missing."""
    path = f"/usr/sbin:/sbin:{os.environ.get('PATH', os.defpath)}"
    missing = [package for command, package in _PACKAGES.items() if not shutil.which(command, path=path)]
    if not missing:
        return
    print(f"installing {' '.join(missing)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]
    subprocess.run([*apt, "update"], env=environment, check=True)
    # No service is to start by itself: every node has a containerd of its own.
    policy = Path("/usr/sbin/policy-rc.d")
    own_policy = not policy.exists()
    if own_policy:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        command = [*apt, "install", "-y", "--no-install-recommends", *missing]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    finally:
        if own_policy:
            policy.unlink()


def binaries() -> tuple[Path, Path]:
    """The Kubernetes and the CoreDNS binary, built where they are not in the cache."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())
    return built("kubernetes", flags), built("coredns", "")


def install_binaries(layout: Layout) -> None:
    """Put links to the binaries into the set's bin folder."""
    kubernetes, coredns = binaries()
    layout.bin.mkdir(parents=True, exist_ok=True)
    for component in _COMPONENTS:
        _link(layout.bin / component, kubernetes)
    _link(layout.bin / "coredns", coredns)


def built(module: str, linker_flags: str) -> Path:
    """The binary of a Go module in this folder, from the cache or built now."""
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("Go 1.25 or newer is needed to build the test clusters: https://go.dev/dl")
    arguments = ["build", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {linker_flags}".strip()]
    version = subprocess.run([go, "version"], cwd=_HERE / module, capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(f"{version}\n{arguments}\n".encode())
    for source in ("main.go", "go.mod", "go.sum"):
        digest.update((_HERE / module / source).read_bytes())
    binary = cache() / digest.hexdigest()[:16] / module
    with locked(cache() / f"{module}.lock"):
        if not binary.exists():
            _build([go, *arguments], _HERE / module, binary)
    return binary


def _build(command: list[str], folder: Path, binary: Path) -> None:
    begin = time.monotonic()
    print(f"building {binary.name} (minutes; once a machine)", flush=True)
    binary.parent.mkdir(parents=True, exist_ok=True)
    unfinished = binary.with_suffix(".new")
    subprocess.run(["nice", "-n", "10", *command, "-o", unfinished, "."], cwd=folder, check=True)
    unfinished.rename(binary)
    print(f"built {binary.name} in {time.monotonic() - begin:.0f} s, kept in {binary.parent}", flush=True)


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/root")) / ".cache"
    return Path(home) / "diloco-clusters"


def _link(link: Path, target: Path) -> None:
    if not (link.is_symlink() and link.readlink() == target):
        link.unlink(missing_ok=True)
        link.symlink_to(target)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is made and stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
