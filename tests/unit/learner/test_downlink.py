"""Anchors from what is pulled."""

import pytest
import torch

from diloco_api.policy import Codec, Rounding
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.algorithm.codec_base import CHUNK
from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.learner.downlink import DigestMismatch, Downlink
from diloco_trainer.wire.chunks import checksum
from diloco_trainer.wire.errors import SynchronizerFault
from diloco_trainer.wire.service import PullItem
from fakes.big_tensors import BigTensors

EPOCH = 3


def item(payload: bytearray, anchor: torch.Tensor, *, raw: bool, codec: str, version: int = 1) -> PullItem:
    digest = anchor_digest(EPOCH, 0, version, anchor)
    return PullItem(0, version, raw, codec, payload, checksum(payload), digest, 0.5, 100.0, 24)


def downlink(codec: Codec = Codec.INT8) -> Downlink:
    made = Downlink(codec)
    made.epoch = EPOCH
    return made


def test_deltas_are_added_in_fp32_one_after_the_other() -> None:
    codec, anchor = make_codec(Codec.INT8), torch.randn(700)
    before, down = anchor.clone(), downlink()
    for version in (1, 2):
        data = codec.encode(torch.randn(700), Rounding.NEAREST)
        wanted = anchor + codec.decode(data, 700)
        received = item(bytearray(data.numpy()), wanted, raw=False, codec="int8", version=version)
        result = down.apply(anchor, received, 700)
        assert torch.equal(result, wanted)
        anchor = result
    assert not torch.equal(anchor, before)


def test_a_delta_is_applied_without_a_second_tensor_of_its_size() -> None:
    codec, anchor, numel = make_codec(Codec.INT8), torch.randn(3 * CHUNK), 3 * CHUNK
    data = codec.encode(torch.randn(numel), Rounding.NEAREST)
    received = item(bytearray(data.numpy()), anchor + codec.decode(data, numel), raw=False, codec="int8")
    with BigTensors(4 * numel) as big:
        result = downlink().apply(anchor, received, numel)
    assert big.addresses == {result.data_ptr()}


def test_the_anchor_itself_is_taken_as_it_is() -> None:
    anchor = torch.randn(10)
    received = item(bytearray(anchor.numpy()), anchor, raw=True, codec="fp32")
    assert torch.equal(downlink().apply(None, received, 10), anchor)


def test_a_wrong_digest_is_noticed() -> None:
    anchor = torch.randn(10)
    received = item(bytearray(anchor.numpy()), anchor + 1, raw=True, codec="fp32")
    with pytest.raises(DigestMismatch, match="fragment 0 version 1"):
        downlink().apply(None, received, 10)


def test_an_anchor_of_another_epoch_is_noticed() -> None:
    anchor = torch.randn(10)
    other = downlink()
    other.epoch = EPOCH + 1
    with pytest.raises(DigestMismatch):
        other.apply(None, item(bytearray(anchor.numpy()), anchor, raw=True, codec="fp32"), 10)


@pytest.mark.parametrize(("raw", "codec"), [(True, "fp32"), (False, "int4")], ids=["wrong size", "wrong codec"])
def test_what_no_synchronizer_sends_is_a_fault(raw: bool, codec: str) -> None:
    anchor = torch.randn(10)
    with pytest.raises(SynchronizerFault):
        downlink().apply(anchor, item(bytearray(12), anchor, raw=raw, codec=codec), 10)
