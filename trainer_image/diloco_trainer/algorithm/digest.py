"""The digest by which a Learner knows that its anchor is the Synchronizer's, bit for bit."""

import hashlib
import struct

from torch import Tensor


def anchor_digest(epoch: int, fragment: int, version: int, anchor: Tensor) -> str:
    """Hex sha256 of (u64 epoch, u32 fragment, u32 version, fp32 values), little-endian; `anchor` is fp32 [numel]."""
    digest = hashlib.sha256(struct.pack("<QII", epoch, fragment, version))
    digest.update(anchor.detach().contiguous().numpy().astype("<f4", copy=False).view("u1").data)
    return digest.hexdigest()
