"""One outer step of one fragment: bodies in, a new published version out. Live operation and replay run the same code.

decode -> rebase -> merge -> outer step -> encode theta - published -> published += decode. Late bodies are rebased by
what Learners have been given since their base: delta + (published_now - published_base), the sum of the retained
deltas in between. Decoupled DiLoCo (arXiv 2604.21428, section 3), DiLoCo (2311.08105, section 2). When a version
becomes visible, and what a body must look like to get here, is not decided here.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal, cast

import torch
from torch import Tensor

from diloco_api.policy import Rounding, SyncPolicy
from diloco_trainer.algorithm import reduce, weights
from diloco_trainer.algorithm.codec import TensorCodec, make_codec
from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.algorithm.events import Key
from diloco_trainer.algorithm.fragments import Fragment, FragmentLayout
from diloco_trainer.algorithm.guard import NormHistory
from diloco_trainer.algorithm.outer import outer_step
from diloco_trainer.synchronizer.frames import Buffer
from diloco_trainer.synchronizer.records import Contributor, MergeRecord
from diloco_trainer.synchronizer.state import FragmentState, Retained, Version


class ReplayMismatch(Exception):
    """A replayed outer step gave other bytes than the one on record."""


@dataclass(frozen=True, slots=True)
class Body:
    """A whole contribution that passed the guard. `data` is uint8 [encoded bytes]; `norm` is of the decoded delta."""

    key: Key
    turn: int
    base_version: int
    stage_step: int
    token_clock: int
    c_tokens: int
    c_steps: int
    mean_lr: float
    norm: float
    checksum: bytes
    data: Tensor


@dataclass(frozen=True, slots=True)
class MergeContext:
    """What all merges of a job have in common."""

    policy: SyncPolicy
    layout: FragmentLayout
    epoch: int
    up: TensorCodec = field(init=False)
    down: TensorCodec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "up", make_codec(self.policy.encode_up))
        object.__setattr__(self, "down", make_codec(self.policy.encode_down))

    def fragment(self, index: int) -> Fragment:
        return self.layout.fragments[index]

    def contributor(self, body: Body) -> Contributor:
        """The body's entry in a merge record."""
        return Contributor(
            index=body.key.index,
            incarnation=body.key.incarnation,
            sequence=body.key.sequence,
            turn=body.turn,
            base_version=body.base_version,
            stage_step=body.stage_step,
            token_clock=body.token_clock,
            c_tokens=body.c_tokens,
            c_steps=body.c_steps,
            mean_lr=body.mean_lr,
            weight=weights.weight(self.policy.weighting, body.c_tokens, body.c_steps),
            norm=body.norm,
        )


@dataclass(frozen=True, slots=True)
class Made:
    """A version whose tensors are in place and which nobody has been told of."""

    retained: Retained
    norms: NormHistory
    theta_crc: int
    momentum_crc: int


def merge_bodies(
    context: MergeContext, state: FragmentState, contributors: Sequence[Contributor], bodies: Sequence[Tensor]
) -> tuple[Tensor, str]:
    """The merged fp32 delta [numel] and the branch taken. `bodies` are encoded; order is that of the contributors."""
    fragment = context.fragment(state.index)
    deltas = []
    for contributor, body in zip(contributors, bodies, strict=True):
        delta = context.up.decode(body, fragment.numel)
        if contributor.base_version < state.version:
            delta.add_(shift(context, state, contributor.base_version))
        deltas.append(delta)
    result = reduce.merge(context.policy.merge, fragment, deltas, [item.weight for item in contributors])
    return result.delta, result.branch


def shift(context: MergeContext, state: FragmentState, base: int) -> Tensor:
    """published_now - published_base, fp32 [numel], as the sum of the deltas in between in their order."""
    items = state.deltas(base, state.version)
    assert items is not None, "a body whose base is no longer retained is refused before"
    total = torch.zeros(context.fragment(state.index).numel, dtype=torch.float32)
    for item in items:
        context.down.accumulate(item.delta, total.numel(), total)
    return total


def take_step(
    context: MergeContext, state: FragmentState, version: Version, delta: Tensor, contributors: Sequence[Contributor]
) -> Made:
    """Outer step and downlink encoding, in place on the state's tensors; `version.digest` is filled in here.

    The fragment's visible version, retained deltas and norms stay as they are until `FragmentState.publish`.
    """
    policy = context.policy
    outer_step(state.theta, state.momentum, delta, policy.outer_lr, policy.outer_momentum)
    encoded = context.down.encode(state.theta - state.published, Rounding.NEAREST, None)
    context.down.accumulate(encoded, state.theta.numel(), state.published)
    norms = state.norms
    for item in contributors:
        norms = norms.with_merged(item.norm, item.c_steps, item.mean_lr, index=item.index, incarnation=item.incarnation)
    digest = anchor_digest(context.epoch, state.index, version.number, state.published)
    retained = Retained(replace(version, digest=digest), encoded, sha256(as_bytes(encoded)).digest())
    return Made(retained, norms, crc(state.theta), crc(state.momentum))


def redo(context: MergeContext, state: FragmentState, record: MergeRecord, blobs: Sequence[Buffer], lsn: int) -> None:
    """Redo the outer step of a record and publish it; raises ReplayMismatch when it does not give the same bytes."""
    name = f"record {lsn} (fragment {record.fragment}, version {record.version})"
    if record.version != state.version + 1:
        raise ReplayMismatch(f"{name} does not follow version {state.version}")
    tensors = [torch.frombuffer(bytearray(blob), dtype=torch.uint8) for blob in blobs]
    if record.payload == "bodies":
        delta, branch = merge_bodies(context, state, record.contributors, tensors)
        if branch != record.branch:
            raise ReplayMismatch(f"{name} was merged as {record.branch}, replay takes {branch}")
    else:
        delta = tensors[0].view(torch.float32)
    version = version_of(record)
    made = take_step(context, state, version, delta, record.contributors)
    if made.theta_crc != record.theta_crc:
        raise ReplayMismatch(f"{name}: replay gives other outer parameters")
    if made.momentum_crc != record.momentum_crc:
        raise ReplayMismatch(f"{name}: replay gives another outer momentum")
    if made.retained.version.digest != record.digest:
        raise ReplayMismatch(f"{name}: replay gives another published anchor")
    state.publish(made.retained, made.norms)


def version_of(record: MergeRecord) -> Version:
    """The version a merge record made."""
    return Version(
        record.version, record.digest, record.stamp, record.tokens_per_second, record.stage_step, record.turn
    )


def smaller_payload(bodies: Sequence[Tensor], delta: Tensor) -> tuple[Literal["bodies", "delta"], list[Buffer]]:
    """What a merge record carries: the accepted bodies, or the merged delta when that is smaller."""
    if sum(body.numel() for body in bodies) <= 4 * delta.numel():
        return "bodies", [as_bytes(body) for body in bodies]
    return "delta", [as_bytes(delta)]


def as_bytes(tensor: Tensor) -> memoryview:
    """The tensor's own memory as bytes."""
    values = cast(bytes, tensor.contiguous().numpy())  # an array is a buffer, which its type does not say
    return memoryview(values).cast("B")


def crc(tensor: Tensor) -> int:
    """crc32 of the tensor's bytes."""
    return zlib.crc32(as_bytes(tensor))
