"""Mutual TLS between a Learner and the Synchronizer: who is let in, what a renewal does, how an unfit end is named."""

import asyncio
import logging
import random
import re
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from diloco_api import names
from diloco_api.errors import SpecError
from diloco_api.reach import REACHED_LINE, Failure, Unreached, last_said
from diloco_api.status import MAX_MESSAGE
from diloco_api.timeouts import Timeouts
from diloco_api.tokens import make_token
from diloco_trainer.wire.client import SynchronizerClient
from diloco_trainer.wire.errors import CertificateRefused, SynchronizerUnavailable, Unauthenticated
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.reach import Reachability, probe
from diloco_trainer.wire.server import RunningServer, serve
from diloco_trainer.wire.tls import ClientTls, Credentials, Material
from fakes import certificates
from fakes.certificates import OTHER_ROOT
from fakes.synchronizer_backend import JOB, KEY, FakeBackend, header, join_request, payload_of
from fakes.tcp_proxy import TcpProxy

OTHER_JOB = "ffffffff-0000-4000-8000-000000000000"


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@asynccontextmanager
async def served(backend: FakeBackend, tls: Credentials | None, port: int = 0) -> AsyncIterator[RunningServer]:
    server = await serve(backend, host="127.0.0.1", port=port, key=KEY, job_uid=JOB, tls=tls)
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(
    folder: Path, tls: ClientTls | None, *addresses: str | int, token: str = "", seconds: float = 10.0
) -> AsyncIterator[SynchronizerClient]:
    lines = [address if isinstance(address, str) else f"127.0.0.1:{address}" for address in addresses]
    (folder / "addresses").write_text("".join(f"{line}\n" for line in lines))
    client = SynchronizerClient(
        folder / "addresses",
        token or make_token(KEY, JOB, 0, 0),
        rng=random.Random(0),
        timeouts=Timeouts(rpc_timeout_seconds=5.0, call_retry_seconds=seconds),
        tls=tls,
    )
    try:
        yield client
    finally:
        await client.close()


async def refusal(client: SynchronizerClient) -> str:
    with pytest.raises(CertificateRefused) as caught:
        await client.join(join_request())
    return caught.value.message


async def unavailable(client: SynchronizerClient) -> str:
    with pytest.raises(SynchronizerUnavailable) as caught:
        await client.join(join_request())
    return caught.value.message


# --- who is let in ------------------------------------------------------------------------------------------------


async def test_both_connections_are_encrypted(backend: FakeBackend, tmp_path: Path) -> None:
    """Nothing of token, site or payload can be read by who carries the bytes."""
    seen = bytearray()
    payload = payload_of(1)
    async with served(backend, certificates.server(tmp_path / "s")) as server, TcpProxy(server.port, seen) as proxy:
        async with connected(tmp_path, certificates.learner(tmp_path / "l"), proxy.port) as learner:
            await learner.join(join_request())
            assert (await learner.contribute(header(payload, fragment=1), payload)).outcome == pb.RECEIVED
        assert len(proxy.connections) == 2
    assert len(seen) > len(payload)
    assert make_token(KEY, JOB, 0, 0).encode() not in seen
    assert bytes(payload[:64]) not in seen


async def test_a_token_is_worth_nothing_with_another_incarnations_certificate(
    backend: FakeBackend, tmp_path: Path
) -> None:
    async with served(backend, certificates.server(tmp_path / "s")) as server:
        for index, incarnation in ((1, 0), (0, 1)):
            tls = certificates.learner(tmp_path / f"{index}", index, incarnation)
            async with connected(tmp_path, tls, server.port) as learner:
                words = f"made for learner 0 incarnation 0, the certificate for 'learner-{index}-{incarnation}'"
                with pytest.raises(Unauthenticated, match=words):
                    await learner.join(join_request())
                with pytest.raises(Unauthenticated, match=words):
                    await learner.contribute(header(payload_of(0)), payload_of(0))
    assert not backend.calls


async def test_a_plain_learner_is_not_let_in(backend: FakeBackend, tmp_path: Path) -> None:
    own = certificates.server(tmp_path / "s")
    async with served(backend, own) as server, connected(tmp_path, None, server.port, seconds=0.5) as learner:
        assert "UNAVAILABLE" in await unavailable(learner)
    assert not backend.calls


async def test_a_learner_with_tls_tells_a_plain_server_nothing(backend: FakeBackend, tmp_path: Path) -> None:
    tls = certificates.learner(tmp_path / "l")
    async with served(backend, None) as server, connected(tmp_path, tls, server.port, seconds=1.0) as learner:
        words = await unavailable(learner)
    assert words.startswith(f"TLSFailure: 127.0.0.1:{server.port}: no TLS server answers there: ")
    assert not backend.calls


# --- renewal ------------------------------------------------------------------------------------------------------


async def test_certificates_are_renewed_on_both_sides_while_a_stream_stays_open(
    backend: FakeBackend, tmp_path: Path
) -> None:
    """Three generations on, nothing of the first is trusted any more; new connections use what is in the files."""
    own, tls = certificates.server(tmp_path / "s"), certificates.learner(tmp_path / "l")
    async with served(backend, own) as server, connected(tmp_path, tls, server.port) as learner:
        await learner.join(join_request())
        async with aclosing(learner.turns()) as notices:
            await anext(notices)
            certificates.server(tmp_path / "s", age=3)
            certificates.learner(tmp_path / "l", age=3)
            payload = payload_of(1)
            assert (await learner.contribute(header(payload, fragment=1), payload)).outcome == pb.RECEIVED
            backend.tell(pb.Notice(turn=pb.Turn(number=7)))
            assert (await anext(notices)).turn.number == 7
            async with connected(tmp_path, certificates.learner(tmp_path / "stale"), server.port) as stale:
                assert "unable to get local issuer" in await refusal(stale)


@pytest.mark.parametrize("late", ["Synchronizer", "Learner"])
@pytest.mark.parametrize("age", [1, 2])
async def test_one_end_may_be_renewed_before_the_other(
    backend: FakeBackend, tmp_path: Path, late: str, age: int
) -> None:
    own = certificates.server(tmp_path / "s", age=age, late=late == "Synchronizer")
    tls = certificates.learner(tmp_path / "l", age=age, late=late == "Learner")
    async with served(backend, own) as server, connected(tmp_path, tls, server.port) as learner:
        assert (await learner.join(join_request())).started


async def test_a_learner_once_admitted_waits_for_the_renewal_of_its_certificates(
    backend: FakeBackend, tmp_path: Path
) -> None:
    own, tls = certificates.server(tmp_path / "s"), certificates.learner(tmp_path / "l")
    async with served(backend, own) as server, connected(tmp_path, tls, server.port, seconds=20.0) as learner:
        await learner.join(join_request())
        await server.stop(0)
        async with served(backend, certificates.server(tmp_path / "s", age=3), server.port):
            again = asyncio.create_task(learner.join(join_request()))
            await asyncio.sleep(1.5)
            assert not again.done()
            certificates.learner(tmp_path / "l", age=3)
            assert (await again).started


async def test_a_renewal_that_cannot_be_read_yet_leaves_the_server_as_it_was(
    backend: FakeBackend, tmp_path: Path
) -> None:
    own = certificates.server(tmp_path / "s")
    async with served(backend, own) as server:
        shutil.rmtree(tmp_path / "s")
        async with connected(tmp_path, certificates.learner(tmp_path / "l"), server.port) as learner:
            assert (await learner.join(join_request())).started


# --- what does not fit --------------------------------------------------------------------------------------------

Unfit = Callable[[Path], tuple[Credentials, ClientTls]]

UNFIT: dict[str, tuple[Unfit, str, str]] = {
    "the Synchronizer's CA is foreign": (
        lambda folder: (
            certificates.server(folder / "s", root=OTHER_ROOT),
            certificates.learner(folder / "l"),
        ),
        "or {folder}/l/ca.crt is of another job",
        "subject CN=synchronizer,O=diloco {job}, issuer CN=CA 0,O=diloco {job}",
    ),
    "the Synchronizer's certificate has expired": (
        lambda folder: (
            certificates.server(folder / "s", age=2, late=2),
            certificates.learner(folder / "l", age=2, late=1),
        ),
        "the Synchronizer's Secret was not renewed, or a clock is wrong",
        "subject CN=synchronizer,O=diloco {job}",
    ),
    "the address is another job's": (
        lambda folder: (certificates.server(folder / "s"), certificates.learner(folder / "l", expects=OTHER_JOB)),
        f"; not for diloco-{OTHER_JOB}.synchronizer.internal: the address leads to another Synchronizer",
        "subject CN=synchronizer,O=diloco {job}",
    ),
    "the Learner's certificate is foreign": (
        lambda folder: (certificates.server(folder / "s"), certificates.learner(folder / "l", root=OTHER_ROOT)),
        "; it has ended, or its Secret is not of this job",
        "subject CN=learner-0-0,O=diloco {job}",
    ),
    "the Learner's certificate has expired": (
        lambda folder: (
            certificates.server(folder / "s", age=2, late=1),
            certificates.learner(folder / "l", age=2, late=2),
        ),
        "the Synchronizer refuses this Learner's certificate",
        "subject CN=learner-0-0,O=diloco {job}",
    ),
}


@pytest.mark.parametrize(("unfit", "advice", "shown"), UNFIT.values(), ids=UNFIT)
async def test_a_learner_never_admitted_gives_up_and_names_the_certificate(
    backend: FakeBackend, tmp_path: Path, unfit: Unfit, advice: str, shown: str
) -> None:
    own, tls = unfit(tmp_path)
    async with served(backend, own) as server, connected(tmp_path, tls, server.port) as learner:
        words = await refusal(learner)
    assert words.startswith(f"TLSFailure: 127.0.0.1:{server.port}: ")
    assert advice.format(folder=tmp_path) in words
    assert shown.format(job=JOB) in words
    assert re.search(r": sha256 ([0-9A-F]{2}:){7}[0-9A-F]{2}\.\.\., subject ", words)
    assert shown.format(job=JOB) in words[:MAX_MESSAGE], "it does not fit into a status"
    assert not backend.calls


class Unreadable(Credentials):
    """What OpenSSL takes for a certificate, and nobody else does."""

    def read(self) -> Material:
        return Material(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"", b"")


async def test_a_refused_certificate_that_cannot_be_shown_is_told_as_that(backend: FakeBackend, tmp_path: Path) -> None:
    foreign = certificates.learner(tmp_path / "l", root=OTHER_ROOT)
    tls = ClientTls(Unreadable(foreign.own.folder), foreign.server_name)
    async with served(backend, certificates.server(tmp_path / "s")) as server:
        finding = await asyncio.to_thread(probe, f"127.0.0.1:{server.port}", tls)
    assert finding is not None
    assert "refuses this Learner's certificate" in str(finding)
    assert "its own certificate cannot be read: " in str(finding)


async def test_one_address_that_leads_elsewhere_does_not_end_a_learner(backend: FakeBackend, tmp_path: Path) -> None:
    foreign = certificates.server(tmp_path / "foreign", root=OTHER_ROOT)
    async with served(FakeBackend(), foreign) as wrong, served(backend, certificates.server(tmp_path / "s")) as right:
        tls = certificates.learner(tmp_path / "l")
        async with connected(tmp_path, tls, wrong.port, wrong.port, wrong.port, right.port) as learner:
            assert (await learner.join(join_request())).started


async def test_a_name_that_does_not_resolve_is_a_dns_failure(tmp_path: Path) -> None:
    tls = certificates.learner(tmp_path / "l")
    async with connected(tmp_path, tls, "nowhere.invalid:29400", seconds=1.0) as learner:
        assert (await unavailable(learner)).startswith("DNSFailure: nowhere.invalid:29400: ")


async def test_a_port_nobody_listens_on_is_a_tcp_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with connected(tmp_path, certificates.learner(tmp_path / "l"), port, seconds=1.0) as learner:
        assert await unavailable(learner) == f"TCPFailure: 127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (names.FILE_CA, None, "ca.crt: cannot be read: No such file"),
        (names.FILE_TLS_KEY, "garbage", "do not make TLS credentials"),
        (names.FILE_CA, "garbage", "do not make TLS credentials"),
    ],
)
def test_files_that_are_no_credentials_are_named_at_the_start(
    tmp_path: Path, name: str, text: str | None, problem: str
) -> None:
    own = certificates.server(tmp_path / "s")
    own.check()
    path = tmp_path / "s" / "..data" / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=problem):
        own.check()


async def test_whoever_merely_comes_too_early_is_not_looked_into(tmp_path: Path) -> None:
    """One failed Join is usual at the start of a job: no connection is spent on it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        (tmp_path / "addresses").write_text(f"127.0.0.1:{listener.getsockname()[1]}\n")
        reach = Reachability(tmp_path / "addresses", certificates.learner(tmp_path / "l"))
        error = SynchronizerUnavailable("UNAVAILABLE: connection refused")
        assert await reach.explain(error) is error
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_a_learner_whose_heartbeats_fail_says_why_and_when_that_is_over(
    backend: FakeBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="diloco_trainer.wire.reach")
    own, beat = certificates.server(tmp_path / "s"), pb.HeartbeatRequest(index=0, incarnation=0)
    async with (
        served(backend, own) as server,
        connected(tmp_path, certificates.learner(tmp_path / "l"), server.port) as it,
    ):
        await it.join(join_request())
        await it.heartbeat(beat)
        assert caplog.text == ""
        await server.stop(0)
        with pytest.raises(SynchronizerUnavailable):
            await it.heartbeat(beat)
        async with asyncio.timeout(10):
            while not caplog.text:
                await asyncio.sleep(0.01)
        assert last_said(caplog.text) == Unreached(Failure.TCP, f"127.0.0.1:{server.port}: Connection refused")
        async with served(backend, own, server.port):
            await it.heartbeat(beat)
        assert last_said(caplog.text) is None
    assert [record.getMessage() for record in caplog.records][1:] == [REACHED_LINE]
