"""Builds the two images and hands them on: what `make images`, `images-push` and `kind-load` do. Standard library only.

Uses docker where its daemon answers, else buildah. A pip configuration and an own bundle of certificates of this
machine are lent to the build as secrets; neither ends up in an image.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("operator", "trainer")
BASE_IMAGE = "python:3.12-slim"
OWN_BASE = "localhost/python-base"
"""Made by `make base-image` where nothing can be pulled."""


class Failed(Exception):
    """With the line that says what to do."""


def main() -> int:
    os.environ.setdefault("BUILDAH_ISOLATION", "chroot")  # works without the rights of a container runtime
    try:
        arguments = _arguments()
        tool = _tool()
        for target in arguments.targets:
            if arguments.action == "build":
                _build(tool, target, arguments)
            elif arguments.action == "push":
                _push(tool, target, arguments)
            elif arguments.action == "save":
                _save(tool, target, arguments.tag, Path(arguments.folder))
            elif arguments.action == "size":
                print(_size(tool, local_name(target, arguments.tag)))
            else:
                _kind_load(tool, target, arguments)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"error: exit code {error.returncode} of `{' '.join(map(str, error.cmd))}`", file=sys.stderr)
        return 1
    return 0


def local_name(target: str, tag: str) -> str:
    """What an image is called on this machine, and in a cluster it was loaded into."""
    return f"localhost/diloco-{target}:{tag}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["build", "push", "save", "size", "kind-load"])
    parser.add_argument("targets", nargs="*", default=TARGETS, help="operator, trainer; default both")
    parser.add_argument("--tag", default="dev")
    parser.add_argument("--base-image", default=BASE_IMAGE)
    parser.add_argument("--torch-index", default="")
    parser.add_argument("--registry", default="", help="push: registry and path, such as registry.example.com/team")
    parser.add_argument("--cluster", default="kind", help="kind-load: name of the kind cluster")
    parser.add_argument("--folder", default="", help="save: where the archives go")
    arguments = parser.parse_intermixed_args()
    if unknown := set(arguments.targets) - set(TARGETS):
        raise Failed(f"no such image: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if arguments.action == "push" and not arguments.registry:
        raise Failed("nothing is published by default: make images-push REGISTRY=registry.example.com/team")
    if arguments.action == "save" and not arguments.folder:
        raise Failed("save needs --folder")
    return arguments


def _tool() -> str:
    if shutil.which("docker") and _quiet("docker", "info"):
        return "docker"
    if shutil.which("buildah"):
        return "buildah"
    raise Failed("neither a docker daemon nor buildah (Debian, Ubuntu: apt-get install buildah) was found")


def _build(tool: str, target: str, arguments: argparse.Namespace) -> None:
    base = arguments.base_image
    if (
        tool == "buildah"
        and base != OWN_BASE
        and not _quiet("buildah", "pull", "--policy", "missing", _qualified(base))
    ):
        raise Failed(
            f"the base image {base} cannot be pulled; name another with BASE_IMAGE=, or make one from Debian's "
            f"packages: make base-image && make images BASE_IMAGE={OWN_BASE}"
        )
    command = [tool, "build", "--target", target, "--file", str(ROOT / "Dockerfile")]
    command += ["--build-arg", f"BASE_IMAGE={_qualified(base) if tool == 'buildah' else base}"]
    command += [part for name, value in _labels().items() for part in ("--build-arg", f"{name}={value}")]
    if target == "trainer" and arguments.torch_index:
        command += ["--build-arg", f"TORCH_INDEX={arguments.torch_index}"]
    if tool == "buildah":
        command += ["--layers", "--quiet", "--ignorefile", str(ROOT / ".dockerignore")]
    name = local_name(target, arguments.tag)
    print(f"building {name} with {tool} on {base}", flush=True)
    subprocess.run([*command, *_secrets(), "--tag", name, str(ROOT)], check=True)


def _labels() -> dict[str, str]:
    """What the image says of its sources: their version, and the commit where there is a clean one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    known = commit.returncode == 0 and changed.returncode == 0 and not changed.stdout
    return {"VERSION": project["version"], "REVISION": commit.stdout.strip() if known else "unknown"}


def _qualified(image: str) -> str:
    """`python:3.12-slim` as docker means it, for tools that have no default registry."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _secrets() -> list[str]:
    """This machine's pip configuration and certificates, where it has its own."""
    settings = [os.environ.get("PIP_CONFIG_FILE"), "~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"]
    bundles = [os.environ.get(name) for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")]
    found = []
    for secret, candidates in (("pip", settings), ("ca", bundles)):
        paths = (Path(text).expanduser() for text in candidates if text)
        if path := next((path for path in paths if path.is_file()), None):
            found += ["--secret", f"id={secret},src={path}"]
    return found


def _push(tool: str, target: str, arguments: argparse.Namespace) -> None:
    local, remote = (
        local_name(target, arguments.tag),
        f"{arguments.registry.rstrip('/')}/diloco-{target}:{arguments.tag}",
    )
    subprocess.run([tool, "tag", local, remote], check=True)
    subprocess.run([tool, "push", remote], check=True)
    print(f"pushed {remote}")


def _save(tool: str, target: str, tag: str, folder: Path) -> Path:
    """An archive that containerd and kind import."""
    name, file = local_name(target, tag), folder / f"{target}.tar"
    file.unlink(missing_ok=True)
    if tool == "docker":
        subprocess.run(["docker", "save", "--output", str(file), name], check=True)
    else:
        subprocess.run(["buildah", "push", "--quiet", name, f"docker-archive:{file}:{name}"], check=True)
    return file


def _size(tool: str, name: str) -> int:
    """Bytes of an image that was built, unpacked."""
    if tool == "docker":
        command = ["docker", "image", "inspect", "--format", "{{.Size}}", name]
    else:
        command = ["buildah", "images", "--json", name]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise Failed(f"there is no image {name}: make images")
    return int(answer.stdout) if tool == "docker" else _bytes(json.loads(answer.stdout)[0]["size"])


def _bytes(text: str) -> int:
    """`5.88 GB`, as buildah says it."""
    number, unit = text.split()
    return round(float(number) * 1000 ** ["B", "KB", "MB", "GB", "TB"].index(unit.upper()))


def _kind_load(tool: str, target: str, arguments: argparse.Namespace) -> None:
    if not shutil.which("kind"):
        raise Failed("kind is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        file = _save(tool, target, arguments.tag, Path(folder))
        subprocess.run(["kind", "load", "image-archive", str(file), "--name", arguments.cluster], check=True)


def _quiet(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
