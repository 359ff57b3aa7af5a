"""The end of an incarnation that nobody wished for, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """An incarnation of a Learner was lost, or failed."""

    index: int
    site: str
    reason: str
    counted: bool
    """Against the restart budget."""
