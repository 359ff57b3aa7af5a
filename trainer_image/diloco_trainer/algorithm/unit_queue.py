"""The units of one Learner index under a synchronous policy, in the order in which it trains them.

Its k-th own unit is k * replicas + index, whenever and by which incarnation it is taken. What a gone incarnation had
not done comes first; what other indices left behind comes last.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class UnitQueue:
    """Unit numbers still to be leased to one index."""

    returned: tuple[int, ...] = ()
    next_step: int = 0
    """Own units taken so far."""
    inherited: tuple[int, ...] = ()
    shared: bool = False
    """Its own units went to others: it has none any more."""

    def own_left(self, budget_steps: int) -> int:
        return 0 if self.shared else budget_steps - self.next_step

    def units_left(self, budget_steps: int) -> int:
        return len(self.returned) + self.own_left(budget_steps) + len(self.inherited)

    def take(self, count: int, index: int, replicas: int, budget_steps: int) -> tuple["UnitQueue", tuple[int, ...]]:
        """The next `count` units (fewer when fewer are left)."""
        old = self.returned[:count]
        own = min(count - len(old), self.own_left(budget_steps))
        others = self.inherited[: count - len(old) - own]
        new = tuple(step * replicas + index for step in range(self.next_step, self.next_step + own))
        rest = replace(
            self,
            returned=self.returned[len(old) :],
            next_step=self.next_step + own,
            inherited=self.inherited[len(others) :],
        )
        return rest, old + new + others

    def give_back(self, units: tuple[int, ...]) -> "UnitQueue":
        """Units that were leased and not done, first in line again."""
        return replace(self, returned=units + self.returned)

    def inherit(self, units: tuple[int, ...]) -> "UnitQueue":
        """Units another index left behind, last in line."""
        return replace(self, inherited=self.inherited + units)
