"""What the Synchronizer holds of one fragment: parameters, outer momentum, what Learners have, recent deltas.

theta is the outer parameters, `published` what every Learner holds of them (the sum of the decoded published deltas);
both and the momentum are flat fp32 [numel] on the CPU. A version is visible from `publish` on, not before.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.algorithm.fragments import FragmentLayout, gather
from diloco_trainer.algorithm.guard import NormHistory


@dataclass(frozen=True, slots=True)
class Version:
    """What a Learner is told about one published version."""

    number: int
    digest: str
    """Of the anchor of this version."""
    stamp: float = 0.0
    """Share of the budget trained when it was made."""
    tokens_per_second: float = 0.0
    """Of the whole job at that time."""
    stage_step: int = 0
    """Newest job step among its contributions."""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Retained:
    """A published delta as it travels: uint8 [encoded bytes]; added to the version before it makes `version`."""

    version: Version
    delta: Tensor
    checksum: bytes
    """sha256 of the delta."""


@dataclass(slots=True)
class FragmentState:
    """One fragment. The tensors belong to whoever merges at the moment, all else to the engine thread."""

    index: int
    theta: Tensor
    momentum: Tensor
    published: Tensor
    newest: Version
    retained: deque[Retained]
    """The newest deltas, oldest first; at most `policy.retained_versions`."""
    norms: NormHistory = field(default_factory=NormHistory)

    @property
    def version(self) -> int:
        """Number of the newest visible version."""
        return self.newest.number

    @property
    def num_bytes(self) -> int:
        """Size of the tensors and the retained deltas."""
        return 3 * 4 * self.theta.numel() + sum(item.delta.numel() for item in self.retained)

    def publish(self, made: Retained, norms: NormHistory) -> None:
        """Make a version visible whose tensors are already in place."""
        assert made.version.number == self.version + 1, "versions are published one by one"
        self.retained.append(made)
        self.newest = made.version
        self.norms = norms

    def deltas(self, have: int, want: int) -> list[Retained] | None:
        """The deltas that lead from version `have` to `want`, in order; None when the first is no longer retained."""
        chosen = [item for item in self.retained if have < item.version.number <= want]
        return chosen if len(chosen) == want - have else None


def first_state(layout: FragmentLayout, params: Mapping[str, Tensor], epoch: int, retained: int) -> list[FragmentState]:
    """Version 0 of every fragment: parameters as built by the task, no momentum, Learners hold exactly these."""
    states = []
    for fragment in layout.fragments:
        theta = gather(fragment, params)
        digest = anchor_digest(epoch, fragment.index, 0, theta)
        states.append(
            FragmentState(
                index=fragment.index,
                theta=theta,
                momentum=torch.zeros_like(theta),
                published=theta.clone(),
                newest=Version(0, digest),
                retained=deque(maxlen=retained),
            )
        )
    return states
