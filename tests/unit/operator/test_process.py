"""The operator's process: what it is told, what kopf is told, and how healthy it says it is."""

import asyncio
import warnings
from pathlib import Path

import aiohttp
import pytest

from diloco_operator.handlers import connection_info
from diloco_operator.health import UNSERVED_LIMIT_SECONDS, WATCH_LIMIT_SECONDS, Health, HealthServer
from diloco_operator.main import for_ever
from diloco_operator.ports import free_ports
from diloco_operator.settings import kopf_settings, read_settings
from diloco_operator.sites.kubeconfig import ClusterCredentials, parse_kubeconfig
from fakes.kubeconfigs import kubeconfig


def test_flags_outweigh_the_environment_and_that_outweighs_defaults() -> None:
    environment = {"DILOCO_OPERATOR_IMAGE": "from-env:1", "DILOCO_OPERATOR_HEALTH_PORT": "9001", "POD_NAME": "op-0"}
    settings = read_settings(["--image", "from-flag:1", "--namespace", "b", "--namespace=a"], environment)
    assert (settings.image, settings.health_port, settings.metrics_port) == ("from-flag:1", 9001, 8080)
    assert settings.namespaces == ("a", "b")
    assert settings.identity.startswith("op-0-")
    assert read_settings([], environment).namespaces == ()


def test_the_first_process_of_a_container_comes_after_all_earlier_ones_of_it() -> None:
    environment = {"POD_NAME": "op-x", "POD_UID": "u1"}

    def settings(process_id: int, environment: dict[str, str]) -> tuple[str, str]:
        found = read_settings(["--image=x"], environment, process_id)
        return found.identity, found.predecessors

    identity, predecessors = settings(1, environment)
    assert predecessors == "op-x_u1-"
    assert identity.startswith(predecessors)
    assert settings(1, environment)[0] != identity, "every process has a name of its own"
    by_hand, none = settings(17, environment)
    assert by_hand.startswith(predecessors)
    assert none == "", "it may be beside the one that lives"
    assert settings(1, {"POD_NAME": "op-x"})[1] == "", "pods of one name may live at once, on a lost node"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "--image is required"), (["--image=x", "--health-port=high"], "are numbers")],
    ids=["no image", "not a port"],
)
def test_a_wrong_start_says_what_helps(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read_settings(arguments, {})
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_kopf_can_neither_write_nor_wait_for_peers_nor_hang_for_ever() -> None:
    settings = kopf_settings()
    assert settings.peering.standalone
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.watching.client_timeout == 600
    assert settings.networking.request_timeout == 30


def test_kopf_sends_the_token_of_the_credentials_and_trusts_their_ca_alone(tmp_path: Path) -> None:
    credentials = parse_kubeconfig(kubeconfig("https://hub.example:6443"))
    info = connection_info(credentials)
    assert info.as_http_headers() == {"Authorization": "Bearer s3cret"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(info.as_ssl_context().get_ca_certs()) == 1
    file = tmp_path / "token"
    file.write_text("first\n")
    projected = ClusterCredentials("https://hub.example:6443", credentials.ca_pem, token_file=str(file))
    assert connection_info(projected).token == "first"
    file.write_text("second\n")
    assert connection_info(projected).token == "second"


@pytest.mark.parametrize(
    ("unserved", "behind", "held", "active", "words"),
    [
        ([0.0, 3.0], 0.0, True, True, ""),
        ([UNSERVED_LIMIT_SECONDS + 1], 0.0, True, True, "waits for its pass"),
        ([], WATCH_LIMIT_SECONDS + 1, True, True, "behind"),
        ([], 0.0, False, True, "lease"),
        ([UNSERVED_LIMIT_SECONDS + 1], 0.0, False, False, ""),
    ],
    ids=["busy", "a pass hangs", "the watch is dead", "the lease ran out", "waiting for the lease"],
)
async def test_health_tells_of_real_progress(
    tmp_path: Path, unserved: list[float], behind: float, held: bool, active: bool, words: str
) -> None:
    health = Health()
    health.active, health.lease_held = active, lambda: held
    health.unserved, health.watch_behind = lambda: unserved, lambda: behind
    ports = free_ports(tmp_path, {})
    server = HealthServer(health, ports.admin, ports.metrics, "127.0.0.1")
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{ports.admin}/healthz") as answer:
                assert (answer.status == 200) == (words == "")
                assert words in await answer.text()
            async with session.get(f"http://127.0.0.1:{ports.metrics}/metrics") as answer:
                text = await answer.text()
        assert f"diloco_queue_depth {sum(age > 0 for age in unserved)}.0" in text
        assert f"diloco_lease_held {float(active and held)}" in text
        assert f"diloco_watch_behind_seconds {behind}" in text
    finally:
        await server.close()


async def test_what_must_not_end_is_begun_anew_and_told_when_it_breaks(caplog: pytest.LogCaptureFixture) -> None:
    again = asyncio.Event()
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise KeyError("metadata")
        again.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(for_ever("list of jobs", work, retry_seconds=0.0))
    await asyncio.wait_for(again.wait(), 5)
    task.cancel()
    assert "list of jobs: broke" in caplog.text
