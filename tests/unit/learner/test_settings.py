"""What a Learner process is given."""

from pathlib import Path

import pytest
import torch

from diloco_api import names
from diloco_api.errors import SpecError
from diloco_trainer.learner.settings import read_settings


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / names.FILE_TOKEN).write_text("secret\n")
    return {
        names.ENV_LEARNER_INDEX: "2",
        names.ENV_INCARNATION: "5",
        names.ENV_SITE: "here",
        names.ENV_CONFIG_DIR: "/config",
        names.ENV_ADDRESS_DIR: "/address",
        names.ENV_CREDENTIALS_DIR: str(tmp_path),
        names.ENV_SCRATCH_DIR: "/scratch",
        names.ENV_DEVICE: "cpu",
    }


def test_variables_and_folders_are_read(environment: dict[str, str]) -> None:
    settings = read_settings(environment)
    assert (settings.index, settings.incarnation, settings.site, settings.token) == (2, 5, "here", "secret")
    assert settings.run_config == Path("/config/run.json")
    assert settings.addresses == Path("/address/addresses")
    assert (settings.device, settings.threads) == (torch.device("cpu"), 1)
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({names.ENV_LEARNER_INDEX: None}, "DILOCO_LEARNER_INDEX: not set"),
        ({names.ENV_INCARNATION: "x"}, "DILOCO_INCARNATION: 'x' is not a whole number"),
        ({names.ENV_CONFIG_DIR: ""}, "DILOCO_CONFIG_DIR: not set"),
        ({names.ENV_DEVICE: "tpu"}, "DILOCO_DEVICE: 'tpu' is neither cpu nor cuda"),
        ({names.ENV_THREADS: "0"}, "DILOCO_THREADS: '0' is not a whole number of at least 1"),
        ({names.ENV_CREDENTIALS_DIR: "/nowhere"}, "/nowhere/token: cannot be read"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    environment: dict[str, str], change: dict[str, str | None], problem: str
) -> None:
    changed = {**environment, **change}
    with pytest.raises(SpecError, match=problem):
        read_settings({name: value for name, value in changed.items() if value is not None})


def test_a_gpu_asked_for_by_name_is_never_replaced_by_the_cpu(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpecError, match="DILOCO_DEVICE: cuda was asked for"):
        read_settings({**environment, names.ENV_DEVICE: "cuda"})
    assert read_settings({**environment, names.ENV_DEVICE: ""}).device.type == "cpu"
