"""What local processes are given and how they end; beyond what every site promises."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diloco_api.names import LABEL_JOB_UID
from diloco_operator.sites.container import RestartBackoff
from diloco_operator.sites.process import ProcessSite
from diloco_operator.sites.process_table import start_time
from diloco_operator.sites.site import SiteInvalid, SiteStorage

Manifest = dict[str, Any]
JOB = "uid-of-the-job"
ROOT = Path(__file__).parents[3]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ProcessSite]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/home/somebody", "SECRET_OF_THE_USER": "x"}
    site = ProcessSite("local", tmp_path / "site", environment, RestartBackoff(first_seconds=0.05))
    await site.start()
    yield site
    await site.close(grace_seconds=0.5)


def pod(name: str, program: str, **spec: Any) -> Manifest:
    container: Manifest = {"name": "c", "image": "none", "command": ["python", "-S", "-c", textwrap.dedent(program)]}
    container |= spec.pop("container", {})
    metadata = {"name": name, "labels": {LABEL_JOB_UID: JOB}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def content(kind: str, name: str, values: dict[str, str]) -> Manifest:
    field = "stringData" if kind == "Secret" else "data"
    return {"kind": kind, "metadata": {"name": name, "labels": {LABEL_JOB_UID: JOB}}, field: values}


async def ended(site: ProcessSite, name: str) -> Manifest:
    async with asyncio.timeout(20):
        while True:
            for found in await site.list_owned(JOB):
                over = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
                if found["metadata"]["name"] == name and over:
                    terminated: Manifest = found["status"]["containerStatuses"][0]["state"]["terminated"]
                    return terminated
            await asyncio.sleep(0.02)


VOLUMES = [
    {"name": "config", "configMap": {"name": "settings"}},
    {"name": "secret", "secret": {"secretName": "token", "defaultMode": 0o440}},
    {"name": "state", "persistentVolumeClaim": {"claimName": "data"}},
    {"name": "scratch", "emptyDir": {}},
]
MOUNTS = [
    {"name": "config", "mountPath": "/etc/config"},
    {"name": "secret", "mountPath": "/etc/config/secret"},
    {"name": "state", "mountPath": "/var/state/"},
    {"name": "scratch", "mountPath": "/tmp"},
]


async def test_mount_paths_in_variables_and_arguments_become_folders_with_content(
    site: ProcessSite,
) -> None:
    await site.apply(content("ConfigMap", "settings", {"run.json": "{}"}))
    await site.apply(content("Secret", "token", {"token": "s3cret"}))
    await site.apply(content("PersistentVolumeClaim", "data", {}))
    program = """
        import os, pathlib, sys
        config, secret, state = (pathlib.Path(os.environ[name]) for name in ("CONFIG", "SECRET", "STATE"))
        assert (config / "run.json").read_text() == "{}"
        assert secret.read_text() == "s3cret"
        assert secret.stat().st_mode & 0o777 == 0o600, oct(secret.stat().st_mode)
        assert secret.parent.stat().st_mode & 0o777 == 0o700
        (state / "kept").write_text("x")
        pathlib.Path(sys.argv[1].removeprefix("--scratch=")).joinpath("tape").write_text("y")
        assert os.environ["UNMAPPED"] == "/etcetera/config"
        assert os.environ["DILOCO_THREADS"] == "1"
        assert os.environ["HOME"] == "/home/somebody"
        assert "SECRET_OF_THE_USER" not in os.environ
    """
    variables = {"CONFIG": "/etc/config", "SECRET": "/etc/config/secret/token", "STATE": "/var/state"}
    variables |= {"UNMAPPED": "/etcetera/config"}
    container = {
        "args": ["--scratch=/tmp"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": MOUNTS,
    }
    await site.create_pod(pod("a", program, container=container, volumes=VOLUMES))
    outcome = await ended(site, "a")
    assert outcome["exitCode"] == 0, outcome["message"]
    assert (site.claim_folder("data") / "kept").read_text() == "x"


async def test_a_config_map_that_changes_is_seen_by_the_running_process(site: ProcessSite) -> None:
    await site.apply(content("ConfigMap", "settings", {"addresses": "old", "gone": "x"}))
    program = """
        import os, pathlib, time
        folder = pathlib.Path(os.environ["CONFIG"])
        print((folder / "addresses").read_text(), flush=True)
        while (folder / "addresses").read_text() != "new" or (folder / "gone").exists():
            time.sleep(0.01)
    """
    container = {
        "env": [{"name": "CONFIG", "value": "/etc/config"}],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}],
    }
    await site.create_pod(pod("a", program, container=container, volumes=VOLUMES[:1]))
    async with asyncio.timeout(10):
        while "old" not in (site.log_file("a").read_text() if site.log_file("a").exists() else ""):
            await asyncio.sleep(0.02)
    await site.apply(content("ConfigMap", "settings", {"addresses": "new"}))
    assert (await ended(site, "a"))["exitCode"] == 0


async def test_the_last_words_of_a_process_never_hold_its_secrets(site: ProcessSite) -> None:
    await site.apply(content("Secret", "token", {"token": "s3cret-token\n"}))
    program = "import sys; sys.exit('error: refused with s3cret-token')"
    await site.create_pod(pod("a", program, volumes=[VOLUMES[1]]))
    assert (await ended(site, "a"))["message"] == "error: refused with [redacted]"


async def test_a_deleted_secret_leaves_no_file(site: ProcessSite, tmp_path: Path) -> None:
    await site.apply(content("Secret", "token", {"token": "s3cret"}))
    assert list((tmp_path / "site").rglob("token"))
    await site.delete("Secret", "token", None)
    assert not list((tmp_path / "site").rglob("token"))


async def test_a_claim_survives_its_pods_and_scratch_space_starts_empty(site: ProcessSite) -> None:
    await site.apply(content("PersistentVolumeClaim", "data", {}))
    program = """
        import os, pathlib
        for name in ("STATE", "SCRATCH"):
            folder = pathlib.Path(os.environ[name])
            print(name, len(list(folder.iterdir())))
            (folder / str(os.getpid())).touch()
    """
    variables = [{"name": "STATE", "value": "/var/state"}, {"name": "SCRATCH", "value": "/tmp"}]
    container = {"env": variables, "volumeMounts": MOUNTS[2:]}
    for _ in range(2):
        await site.create_pod(pod("a", program, container=container, volumes=VOLUMES[2:]))
        await ended(site, "a")
        await site.delete("Pod", "a", None)
    assert site.log_file("a").read_text().split() == ["STATE", "0", "SCRATCH", "0", "STATE", "1", "SCRATCH", "0"]


async def test_what_processes_cannot_honour_is_said_once(site: ProcessSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for name in ("a", "b"):
        await site.create_pod(pod(name, "", tolerations=[], container={"resources": {}}))
    said = [record.message for record in caplog.records if "ignore" in record.message]
    assert said == [
        "site local: local processes ignore spec.containers[0].image, spec.containers[0].resources, spec.tolerations"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"container": {"command": []}}, r"command is missing"),
        ({"container": {"env": [{"name": "X", "valueFrom": {}}]}}, r"env X: valueFrom"),
        ({"containers": [{}, {}]}, r"exactly one container"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, r"volume v: .*hostPath"),
        ({"container": {"volumeMounts": [{"name": "v", "mountPath": "/x"}]}}, r"/x: no volume named v"),
    ],
    ids=["command", "downward", "containers", "host-path", "mount"],
)
async def test_a_pod_that_cannot_be_a_process_is_refused_by_name(
    site: ProcessSite, changes: Manifest, words: str
) -> None:
    with pytest.raises(SiteInvalid, match=words):
        await site.create_pod(pod("a", "", **changes))
    assert await site.list_owned(JOB) == []


async def test_a_program_that_does_not_exist_fails_with_its_name(site: ProcessSite) -> None:
    await site.create_pod(pod("a", "", container={"command": ["no-such-program"]}))
    outcome = await ended(site, "a")
    assert (outcome["exitCode"], outcome["message"]) == (127, "error: no-such-program: No such file or directory")


async def test_what_a_process_has_forked_ends_with_it(site: ProcessSite, tmp_path: Path) -> None:
    program = f"""
        import subprocess
        child = subprocess.Popen(["sleep", "600"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    """
    await site.create_pod(pod("a", program))
    assert (await ended(site, "a"))["exitCode"] == 0
    await gone(int((tmp_path / "pid").read_text()))


async def test_what_the_disk_refuses_is_an_error_of_the_site_and_is_applied_again(
    site: ProcessSite, tmp_path: Path
) -> None:
    folder = tmp_path / "site" / "configmaps"
    folder.write_text("in the way")
    for _ in range(2):
        with pytest.raises(
            SiteStorage, match=r"^ConfigMap settings: cannot be written: (Not a directory|File exists)$"
        ):
            await site.apply(content("ConfigMap", "settings", {"a": "b"}))
        assert await site.list_owned(JOB) == []
    folder.unlink()
    await site.apply(content("ConfigMap", "settings", {"a": "b"}))
    assert (folder / "settings" / "a").read_text() == "b"


async def test_a_site_whose_folder_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SiteStorage, match=r"its work folder: cannot be written: Not a directory"):
        await ProcessSite("local", tmp_path / "file", {}).start()


async def test_a_pod_whose_scratch_space_cannot_be_made_fails_with_the_reason(
    site: ProcessSite, tmp_path: Path
) -> None:
    (tmp_path / "site" / "pods").write_text("in the way")
    await site.create_pod(pod("a", "", volumes=[{"name": "scratch", "emptyDir": {}}]))
    outcome = await ended(site, "a")
    assert (outcome["exitCode"], outcome["message"].startswith("error: cannot be started: ")) == (128, True)
    await site.delete("Pod", "a", None)
    assert await site.list_owned(JOB) == []


async def test_a_process_that_cannot_be_recorded_is_not_left_running(
    site: ProcessSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "processes.json").unlink()
    (tmp_path / "site" / "processes.json").mkdir()
    spawned: list[int] = []
    spawn = asyncio.create_subprocess_exec

    async def remember(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await spawn(*arguments, **options)
        spawned.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    await site.create_pod(pod("a", "import time; time.sleep(600)"))
    assert (await ended(site, "a"))["exitCode"] == 128
    assert site.processes() == []
    (pid,) = spawned
    await gone(pid)


async def test_a_good_end_stays_good_when_its_record_cannot_be_removed(site: ProcessSite, tmp_path: Path) -> None:
    await site.create_pod(pod("a", "import time; time.sleep(0.5)"))
    async with asyncio.timeout(10):
        while not site.processes():
            await asyncio.sleep(0.01)
    (tmp_path / "site" / "processes.json").unlink()
    (tmp_path / "site" / "processes.json").mkdir()
    assert (await ended(site, "a"))["exitCode"] == 0


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while start_time(pid) is not None:
            await asyncio.sleep(0.02)


OWNER = """
import asyncio, os, sys
from pathlib import Path
from diloco_operator.sites.process import ProcessSite

async def main():
    site = ProcessSite("local", Path(sys.argv[1]), os.environ)
    await site.start()
    program = "import time; print(1, flush=True); time.sleep(600)"
    container = {"name": "c", "image": "none", "command": ["python", "-S", "-c", program]}
    metadata = {"name": "a", "labels": {}}
    await site.create_pod({"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
    while not (site.log_file("a").exists() and site.log_file("a").read_text()):
        await asyncio.sleep(0.01)
    print(site.processes()[0].pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux'; elsewhere untested")
async def test_processes_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'crds'}:{ROOT / 'operator'}"}
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        pid = int(await asyncio.to_thread(owner.stdout.readline))
        assert start_time(pid) is not None
        owner.kill()
        try:
            await gone(pid)
        finally:
            if start_time(pid) is not None:
                os.kill(pid, signal.SIGKILL)


async def test_what_an_earlier_run_left_behind_is_ended_but_not_a_stranger_with_its_pid(tmp_path: Path) -> None:
    leftover = subprocess.Popen(["sleep", "600"], start_new_session=True)
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        records = [
            {"pid": leftover.pid, "start_time": start_time(leftover.pid), "pod": "a"},
            {"pid": stranger.pid, "start_time": "another boot:1", "pod": "b"},
        ]
        (tmp_path / "processes.json").write_text(json.dumps(records))
        (tmp_path / "secrets" / "old").mkdir(parents=True)
        await ProcessSite("local", tmp_path, os.environ).start()
        assert leftover.wait(10) == -signal.SIGKILL
        assert stranger.poll() is None
        assert json.loads((tmp_path / "processes.json").read_text()) == []
        assert not (tmp_path / "secrets").exists()
    finally:
        for process in (leftover, stranger):
            process.kill()
            process.wait()
