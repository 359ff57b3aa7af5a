"""What an outer step allocates."""

from collections import deque

import pytest
import torch

from diloco_api.policy import Codec, Rounding
from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.algorithm.codec_base import CHUNK
from diloco_trainer.algorithm.fragments import Fragment, FragmentLayout, TensorSpec
from diloco_trainer.synchronizer import merge_exec
from diloco_trainer.synchronizer.merge_exec import MergeContext, shift, take_step
from diloco_trainer.synchronizer.state import FragmentState, Retained, Version
from fakes.big_tensors import BigTensors
from fakes.sync_jobs import decoupled, run_config

NUMEL = 3 * CHUNK
BYTES = 4 * NUMEL


def made() -> tuple[MergeContext, FragmentState]:
    layout = FragmentLayout((Fragment(0, (TensorSpec("weight", (NUMEL,), False, None),)),))
    run: RunConfig = run_config(decoupled({"num_fragments": 1}))
    codec, version = make_codec(Codec.INT8), Version(2, "", 0.0, 0.0, 0, 0)
    deltas = [codec.encode(torch.randn(NUMEL), Rounding.NEAREST) for _ in range(2)]
    retained = [Retained(Version(n + 1, "", 0.0, 0.0, 0, 0), delta, b"") for n, delta in enumerate(deltas)]
    state = FragmentState(
        0, torch.randn(NUMEL), torch.zeros(NUMEL), torch.randn(NUMEL), version, deque(retained, maxlen=8)
    )
    return MergeContext(run.policy, layout, 1), state


def test_deltas_are_summed_in_one_tensor() -> None:
    context, state = made()
    wanted = torch.zeros(NUMEL)
    for item in state.retained:
        wanted = wanted + context.down.decode(item.delta, NUMEL)
    with BigTensors(BYTES) as big:
        total = shift(context, state, 0)
    assert big.addresses == {total.data_ptr()}
    assert torch.equal(total, wanted)


def test_what_is_published_is_moved_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    context, state = made()
    before, delta = state.published.clone(), torch.zeros(NUMEL)
    monkeypatch.setattr(merge_exec, "outer_step", lambda *_: None)  # which has temporaries of its own
    with BigTensors(BYTES) as big:
        step = take_step(context, state, Version(3, "", 0.0, 0.0, 0, 0), delta, ())
    assert len(big.addresses) == 1, "theta - published, to be encoded"
    assert torch.equal(state.published, before + context.down.decode(step.retained.delta, NUMEL))
