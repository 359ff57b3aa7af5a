"""The receiving half of a Learner: from what is pulled to anchors, bit for bit those of the Synchronizer.

An anchor is the running sum of decoded deltas, or the raw values where those are no longer retained. Decoding is fp32
on the CPU, then one add. Every anchor is compared with the digest the Synchronizer took; a mismatch is reported, not
repaired: the caller pulls raw. No I/O.
"""

import sys

import torch
from torch import Tensor

from diloco_api.sync_policy import Codec
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.wire.errors import SynchronizerFault
from diloco_trainer.wire.service import PullItem


class DigestMismatch(Exception):
    """The anchor that came out is not the Synchronizer's."""


class Downlink:
    """Turns pulled items into anchors of one epoch."""

    def __init__(self, codec: Codec) -> None:
        self._codec = make_codec(codec)
        self.epoch = 0

    def apply(self, anchor: Tensor | None, item: PullItem, numel: int) -> Tensor:
        """The anchor of `item.version`, fp32 [numel]; `anchor` (of the version before) is left as it is."""
        data = torch.frombuffer(item.payload, dtype=torch.uint8)
        if item.raw:
            result = _raw(data, numel, item)
        elif anchor is None or item.codec != self._codec.kind.value:
            raise SynchronizerFault(f"pull of fragment {item.fragment}: a delta in {item.codec!r} is of no use here")
        else:
            result = self._codec.accumulate(data, numel, anchor.clone())
        if anchor_digest(self.epoch, item.fragment, item.version, result) != item.digest:
            raise DigestMismatch(f"fragment {item.fragment} version {item.version}: the anchor's digest is wrong")
        return result


def _raw(data: Tensor, numel: int, item: PullItem) -> Tensor:
    if data.numel() != 4 * numel:
        raise SynchronizerFault(f"pull of fragment {item.fragment}: {data.numel()} bytes for {numel} raw values")
    values = data.clone().view(torch.float32)
    return values if sys.byteorder == "little" else torch.from_numpy(values.numpy().byteswap())
