"""The state of membership and rounds as values, and the mutators that live steps and log replay share.

`RoundState` is what `sync_round.step` takes and returns. Nothing here knows tensors, files or clocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from diloco_api.run_config import RunConfig
from diloco_api.sync_policy import AdaptiveGrace, FixedGrace, LateContributions
from diloco_trainer.algorithm.events import GoneReason, Key
from diloco_trainer.algorithm.schedule import Pace, turn_interval

Who = tuple[int, int]  # (index, incarnation)
MEMORY = 16  # samples kept of round and merge times


@dataclass(frozen=True, slots=True)
class RoundConfig:
    """What the policy and the deadlines say about rounds. Times in seconds."""

    num_fragments: int
    sync_every: int
    sync_delay: int
    synchronous: bool
    min_quorum: int
    replicas: int
    min_learners: int
    grace_gamma: float | None  # adaptive grace
    grace_seconds: float | None  # fixed grace; both None: wait for everyone until the deadline
    drop_late: bool
    retained_versions: int
    dead_after: float
    stall_timeout: float
    scheduling_timeout: float
    deadline_floor: float
    deadline_factor: float
    answer_patience: float
    reunion: float  # longest wait for the Learners of before, after a restart


def round_config(run: RunConfig) -> RoundConfig:
    """The part of a run config that rounds need."""
    policy, times = run.policy, run.timeouts
    return RoundConfig(
        num_fragments=policy.num_fragments,
        sync_every=policy.sync_every,
        sync_delay=policy.sync_delay,
        synchronous=policy.synchronous,
        min_quorum=policy.min_quorum,
        replicas=run.replicas,
        min_learners=run.min_learners,
        grace_gamma=policy.grace.gamma if isinstance(policy.grace, AdaptiveGrace) else None,
        grace_seconds=policy.grace.seconds if isinstance(policy.grace, FixedGrace) else None,
        drop_late=policy.late == LateContributions.DROP,
        retained_versions=policy.retained_versions,
        dead_after=times.dead_after_seconds,
        stall_timeout=times.stall_timeout_seconds,
        scheduling_timeout=times.scheduling_timeout_seconds,
        deadline_floor=times.round_deadline_floor_seconds,
        deadline_factor=times.round_deadline_factor,
        answer_patience=times.answer_patience_seconds,
        reunion=2 * times.heartbeat_seconds,
    )


class Stage(StrEnum):
    """Life of a job as rounds see it."""

    WAITING = "Waiting"
    RUNNING = "Running"
    CLOSING = "Closing"
    FINISHED = "Finished"


@dataclass(frozen=True, slots=True)
class Member:
    """One admitted incarnation that is not gone."""

    index: int
    incarnation: int
    last_heard: float
    alive: bool = True
    step_seconds: float | None = None
    drained: bool = False
    going: GoneReason | None = None  # gone as soon as its accepted bodies have settled
    restored: bool = False  # known from the log, has not listened to notices since

    @property
    def who(self) -> Who:
        return (self.index, self.incarnation)

    @property
    def live(self) -> bool:
        """Counts for quorum, medians and Expected."""
        return self.alive and self.going is None


@dataclass(frozen=True, slots=True)
class Answer:
    """A body waiting to be merged. `counted` is False for one that came after its round."""

    key: Key
    turn: int
    base_version: int
    counted: bool


@dataclass(frozen=True, slots=True)
class FragmentRound:
    """One fragment: its version, the round that is open, and the bodies waiting for it."""

    version: int = 0
    last_turn: int = 0  # turn of the last merge begun
    open_turn: int | None = None
    closing: bool = False
    closed_for_good: bool = False
    opened_at: float = 0.0
    first_at: float | None = None  # first counted body
    quorum_at: float | None = None
    answers: tuple[Answer, ...] = ()
    nothings: frozenset[Who] = frozenset()
    expected: frozenset[Who] = frozenset()
    last_expected: frozenset[Who] = frozenset()
    merging: bool = False
    round_seconds: tuple[float, ...] = ()
    merge_seconds: tuple[float, ...] = ()

    @property
    def answered(self) -> frozenset[Who]:
        """Learners that answered the open round, with a body or with nothing."""
        return self.nothings | {(answer.key.index, answer.key.incarnation) for answer in self.answers}

    @property
    def num_counted(self) -> int:
        return sum(answer.counted for answer in self.answers)


@dataclass(slots=True)
class RoundState:
    """Everything `step` decides from. Copied by `step`, never changed in place by anyone else."""

    config: RoundConfig
    began_at: float
    stage: Stage = Stage.WAITING
    members: dict[Who, Member] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)  # index -> newest incarnation ever admitted
    rounds: list[FragmentRound] = field(default_factory=list)
    next_turn: int = 1
    next_turn_at: float | None = None
    pace: Pace = Pace()
    voids: int = 0
    has_work: bool = True
    exhausted_reason: str = ""
    draining: bool = False

    def copy(self) -> "RoundState":
        """An independent copy; members and rounds are immutable values."""
        return replace(self, members=dict(self.members), newest=dict(self.newest), rounds=list(self.rounds))

    def live(self) -> list[Member]:
        """Live members in index order."""
        return sorted((m for m in self.members.values() if m.live), key=lambda m: m.who)

    def live_whos(self) -> frozenset[Who]:
        return frozenset(member.who for member in self.live())

    def median_step_seconds(self) -> float | None:
        """Median inner step time of the live Learners that are training; None before one is known."""
        times = [m.step_seconds for m in self.live() if m.step_seconds and not m.drained]
        return median(times) if times else None

    def interval_seconds(self) -> float | None:
        """Present pace of turns; None for synchronous policies and before a step time is known."""
        step_seconds = self.median_step_seconds()
        if self.config.synchronous or step_seconds is None:
            return None
        return turn_interval(self.config.sync_every, self.config.num_fragments, step_seconds, self.pace)


def initial_state(config: RoundConfig, now: float) -> RoundState:
    """A job nobody has joined yet."""
    return RoundState(config=config, began_at=now, rounds=[FragmentRound() for _ in range(config.num_fragments)])


# Mutators: they change the state they are given. Replay folds them over the log's records; `step` uses them too.


def admit(state: RoundState, index: int, incarnation: int, now: float, *, restored: bool = False) -> None:
    """An admission is durable: the incarnation is a live member and the newest of its index."""
    member = Member(index, incarnation, last_heard=now, restored=restored)
    state.members[member.who] = member
    state.newest[index] = max(incarnation, state.newest.get(index, 0))
    expect_where_nobody_is(state, member.who)


def expect_where_nobody_is(state: RoundState, who: Who) -> None:
    """Synchronous rounds that lost everyone they expected wait for this Learner now; without that they never close."""
    if state.config.synchronous and state.stage != Stage.WAITING:
        for fragment, current in enumerate(state.rounds):
            if not current.expected:
                state.rounds[fragment] = replace(current, expected=frozenset({who}))


def start(state: RoundState) -> None:
    """Version 0 is handed out; a synchronous round expects everyone admitted so far."""
    state.stage = Stage.RUNNING
    if state.config.synchronous:
        whos = state.live_whos()
        state.rounds = [replace(current, expected=whos) for current in state.rounds]


def remove(state: RoundState, who: Who) -> None:
    """An incarnation is gone."""
    state.members.pop(who, None)
    unexpect(state, who)


def has_open_body(state: RoundState, who: Who) -> bool:
    """Whether a body of this Learner is waiting or being merged."""
    return any(
        (answer.key.index, answer.key.incarnation) == who for current in state.rounds for answer in current.answers
    )


def unexpect(state: RoundState, who: Who) -> None:
    """No round waits for this Learner any longer."""
    for fragment, current in enumerate(state.rounds):
        if who in current.expected:
            state.rounds[fragment] = replace(current, expected=current.expected - {who})


def published(state: RoundState, fragment: int, version: int, turn: int, merged: Iterable[Key], now: float) -> None:
    """A version is durable and visible; the round that made it is over."""
    current = state.rounds[fragment]
    merged_keys = set(merged)
    state.rounds[fragment] = replace(
        current,
        version=version,
        last_turn=max(turn, current.last_turn),
        answers=tuple(answer for answer in current.answers if answer.key not in merged_keys),
        expected=state.live_whos() if state.config.synchronous else frozenset(),
        merging=False,
    )
    state.next_turn = max(state.next_turn, turn + 1)
