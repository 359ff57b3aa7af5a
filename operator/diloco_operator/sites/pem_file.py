"""Giving a TLS context a certificate and key from memory; OpenSSL's Python interface takes them from files only."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


def load_identity(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load both through a file that only this process' user can read and that is gone when this returns."""
    in_memory = hasattr(os, "memfd_create")
    with _memory_file() if in_memory else _disk_file() as (descriptor, path):
        with os.fdopen(descriptor, "w", closefd=False) as file:
            file.write(certificate + key)
        context.load_cert_chain(path, password=_nobody_is_asked)


@contextmanager
def _memory_file() -> Iterator[tuple[int, str]]:
    """Linux: never on a disk, and the operator's root file system may be read-only."""
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        yield descriptor, f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _disk_file() -> Iterator[tuple[int, str]]:
    descriptor, path = tempfile.mkstemp(prefix="identity-")  # mode 0600
    try:
        yield descriptor, path
    finally:
        os.close(descriptor)
        os.unlink(path)


def _nobody_is_asked() -> str:
    raise AssertionError("the key was checked to be unencrypted")
