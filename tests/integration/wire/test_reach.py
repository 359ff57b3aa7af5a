"""What a look at an address leaves behind, whatever it meets there."""

import gc
import socket
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diloco_api.reach import Failure
from diloco_trainer.wire.reach import probe
from fakes import certificates

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@contextmanager
def resetting() -> Iterator[str]:
    """An address that takes every connection and resets it at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset_all() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)

        thread = threading.Thread(target=reset_all)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_no_connection_is_left_open_to_whoever_resets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's SSLSocket is not closed when it is made of a connection that is gone already."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    tls = certificates.learner(tmp_path)
    with resetting() as address, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        found = [probe(address, tls) for _ in range(50)]
        gc.collect()
    assert {finding.failure for finding in found if finding} <= {Failure.TLS, Failure.TCP}
    assert all(found), "nobody is there"
    assert [str(warning.message) for warning in told] == []


def test_an_address_of_a_family_this_machine_does_not_have_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names may have addresses of IPv6 where the kernel has none."""
    monkeypatch.setenv("no_proxy", "two.example")
    with resetting() as address:
        here = ("127.0.0.1", int(address.rpartition(":")[2]))
        found = [(socket.AF_APPLETALK, ("::1", 1)), (socket.AF_INET, here)]
        answer = [(family, socket.SOCK_STREAM, 0, "", where) for family, where in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
        finding = probe("two.example:1", certificates.learner(tmp_path))
    assert finding is not None
    assert "family" not in finding.message, "the other one was tried, and resets"
