"""The parameters a job ends with are on disk, or the disk is to blame by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diloco_trainer.algorithm.fragments import gather
from diloco_trainer.synchronizer.finale import export
from fakes.sync_jobs import run_config, synchronous, toy_layout
from fakes.toy_task import ToyTask


def test_anchors_become_named_tensors_and_their_loss_is_told(tmp_path: Path) -> None:
    task, layout = ToyTask(), toy_layout(run_config(synchronous()))
    anchors = [torch.ones(fragment.numel) for fragment in layout.fragments]
    assert export(tmp_path / "outer.safetensors", task, layout, anchors, {"job_name": "toy"}) == 0.0
    named = load_file(tmp_path / "outer.safetensors")
    for fragment, anchor in zip(layout.fragments, anchors, strict=True):
        assert torch.equal(gather(fragment, named), anchor)
    assert [path.name for path in tmp_path.iterdir()] == ["outer.safetensors"]


def test_an_export_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    task, layout = ToyTask(), toy_layout(run_config(synchronous()))
    anchors = [torch.ones(fragment.numel) for fragment in layout.fragments]
    with pytest.raises(OSError) as caught:
        export(tmp_path / "no such folder" / "outer.safetensors", task, layout, anchors, {})
    assert caught.value.filename == str(tmp_path / "no such folder" / "outer.tmp")
