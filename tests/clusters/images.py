"""Small images, written as OCI archives without any tool: what pods of the test clusters run, and the pause image.

`BUSYBOX` holds a static busybox. Images for Python are empty but for links: everything is mounted (pythons.py).
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusters.layout import Layout

BUSYBOX = "registry.test/busybox:1"
PAUSE = BUSYBOX
USER = "65532"

_APPLETS = [
    "cat", "chmod", "cp", "date", "dd", "df", "echo", "env", "false", "find", "grep", "head", "hostname", "httpd",
    "id", "ip", "kill", "ls", "md5sum", "mkdir", "mv", "nc", "nslookup", "ps", "rm", "sed", "seq", "sh", "sleep",
    "stat", "sync", "tail", "tar", "test", "touch", "true", "wc", "wget", "whoami", "yes",
]  # fmt: skip


@dataclass
class Image:
    """Content and configuration of a one-layer image."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    """Path to mode."""
    environment: Mapping[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)


def busybox() -> Image:
    """A shell and little more; does nothing until it is killed where no command is given."""
    return Image(
        BUSYBOX,
        files={"bin/busybox": Path("/bin/busybox").read_bytes(), **accounts()},
        links={f"bin/{applet}": "busybox" for applet in _APPLETS},
        folders={"tmp": 0o1777, "etc": 0o755, "bin": 0o755},
        environment={"PATH": "/bin"},
        command=["/bin/sleep", "2147483647"],
    )


def accounts() -> dict[str, bytes]:
    """/etc of an image: a root and the numeric user that restricted pods run as."""
    return {
        "etc/passwd": f"root:x:0:0::/:/bin/sh\nuser:x:{USER}:{USER}::/tmp:/bin/sh\n".encode(),
        "etc/group": f"root:x:0:\nuser:x:{USER}:\n".encode(),
        "etc/nsswitch.conf": b"hosts: files dns\n",
    }


def archive(layout: Layout, image: Image) -> Path:
    """Write the image into the set's folder; returns the archive."""
    layer = _layer(image)
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "User": USER,
                "Env": [f"{name}={value}" for name, value in image.environment.items()],
                "Cmd": image.command,
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            "history": [{"created_by": "tests/clusters"}],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    entry["annotations"] = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
    }
    index = _json({"schemaVersion": 2, "manifests": [entry]})
    path = layout.folder / "images" / f"{image.name.replace('/', '_').replace(':', '_')}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (layer, config, manifest):
            _add(tar, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)
    return path


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in image.folders.items():
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        for name, content in image.files.items():
            _add(tar, name, content, 0o755 if name.startswith("bin/") else 0o644)
        for name, target in image.links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, blob: bytes) -> dict:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
