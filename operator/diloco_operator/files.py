"""Small file writes that are whole or absent, never half. Knows nothing of what is written."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Replace `path` by `content`; a reader sees the old or the new content. `sync` also survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)
        data = memoryview(content.encode() if isinstance(content, str) else content)
        while data:
            data = data[os.write(descriptor, data) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    if sync:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
