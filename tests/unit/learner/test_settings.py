"""What a Learner process is given."""

from pathlib import Path

import pytest
import torch

from diloco_api import names
from diloco_api.errors import SpecError
from diloco_trainer.learner.device import DeviceUnusable, choose_device
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


def break_gpu(monkeypatch: pytest.MonkeyPatch, error: Exception, cuda: str | None) -> None:
    def ones(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setattr(torch.version, "cuda", cuda)


@pytest.mark.parametrize("sees_one", [False, True])
def test_a_gpu_asked_for_by_name_is_never_replaced_by_the_cpu(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, sees_one: bool
) -> None:
    break_gpu(monkeypatch, RuntimeError("no kernel image is available"), "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees_one)
    with pytest.raises(DeviceUnusable):
        read_settings({**environment, names.ENV_DEVICE: "cuda"})


def test_nothing_asked_for_is_the_gpu_torch_sees_or_the_cpu(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_gpu(monkeypatch, RuntimeError("no kernel image is available"), "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert read_settings({**environment, names.ENV_DEVICE: ""}).device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(DeviceUnusable):
        read_settings({**environment, names.ENV_DEVICE: ""})


@pytest.mark.parametrize(
    ("error", "cuda", "driver", "words"),
    [
        (
            RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update it."),
            "12.8",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.1\nGCC version: 12",
            "cuda cannot be used: The NVIDIA driver on your system is too old (found version 11040).; "
            "driver: NVIDIA UNIX x86_64 Kernel Module  470.1; torch {torch}, built for CUDA 12.8",
        ),
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            None,
            None,
            "cuda cannot be used: Torch not compiled with CUDA enabled; "
            "no NVIDIA driver here ({file} cannot be read); torch {torch}, built without CUDA",
        ),
    ],
    ids=["an old driver", "a build for the CPU"],
)
def test_a_gpu_that_cannot_be_used_is_told_with_driver_and_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, cuda: str | None, driver: str | None, words: str
) -> None:
    break_gpu(monkeypatch, error, cuda)
    file = tmp_path / "version"
    if driver is not None:
        file.write_text(driver)
    with pytest.raises(DeviceUnusable) as caught:
        choose_device("cuda", file)
    assert str(caught.value) == words.format(torch=torch.__version__, file=file)
