"""The Learner process: its environment, its exit codes, its signals."""

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from diloco_api import names
from diloco_api.exit_codes import ExitCode
from diloco_api.run_config import RunConfig
from diloco_api.tokens import make_token
from diloco_trainer.learner import metrics, process
from diloco_trainer.learner.account import Account
from diloco_trainer.task.task import make_task
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.exchanges import GrpcExchange
from fakes.learners import ME, anchors_of, make_core, make_run
from fakes.merging_backend import MergingBackend
from fakes.sync_jobs import decoupled
from fakes.synchronizer_backend import JOB, KEY

POLICY = decoupled({"encode_up": "fp32", "encode_down": "fp32", "error_feedback": False})


def environment(folder: Path, run: RunConfig) -> dict[str, str]:
    for name in ("config", "address", "credentials", "scratch"):
        (folder / name).mkdir()
    (folder / "config" / names.FILE_RUN_CONFIG).write_text(run.model_dump_json())
    (folder / "credentials" / names.FILE_TOKEN).write_text(make_token(KEY, JOB, ME.index, ME.incarnation))
    return {
        names.ENV_LEARNER_INDEX: str(ME.index),
        names.ENV_INCARNATION: str(ME.incarnation),
        names.ENV_SITE: "here",
        names.ENV_CONFIG_DIR: str(folder / "config"),
        names.ENV_ADDRESS_DIR: str(folder / "address"),
        names.ENV_CREDENTIALS_DIR: str(folder / "credentials"),
        names.ENV_SCRATCH_DIR: str(folder / "scratch"),
        names.ENV_DEVICE: "cpu",
    }


@pytest.fixture
def _signals() -> object:
    """`main` takes the process's signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variables: dict[str, str]
) -> tuple[int, str]:
    for name in [name for name in os.environ if name.startswith("DILOCO_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = process.main()
    return code, capsys.readouterr().err


@pytest.mark.usefixtures("_signals")
class TestMistakes:
    """Each is one line and a code of its own."""

    def test_without_an_environment(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        code, line = run_main(monkeypatch, capsys, {names.ENV_DEVICE: "cpu"})
        assert code == ExitCode.BAD_CONFIG
        assert line == f"error: {names.ENV_LEARNER_INDEX}: not set\n"

    def test_with_a_run_config_of_another_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        variables = environment(tmp_path, make_run(tmp_path, POLICY))
        path = tmp_path / "config" / names.FILE_RUN_CONFIG
        path.write_text(path.read_text().replace('"replicas"', '"replikas"'))
        code, line = run_main(monkeypatch, capsys, variables)
        assert code == ExitCode.BAD_CONFIG
        assert line.startswith(f"error: {path}: replicas: ")
        assert line.count("\n") == 1

    def test_with_tls_and_no_certificates(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, line = run_main(monkeypatch, capsys, environment(tmp_path, make_run(tmp_path, POLICY, {"tls": True})))
        assert code == ExitCode.BAD_CONFIG
        assert line == f"error: {tmp_path}/credentials/tls.crt: cannot be read: No such file or directory\n"

    def test_with_a_gpu_that_cannot_be_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def ones(*_: object, **__: object) -> None:
            raise RuntimeError("Found no NVIDIA driver on your system.")

        monkeypatch.setattr(torch, "ones", ones)
        variables = environment(tmp_path, make_run(tmp_path, POLICY)) | {names.ENV_DEVICE: "cuda"}
        code, line = run_main(monkeypatch, capsys, variables)
        assert code == ExitCode.DEVICE
        assert line.startswith("error: cuda cannot be used: Found no NVIDIA driver on your system.; ")

    def test_with_more_fragments_than_tensors(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = make_run(tmp_path, POLICY.model_copy(update={"num_fragments": 99}))
        code, line = run_main(monkeypatch, capsys, environment(tmp_path, run))
        assert code == ExitCode.BAD_CONFIG
        assert line == "error: fragments: 99 is more than the model's 11 parameter tensors\n"

    def test_with_a_text_that_is_too_short(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = make_run(tmp_path, POLICY)
        (tmp_path / "text.txt").write_bytes(b"too short")
        code, line = run_main(monkeypatch, capsys, environment(tmp_path, run))
        assert code == ExitCode.DATA_ERROR
        assert "has 9 bytes, one sequence of data.sequenceLength 16 needs 17" in line

    def test_with_a_metrics_port_that_is_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with socket.create_server(("0.0.0.0", 0)) as taken:
            port = taken.getsockname()[1]
            run = make_run(tmp_path, POLICY, {"learner_metrics_port": port})
            code, line = run_main(monkeypatch, capsys, environment(tmp_path, run))
        assert (code, line) == (ExitCode.PORT_IN_USE, f"error: metrics port {port} is in use\n")

    def test_with_a_metrics_port_it_may_not_bind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def forbidden(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(metrics, "start_http_server", forbidden)
        run = make_run(tmp_path, POLICY, {"learner_metrics_port": 80})
        code, line = run_main(monkeypatch, capsys, environment(tmp_path, run))
        assert (code, line) == (ExitCode.PORT_IN_USE, "error: metrics port 80 cannot be bound: Permission denied\n")


def test_metrics_are_served_to_this_machine_only() -> None:
    port = metrics.serve_metrics(Account(time.monotonic), metrics.Place("toy", "default", "here", 0), 0)
    assert "diloco_incarnation_steps_total" in scrape(port)
    with socket.create_server(("127.0.0.2", port)):
        pass  # every other address is free


async def test_a_process_that_is_told_to_end_while_the_synchronizer_is_gone_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    """It has steps to hand over, and half of its grace period for that."""
    run = make_run(tmp_path, POLICY)
    variables = environment(tmp_path, run)
    _, core = make_core(run)
    anchors = [[anchor] for anchor in anchors_of(core)]
    backend = MergingBackend(core.layout, anchors, 10**6, make_task(run.train).num_sequences)
    server = await GrpcExchange.start(backend, tmp_path / "address")
    learner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diloco_trainer.learner"),
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(100):
            while not (backend.heartbeats and backend.heartbeats[-1].step > 3):
                assert learner.returncode is None
                await asyncio.sleep(0.02)
            await server.close()
            await asyncio.sleep(1)
            told = time.monotonic()
            learner.send_signal(signal.SIGTERM)
            assert await learner.wait() == ExitCode.COMPLETE
    finally:
        if learner.returncode is None:
            learner.kill()
            await learner.wait()
    assert time.monotonic() - told < run.timeouts.grace_period_seconds / 4


@pytest.mark.parametrize("module", ["diloco_trainer.learner", "diloco_trainer.synchronizer"])
async def test_a_process_listens_to_signals_before_it_has_imported_torch(module: str) -> None:
    """As first process of a container it would else be deaf to them for seconds, and use up its grace period."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    )
    try:
        async with asyncio.timeout(60):
            while "torch" not in Path(f"/proc/{started.pid}/maps").read_text():  # the import takes a second and more
                assert started.returncode is None
                await asyncio.sleep(0.001)
            assert catches(started.pid, signal.SIGTERM)
            started.send_signal(signal.SIGTERM)
            assert await started.wait() == ExitCode.COMPLETE
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


def catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


async def test_a_process_trains_is_scraped_and_leaves_on_sigterm(tmp_path: Path) -> None:
    run = make_run(tmp_path, POLICY)
    variables = environment(tmp_path, run)
    _, core = make_core(run)
    anchors = [[anchor + 0.01] for anchor in anchors_of(core)]
    backend = MergingBackend(core.layout, anchors, 10**6, make_task(run.train).num_sequences)
    server = await GrpcExchange.start(backend, tmp_path / "address")
    (tmp_path / "sitecustomize.py").write_text("import atexit, sys; atexit.register(sys.stderr.write, 'taken down')")
    python_path = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    learner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diloco_trainer.learner"),
        env={**os.environ, **variables, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(100):
            while not (backend.heartbeats and backend.heartbeats[-1].step > 3):
                assert learner.returncode is None, await learner.communicate()
                await asyncio.sleep(0.02)
            text = await asyncio.to_thread(scrape, backend.heartbeats[-1].metrics_port)
            backend.turn(1, 1)
            while backend.heartbeats[-1].bytes_down < 4 * sum(f.numel for f in core.layout.fragments) + 1:
                await asyncio.sleep(0.02)
            learner.send_signal(signal.SIGTERM)
            _, errors = await learner.communicate()
    finally:
        if learner.returncode is None:
            learner.kill()
            await learner.wait()
        await server.close()
    complaints = [line for line in errors.splitlines() if b" INFO " not in line]
    assert (learner.returncode, complaints) == (0, []), "it ends without taking the interpreter down"
    assert "diloco_incarnation_steps_total" in text
    assert backend.left[0].reason == "Terminated"
    assert backend.left[0].totals.state in {"training", "data_wait"}
    lines = [json.loads(line) for line in (tmp_path / "scratch" / names.FILE_TAPE).read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"join", "step", "contribution", "settlement", "adoption"}
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert steps == list(range(1, backend.left[0].totals.step + 1))
    assert pb.Outcome.Value(next(line for line in lines if line["kind"] == "settlement")["outcome"]) == pb.MERGED


def scrape(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()
