"""A real `prometheus` and `promtool` for the tests: those on PATH, else Debian's, unpacked into the user's cache.

The package is only unpacked, never installed: its scripts would start a service.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGE = "prometheus"


def prometheus() -> str:
    """Path of the server."""
    return _binary("prometheus")


def promtool() -> str:
    """Path of the tool that checks and tests rules."""
    return _binary("promtool")


def _binary(name: str) -> str:
    if on_path := shutil.which(name):
        return on_path
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cached = home / "diloco-tools" / "prometheus-of-debian"
    if not cached.exists():
        _unpack(cached)
    return str(cached / "usr/bin" / name)


def _unpack(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # apt's own user writes into it
        if not _download(folder):
            subprocess.run(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "update"], check=True)
            if not _download(folder):
                raise RuntimeError(f"no prometheus on PATH, and apt-get has no package {PACKAGE!r} to unpack")
        (package,) = folder.glob("*.deb")
        unpacked = folder / "unpacked"
        subprocess.run(["dpkg-deb", "--extract", str(package), str(unpacked)], check=True)
        try:
            unpacked.rename(target)  # whole or not at all
        except OSError:
            if not target.exists():  # not fetched by another session at the same time
                raise


def _download(folder: Path) -> bool:
    answer = subprocess.run(["apt-get", "-q", "download", PACKAGE], cwd=folder, capture_output=True, check=False)
    return answer.returncode == 0


if __name__ == "__main__":
    print(prometheus(), promtool(), sep="\n")
