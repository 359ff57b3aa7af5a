"""Which sequences of the data each Learner trains on: leases, their return, and the budget.

The budget is a pool of sequences: leases never exceed it, the unsettled work of a Learner that is gone returns to its
front, and what the job discards is filled up again. Positions are those of a pass's order, which the Task makes.

Free (Decoupled): whoever asks gets the next sequences. Fixed (synchronous presets): a unit is one batch, unit u belongs
to index u mod `replicas`, so that an index trains the same units in the same order whenever it asks; the budget is a
whole number of steps of all. Torch-free; a pool is a value, and every method that changes one returns the next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from diloco_trainer.algorithm.spans import Span, WorkRange, by_pass, cut, joined, length
from diloco_trainer.algorithm.unit_queue import UnitQueue

TOKEN_BUDGET_REACHED = "TokenBudgetReached"
DATA_EXHAUSTED = "DataExhausted"


@dataclass(frozen=True)
class PoolConfig:
    """What never changes about a pool."""

    num_sequences: int
    """Sequences in one pass over the data."""
    sequence_tokens: int
    budget_tokens: int
    max_passes: int | None
    """None: as many as the budget needs."""
    synchronous: bool
    replicas: int
    batch_sequences: int
    """Sequences of one inner step of one Learner: the unit of a fixed pool."""

    @property
    def budget_sequences(self) -> int:
        return -(-self.budget_tokens // self.sequence_tokens)

    @property
    def data_sequences(self) -> int | None:
        """Sequences of all passes allowed; None without a limit."""
        return None if self.max_passes is None else self.max_passes * self.num_sequences

    @property
    def step_sequences(self) -> int:
        """Sequences of one step of all replicas."""
        return self.replicas * self.batch_sequences

    @property
    def budget_steps(self) -> int:
        """Steps of a fixed pool, each by all replicas, as far as the data reach."""
        return self.limited_steps(-(-self.budget_sequences // self.step_sequences))

    def limited_steps(self, steps: int) -> int:
        return steps if self.data_sequences is None else min(steps, self.data_sequences // self.step_sequences)


@dataclass(frozen=True)
class Holding:
    """What one incarnation was leased and may still have to do, in the order of doing it."""

    index: int
    incarnation: int
    base_sequences: int
    """Its token clock, in sequences, where the first span begins."""
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class WorkPool:
    """See `new_pool`. `leased` and `returned` count sequences over the life of the job."""

    config: PoolConfig
    budget_sequences: int
    """With everything filled up so far."""
    leased: int = 0
    returned: int = 0
    """Given back by Learners that are gone: each is leased a second time."""
    cursor: int = 0
    """Free pool: the first position never leased."""
    front: tuple[Span, ...] = ()
    """Free pool: returned spans."""
    budget_steps: int = 0
    queues: tuple[UnitQueue, ...] = ()
    """Fixed pool: one per index."""
    holdings: tuple[Holding, ...] = ()
    spare_tokens: float = 0.0
    """Discarded tokens that do not make a whole sequence (fixed pool: step) yet."""

    def grant(
        self,
        index: int,
        incarnation: int,
        remaining: int,
        batch: int,
        want: int,
        live: int,
        max_ahead_sequences: int,
        start_clock_tokens: int = 0,
    ) -> tuple["WorkPool", tuple[WorkRange, ...], bool]:
        """Top up an incarnation that has `remaining` sequences left; (pool, ranges, nothing left for it now).

        It shall hold min(max_ahead_sequences, half of its share of a free pool), at least a `batch`; no more than
        `want` sequences are added. `start_clock_tokens` matters on the first grant since its admission only: its token
        clock then (not 0 for one admitted anew).
        """
        if min(index, remaining, want, max_ahead_sequences) < 0 or batch < 1 or live < 1:
            raise ValueError("a lease request has negative counts, no batch, or no live Learner")
        if self.config.synchronous:
            pool, spans = self._take_fixed(index, max(batch, max_ahead_sequences) - remaining, want)
        else:
            target = max(batch, min(max_ahead_sequences, self.available // (2 * live)))
            pool, spans = self._take_free(min(target - remaining, want))
        if spans:
            held = self._holding(index, incarnation)
            if held is None:
                held = Holding(index, incarnation, start_clock_tokens // self.config.sequence_tokens)
            held = replace(held, spans=joined(held.spans + spans))
            pool = replace(pool._without(index, incarnation), leased=self.leased + length(spans))
            pool = replace(pool, holdings=tuple(sorted((*pool.holdings, held), key=_holder)))
        return pool, by_pass(spans, self.config.num_sequences), not pool.has_work_for(index)

    def revoke(self, index: int, incarnation: int, frontier_tokens: int) -> tuple["WorkPool", tuple[WorkRange, ...]]:
        """Take back what an incarnation was leased beyond its frontier (token clock); (pool, ranges given back).

        A fixed pool gives it back in whole units, to the newest incarnation of the same index. Repeating it changes
        nothing.
        """
        held = self._holding(index, incarnation)
        if held is None:
            return self, ()
        spans = self._undone(held, frontier_tokens).spans
        pool = replace(self._without(index, incarnation), returned=self.returned + length(spans))
        if self.config.synchronous:
            units = tuple(unit for start, stop in spans for unit in self._units(start, stop))
            pool = pool._with_queue(index, self.queues[index].give_back(units))
        else:
            pool = replace(pool, front=joined(spans + self.front))
        return pool, by_pass(spans, self.config.num_sequences)

    def settled(self, index: int, incarnation: int, frontier_tokens: int) -> "WorkPool":
        """Forget what an incarnation did up to its frontier (token clock): it will never be leased again."""
        held = self._holding(index, incarnation)
        if held is None:
            return self
        holdings = (*self._without(index, incarnation).holdings, self._undone(held, frontier_tokens))
        return replace(self, holdings=tuple(sorted(holdings, key=_holder)))

    def refill(self, tokens: float) -> "WorkPool":
        """The job has discarded so many tokens: lease as many more, in whole sequences (fixed pool: steps of all)."""
        if tokens < 0:
            raise ValueError(f"cannot refill {tokens} tokens")
        spare = self.spare_tokens + tokens
        if not self.config.synchronous:
            count = int(spare // self.config.sequence_tokens)
            spare -= count * self.config.sequence_tokens
            return replace(self, budget_sequences=self.budget_sequences + count, spare_tokens=spare)
        active = sum(not queue.shared for queue in self.queues)
        step_tokens = active * self.config.batch_sequences * self.config.sequence_tokens
        steps = int(spare // step_tokens) if active else 0
        more = self.config.limited_steps(self.budget_steps + steps) - self.budget_steps
        return replace(
            self,
            budget_steps=self.budget_steps + more,
            budget_sequences=self.budget_sequences + more * active * self.config.batch_sequences,
            spare_tokens=spare - steps * step_tokens,
        )

    def share(self, index: int, live: Iterable[int]) -> "WorkPool":
        """Fixed pool: an index will not come back; unit u of what it left goes to the (u mod count)-th live index."""
        takers = sorted(set(live) - {index})
        if not takers or self._holds(index):
            raise ValueError(f"the units of index {index} need live takers, and its own lease revoked before")
        queue, units = self.queues[index].take(
            self.queues[index].units_left(self.budget_steps), index, self.config.replicas, self.budget_steps
        )
        pool = self._with_queue(index, replace(queue, shared=True))
        for place, taker in enumerate(takers):
            part = tuple(unit for unit in sorted(units) if unit % len(takers) == place)
            pool = pool._with_queue(taker, pool.queues[taker].inherit(part))
        return pool

    @property
    def available(self) -> int:
        """Sequences that can be leased now, to anyone."""
        if self.config.synchronous:
            return self.config.batch_sequences * sum(queue.units_left(self.budget_steps) for queue in self.queues)
        left = self.budget_sequences - (self.leased - self.returned)
        return min(left, self._data_left())

    @property
    def has_work(self) -> bool:
        return self.available > 0

    def has_work_for(self, index: int) -> bool:
        """Whether this index could be leased something now."""
        if self.config.synchronous:
            return self.queues[index].units_left(self.budget_steps) > 0
        return self.has_work

    @property
    def exhausted_reason(self) -> str:
        """Why the pool is, or will be, empty."""
        if self.config.synchronous:
            wanted = -(-self.config.budget_sequences // self.config.step_sequences)
            return DATA_EXHAUSTED if self.budget_steps < wanted else TOKEN_BUDGET_REACHED
        data = self.config.data_sequences
        return TOKEN_BUDGET_REACHED if data is None or self.budget_sequences <= data else DATA_EXHAUSTED

    def clock_limit_tokens(self, index: int, incarnation: int) -> int:
        """The most an incarnation's token clock can be within its lease; 0 when it never had one."""
        held = self._holding(index, incarnation)
        return 0 if held is None else (held.base_sequences + length(held.spans)) * self.config.sequence_tokens

    def to_json(self) -> dict[str, Any]:
        """Plain data for a snapshot; `from_json` gives the same pool back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WorkPool":
        queues = tuple(
            UnitQueue(tuple(entry["returned"]), entry["next_step"], tuple(entry["inherited"]), entry["shared"])
            for entry in data["queues"]
        )
        holdings = tuple(Holding(**{**entry, "spans": _spans(entry["spans"])}) for entry in data["holdings"])
        parts = {"config": PoolConfig(**data["config"]), "queues": queues, "holdings": holdings}
        return cls(**{**data, **parts, "front": _spans(data["front"])})

    def _data_left(self) -> int:
        """Free pool: sequences that exist and are not leased."""
        data = self.config.data_sequences
        fresh = self.budget_sequences if data is None else data - self.cursor
        return length(self.front) + fresh

    def _take_free(self, count: int) -> tuple["WorkPool", tuple[Span, ...]]:
        """The next `count` sequences, returned ones first."""
        count = max(0, min(count, self.available))
        old, front = cut(self.front, count)
        fresh = count - length(old)
        spans = (*old, (self.cursor, self.cursor + fresh)) if fresh else old
        return replace(self, front=front, cursor=self.cursor + fresh), spans

    def _take_fixed(self, index: int, missing: int, want: int) -> tuple["WorkPool", tuple[Span, ...]]:
        """The next units of an index that make up `missing` sequences, as far as it wants them."""
        if index >= self.config.replicas:
            raise ValueError(f"index {index} has no units: replicas is {self.config.replicas}")
        batch = self.config.batch_sequences
        count = max(0, min(-(-missing // batch), -(-want // batch)))
        queue, units = self.queues[index].take(count, index, self.config.replicas, self.budget_steps)
        return self._with_queue(index, queue), tuple((unit * batch, (unit + 1) * batch) for unit in units)

    def _undone(self, held: Holding, frontier_tokens: int) -> Holding:
        """A holding without what lies before the frontier."""
        done = max(0, frontier_tokens // self.config.sequence_tokens - held.base_sequences)
        if self.config.synchronous:
            done -= done % self.config.batch_sequences
        head, rest = cut(held.spans, done)
        return replace(held, base_sequences=held.base_sequences + length(head), spans=rest)

    def _units(self, start: int, stop: int) -> Sequence[int]:
        return range(start // self.config.batch_sequences, stop // self.config.batch_sequences)

    def _holding(self, index: int, incarnation: int) -> Holding | None:
        return next((held for held in self.holdings if _holder(held) == (index, incarnation)), None)

    def _holds(self, index: int) -> bool:
        return any(held.index == index and held.spans for held in self.holdings)

    def _without(self, index: int, incarnation: int) -> "WorkPool":
        return replace(self, holdings=tuple(held for held in self.holdings if _holder(held) != (index, incarnation)))

    def _with_queue(self, index: int, queue: UnitQueue) -> "WorkPool":
        return replace(self, queues=(*self.queues[:index], queue, *self.queues[index + 1 :]))


def new_pool(config: PoolConfig) -> WorkPool:
    """The pool of a job that starts. ValueError when the data make no sequence, or no step of a fixed pool."""
    if config.num_sequences < 1:
        raise ValueError("the data make no whole sequence")
    if not config.synchronous:
        return WorkPool(config, config.budget_sequences)
    if config.budget_steps < 1:
        raise ValueError(
            f"the data make {config.data_sequences} sequences in {config.max_passes} passes; "
            f"one step of all {config.replicas} Learners takes {config.step_sequences}"
        )
    steps = config.budget_steps
    return WorkPool(config, steps * config.step_sequences, budget_steps=steps, queues=(UnitQueue(),) * config.replicas)


def _holder(held: Holding) -> tuple[int, int]:
    return held.index, held.incarnation


def _spans(data: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    return tuple((start, stop) for start, stop in data)
