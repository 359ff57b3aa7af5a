"""Whatever happens in whatever order: bodies settle once, versions grow by one, and every job can end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_trainer.algorithm.events import (
    AnsweredNothing,
    Contributed,
    Event,
    Finish,
    Heard,
    Joined,
    Key,
    Left,
    MarkGone,
    Merge,
    MergeDone,
    PoolChanged,
    Refuse,
    Tick,
)
from diloco_trainer.algorithm.round_state import RoundConfig, RoundState, Stage, initial_state
from diloco_trainer.algorithm.sync_round import next_deadline, step

CONFIG = RoundConfig(
    num_fragments=3,
    sync_every=6,
    sync_delay=1,
    synchronous=False,
    min_quorum=2,
    replicas=3,
    min_learners=1,
    grace_gamma=0.5,
    grace_seconds=None,
    drop_late=False,
    retained_versions=8,
    dead_after=30.0,
    stall_timeout=600.0,
    scheduling_timeout=300.0,
    deadline_floor=60.0,
    deadline_factor=3.0,
    answer_patience=1.0,
    reunion=10.0,
)


class World:
    """A crude job: a body is open until it is settled, merges take no time, everyone gone is replaced."""

    def __init__(self, synchronous: bool, drop_late: bool) -> None:
        config = CONFIG.__class__(
            **{name: getattr(CONFIG, name) for name in CONFIG.__slots__}
            | {"synchronous": synchronous, "drop_late": drop_late}
        )
        self.now = 0.0
        self.state: RoundState = initial_state(config, 0.0)
        self.open: dict[tuple[int, int, int], Key] = {}
        self.sent = 0
        self.settled: list[Key] = []
        self.finished = False
        self.merged_turns: list[tuple[int, int]] = []

    def send(self, event: Event) -> None:
        before = [current.version for current in self.state.rounds]
        self.state, effects = step(self.state, event, self.now)
        for effect in effects:
            if isinstance(effect, Merge):
                assert effect.version == before[effect.fragment] + 1
                assert list(effect.contributions) == sorted(set(effect.contributions))
                self.merged_turns.append((effect.fragment, effect.turn))
                for key in effect.contributions:
                    self.settle(key)
                self.send(MergeDone(effect.fragment, effect.version, effect.contributions, 0.01))
            elif isinstance(effect, Refuse):
                self.settle(effect.key)
            elif isinstance(effect, MarkGone):
                who = (effect.index, effect.incarnation)
                assert not [key for key in self.open.values() if (key.index, key.incarnation) == who], "bodies first"
            elif isinstance(effect, Finish):
                assert not self.finished
                self.finished = True
        deadline = next_deadline(self.state, self.now)
        assert deadline is None or deadline >= 0

    def settle(self, key: Key) -> None:
        assert self.open.pop((key.index, key.incarnation, key.fragment)) == key, "settled once, and only what is open"
        self.settled.append(key)

    def answer(self, index: int, fragment: int, nothing: bool, lag: int) -> None:
        incarnation = self.state.newest.get(index)
        if incarnation is None or (index, incarnation) not in self.state.members or self.state.stage == Stage.WAITING:
            return
        current = self.state.rounds[fragment]
        turn = current.open_turn if current.open_turn is not None else current.version + 1
        if (index, incarnation, fragment) in self.open:
            return
        if nothing:
            self.send(AnsweredNothing(index, incarnation, fragment, turn))
            return
        self.sent += 1
        key = Key(index, incarnation, fragment, self.sent)
        self.open[index, incarnation, fragment] = key
        self.send(Contributed(key, max(0, turn - lag), max(0, current.version - lag)))


ACTIONS = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 2)),
    st.tuples(st.just("hear"), st.integers(0, 2)),
    st.tuples(st.just("leave"), st.integers(0, 2)),
    st.tuples(st.just("body"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("nothing"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 10.0, 40.0, 700.0])),
)


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.booleans(), st.lists(ACTIONS, max_size=60))
def test_bodies_settle_once_versions_grow_by_one_and_the_job_can_end(
    synchronous: bool, drop_late: bool, actions: list[tuple]
) -> None:
    world = World(synchronous, drop_late)
    for action in actions:
        play(world, action)
    assert len(world.settled) == len(set(world.settled))
    assert synchronous or len(world.merged_turns) == len(set(world.merged_turns)), "a turn merges at most once"
    end(world)
    assert world.finished
    assert not world.open, "nothing is left unsettled at the end"


def play(world: World, action: tuple) -> None:
    match action:
        case ("join", index):
            world.send(Joined(index, world.state.newest.get(index, 0) + 1))
        case ("hear", index):
            world.send(Heard(index, world.state.newest.get(index, 0), 1.0, False))
        case ("leave", index):
            world.send(Left(index, world.state.newest.get(index, 0)))
        case ("body", index, fragment, lag):
            world.answer(index, fragment, False, lag)
        case ("nothing", index, fragment):
            world.answer(index, fragment, True, 0)
        case ("wait", seconds):
            world.now += seconds
            world.send(Tick())


def end(world: World) -> None:
    """Three fresh Learners drain the job, answering whatever is asked for."""
    for index in range(3):
        world.send(Joined(index, world.state.newest.get(index, 0) + 1))
    world.send(PoolChanged(False, "TokenBudgetReached"))
    for _ in range(400):
        if world.finished:
            return
        for index in range(3):
            incarnation = world.state.newest[index]
            mine = [key for key in world.open.values() if (key.index, key.incarnation) == (index, incarnation)]
            world.send(Heard(index, incarnation, 1.0, drained=not mine))
            for fragment in range(3):
                if world.state.rounds[fragment].open_turn is not None:
                    world.answer(index, fragment, True, 0)
        world.now += 1.0
        world.send(Tick())
