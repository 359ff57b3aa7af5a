"""The Synchronizer as a process: its doors, its signals, and the one line it says when it cannot go on."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from diloco_api import names
from diloco_api.errors import SpecError
from diloco_api.exit_codes import ExitCode
from diloco_api.progress import Phase, Progress
from diloco_api.run_config import RunConfig
from diloco_api.tokens import AdminRole, make_admin_token
from diloco_api.train import BatchSpec, DataSpec, GptSpec, TrainSpec
from diloco_trainer.synchronizer.process import ProcessError, read_environment, run
from diloco_trainer.synchronizer.recovery import StateError
from diloco_trainer.synchronizer.snapshot import snapshot_numbers
from diloco_trainer.task.errors import DataError
from fakes.sync_jobs import KEY, UID, decoupled, run_config

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def config(folder: Path, text_bytes: int = 20_000, changes: Mapping[str, object] | None = None) -> RunConfig:
    """A run config of a small GPT on a text of its own."""
    (folder / "text.txt").write_bytes(bytes(range(32, 120)) * (text_bytes // 88 + 1))
    (folder / "text.txt").write_bytes((folder / "text.txt").read_bytes()[:text_bytes])
    train = TrainSpec(
        model=GptSpec(layers=1, hidden=16, heads=2),
        data=DataSpec(uri=str(folder / "text.txt"), sequence_length=32),
        batch=BatchSpec(sequences=2),
    )
    ports = {"synchronizer_port": free_port(), "admin_port": free_port(), "synchronizer_metrics_port": free_port()}
    return run_config(decoupled(), changes={"train": train, **ports, **(changes or {})})


def environment(folder: Path, run: RunConfig) -> dict[str, str]:
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / names.FILE_RUN_CONFIG).write_text(run.model_dump_json())
    (folder / "credentials").mkdir(exist_ok=True)
    (folder / "credentials" / names.FILE_KEY).write_bytes(KEY)
    return {
        names.ENV_CONFIG_DIR: str(folder / "config"),
        names.ENV_CREDENTIALS_DIR: str(folder / "credentials"),
        names.ENV_STATE_DIR: str(folder / "state"),
    }


LARGEST_FILE = 20_000


def limit_files(largest_file: int) -> None:
    """In the child: a file that grows beyond it fails like one on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))


@contextmanager
def process(folder: Path, run: RunConfig, largest_file: int | None = None) -> Iterator["subprocess.Popen[str]"]:
    path = os.pathsep.join(str(ROOT / name) for name in ("crds", "trainer_image"))
    started = subprocess.Popen(
        [sys.executable, "-m", "diloco_trainer.synchronizer"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment(folder, run)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if largest_file is None else partial(limit_files, largest_file),
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


async def get(port: int, path: str) -> tuple[int, str]:
    """A GET that waits for the door to open."""
    token = make_admin_token(KEY, UID, AdminRole.READER)
    deadline = time.monotonic() + 90
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectionError:
                assert time.monotonic() < deadline, "the process did not open its door"
                await asyncio.sleep(0.1)


async def test_it_serves_progress_and_metrics_until_sigterm_and_leaves_a_snapshot(tmp_path: Path) -> None:
    run = config(tmp_path)
    with process(tmp_path, run) as synchronizer:
        status, body = await get(run.admin_port, "/progress")
        progress = Progress.model_validate_json(body)
        assert (status, progress.phase, progress.job_uid) == (200, Phase.WAITING, UID)
        status, body = await get(run.synchronizer_metrics_port, "/metrics")
        assert 'diloco_outer_steps_total{diloco_job="toy",job_namespace="default"} 0.0' in body
        assert (await get(run.synchronizer_metrics_port, "/healthz"))[0] == 200
        with pytest.raises(StateError) as second:
            await run_here(tmp_path, run.model_copy(update={"synchronizer_port": free_port(), "admin_port": 0}))
        assert second.value.code == ExitCode.FENCED
        assert "in use by another Synchronizer" in str(second.value)
        synchronizer.send_signal(signal.SIGTERM)
        _, errors = await asyncio.to_thread(synchronizer.communicate, timeout=60)
        assert synchronizer.returncode == ExitCode.COMPLETE, errors
    assert snapshot_numbers(tmp_path / "state") != []


async def run_here(folder: Path, config: RunConfig) -> int:
    """The same code in this process, for what fails before anything is served."""
    free = {"synchronizer_metrics_port": 0}
    return await run(read_environment(environment(folder, config.model_copy(update=free))))


async def test_a_port_in_use_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config_ = config(tmp_path, changes={"synchronizer_port": port})
        with pytest.raises(ProcessError, match=f"^synchronizer.port {port} is in use$") as caught:
            await run_here(tmp_path, config_)
        assert caught.value.code == ExitCode.PORT_IN_USE
        assert not (tmp_path / "state").exists()


async def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StateError, match=str(tmp_path / "state")) as caught:
        await run_here(tmp_path, config(tmp_path))
    assert caught.value.code == ExitCode.STATE_UNWRITABLE


async def test_a_text_too_short_is_a_data_error_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"text\.txt|data"):
        await run_here(tmp_path, config(tmp_path, text_bytes=20))
    assert not (tmp_path / "state").exists()


def test_certificates_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"credentials/tls\.crt: cannot be read: No such file"):
        read_environment(environment(tmp_path, config(tmp_path, changes={"tls": True})))


def test_the_key_is_not_in_what_a_log_would_show(tmp_path: Path) -> None:
    given = read_environment(environment(tmp_path, config(tmp_path)))
    assert given.key == KEY
    assert KEY.decode() not in repr(given)


def test_a_disk_that_fills_up_in_a_snapshot_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    """No file may grow beyond 20 kB: enough for the log so far, too little for a fragment."""
    train = TrainSpec(
        model=GptSpec(layers=1, hidden=64, heads=2),
        data=DataSpec(uri=str(tmp_path / "text.txt"), sequence_length=32),
        batch=BatchSpec(sequences=2),
    )
    run_ = config(tmp_path, changes={"train": train})
    with process(tmp_path, run_, largest_file=LARGEST_FILE) as synchronizer:
        assert asyncio.run(get(run_.synchronizer_metrics_port, "/healthz"))[0] == 200
        synchronizer.send_signal(signal.SIGTERM)  # its last act is a snapshot
        _, errors = synchronizer.communicate(timeout=60)
    assert synchronizer.returncode == ExitCode.STATE_UNWRITABLE, errors
    assert "Traceback" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith(f"error: {tmp_path}/state/snapshot-")
    assert "fragment-0000.safetensors" in last


def test_a_failure_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process(tmp_path, config(tmp_path, changes={"synchronizer_port": port})) as synchronizer:
            _, errors = synchronizer.communicate(timeout=90)
    assert synchronizer.returncode == ExitCode.PORT_IN_USE
    assert errors == f"error: synchronizer.port {port} is in use\n"


@pytest.mark.parametrize("missing", [names.ENV_CONFIG_DIR, names.ENV_CREDENTIALS_DIR, names.ENV_STATE_DIR])
def test_a_missing_variable_is_named(tmp_path: Path, missing: str) -> None:
    given = environment(tmp_path, config(tmp_path))
    del given[missing]
    with pytest.raises(ProcessError, match=missing):
        read_environment(given)
