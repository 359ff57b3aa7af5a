"""A client's identity gets into a TLS context and leaves no file behind."""

import os
import ssl
import tempfile
from pathlib import Path

import pytest

from diloco_operator.sites.pem_file import load_identity
from fakes.authority import Authority


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_an_identity_is_loaded_and_no_file_is_left(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if where == "disk":
        monkeypatch.delattr(os, "memfd_create")
    modes = []

    class Context(ssl.SSLContext):
        def load_cert_chain(self, certfile, keyfile=None, password=None):  # type: ignore[no-untyped-def]
            modes.append((os.stat(certfile).st_mode & 0o077, sorted(path.name for path in tmp_path.iterdir())))
            super().load_cert_chain(certfile, keyfile, password)

    open_before = len(os.listdir("/proc/self/fd"))
    load_identity(Context(ssl.PROTOCOL_TLS_CLIENT), *Authority("users").client("somebody"))
    ((others_may, files),) = modes
    assert bool(files) is (where == "disk")
    assert others_may == 0 or where == "memory"
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == open_before
