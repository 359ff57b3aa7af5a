"""Invariants that hold after every step of a random life: no matter what dies, when, and what the operator misses."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import job
from diloco_api.progress import Phase
from diloco_api.states import CONDITION_REASONS, ConditionType, Reason
from diloco_operator.planning.incarnations import CREATING
from diloco_operator.planning.types import CreatePod, PodView, Stop
from fakes.world import World

REPLICAS = 3
EXIT_CODES = (0, 1, 64, 80, 81, 83, 137, 143)

happenings = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([0.5, 5.0, 40.0, 700.0])),
    st.tuples(st.just("crash"), st.just(1.0)),
    st.tuples(st.just("run"), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, REPLICAS - 1), st.sampled_from(EXIT_CODES)),
    st.tuples(st.just("evict"), st.integers(0, REPLICAS - 1)),
    st.tuples(st.just("vanish"), st.integers(0, REPLICAS - 1)),
    st.tuples(st.just("reap"), st.just(0)),
    st.tuples(st.just("silence"), st.just(0)),
    st.tuples(st.just("serve"), st.sampled_from(list(Phase))),
    st.tuples(st.just("down"), st.booleans()),
    st.tuples(st.just("scale"), st.integers(1, REPLICAS)),
    st.tuples(st.just("stop"), st.sampled_from(list(Stop))),
    st.tuples(st.just("restart"), st.just(0)),
)


def seen(world: World, pod: PodView) -> bool:
    """One that vanishes before anybody has seen it is made again under its name, unless the Synchronizer knows it."""
    rows = {row.index: row for row in world.job.status.learner_statuses}
    return pod.index in rows and rows[pod.index].reason != CREATING


def happen(world: World, what: tuple[object, ...]) -> None:
    name, argument = what[0], what[1]
    pods = [p for p in world.pods.values() if p.index == argument and not p.finished] if name != "pass" else []
    match name:
        case "pass":
            world.step(float(str(argument)))
        case "crash":
            world.step(crash=True)
        case "run":
            world.run_all()
        case "finish" if pods:
            world.finish(pods[-1], int(str(what[2])))
        case "evict" if pods:
            world.change(pods[-1], deleting=True, delete_by=world.now + 30)
        case "vanish" if pods and seen(world, pods[-1]):
            del world.pods[pods[-1].name]
        case "reap":
            world.reap()
        case "silence":
            world.phase = None
        case "serve":
            world.serve(Phase(str(argument)))
        case "down":
            world.site_down = bool(argument)
        case "scale":
            learners = world.job.spec.learners.model_copy(update={"replicas": argument, "max": REPLICAS})
            world.job = world.job.model_copy(update={"spec": world.job.spec.model_copy(update={"learners": learners})})
        case "stop":
            world.stop = Stop(str(argument))
        case "restart":  # the machine: every process ends, objects are forgotten, data stays
            world.pods.clear()
            world.objects.clear()
            world.phase, world.fresh_start, world.stop = None, True, Stop.NO


def counters(world: World) -> dict[str, int]:
    found = {"attempt": world.job.status.execution_attempt, "generation": world.job.status.observed_generation}
    for row in world.job.status.learner_statuses:
        found |= {f"incarnation {row.index}": row.incarnation, f"restarts {row.index}": row.restarts}
        found[f"counted {row.index}"] = row.restarts_counted
    return found


def check(world: World, before: dict[str, int], types: set[str]) -> None:
    status = world.job.status
    live = [pod for pod in world.pods.values() if pod.role == "learner" and pod.live]
    rows = {row.index: row for row in status.learner_statuses}

    assert all(count == 1 for count in Counter(world.created).values()), "an incarnation was created twice"
    unfenced = Counter(pod.index for pod in live if pod.incarnation == rows[pod.index].incarnation)
    assert all(count == 1 for count in unfenced.values())
    assert all(pod.incarnation <= rows[pod.index].incarnation for pod in live), "created before it was committed"
    unfinished = [
        p for p in world.pods.values() if not p.finished and (p.delete_by is None or p.delete_by >= world.now)
    ]
    assert len(unfinished) <= 2 * REPLICAS
    assert {key: value for key, value in counters(world).items() if value < before.get(key, 0)} == {}
    found = [condition.type for condition in status.conditions]
    assert len(set(found)) == len(found)
    assert types <= set(found), "a condition disappeared"
    for condition in status.conditions:
        allowed = CONDITION_REASONS[ConditionType(condition.type)][0 if condition.status == "True" else 1]
        assert Reason(condition.reason) in allowed
    assert not {"Complete", "Failed"} <= {c.type for c in status.conditions if c.status == "True"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(happenings, max_size=30))
def test_invariants_hold_after_every_step_of_a_random_life(life: list[tuple[object, ...]]) -> None:
    world = World(job=job({"failurePolicy.maxRestarts": 2, "learners.max": REPLICAS}))
    world.step()
    world.serve()
    world.settle(2)
    final = None
    for what in life:
        before, types = counters(world), {c.type for c in world.job.status.conditions}
        happen(world, what)
        check(world, before, types)
        first, second = world.plan(), world.plan()
        assert first == second, "two plans on one observation differ"
        if final is not None:
            assert world.job.status is final, "an ended job was written"
        if any(c.type in ("Complete", "Failed") and c.status == "True" for c in world.job.status.conditions):
            final = world.job.status
            assert not any(isinstance(action, CreatePod) for action in first.actions)


@settings(max_examples=25, deadline=None)
@given(st.lists(happenings, max_size=20))
def test_carrying_a_plan_out_twice_changes_nothing_more(life: list[tuple[object, ...]]) -> None:
    world = World(job=job({"learners.max": REPLICAS}))
    world.step()
    world.serve()
    for what in life:
        happen(world, what)
    planned = world.step()
    pods, objects = dict(world.pods), set(world.objects)
    world.carry_out(planned)
    assert world.pods == pods
    assert set(world.objects) == objects


@settings(max_examples=25, deadline=None)
@given(st.lists(happenings, max_size=25))
def test_after_healing_every_wanted_learner_is_at_work_or_parked_or_the_job_has_ended(
    life: list[tuple[object, ...]],
) -> None:
    world = World(job=job({"failurePolicy.maxRestarts": 2, "learners.max": REPLICAS}))
    world.step()
    world.serve()
    for what in life:
        happen(world, what)
    world.site_down, world.stop, world.fresh_start = False, Stop.NO, True
    for _ in range(80):
        world.reap()
        world.serve()
        world.run_all()
        world.step(seconds=10)
    ended = any(c.type in ("Complete", "Failed") and c.status == "True" for c in world.job.status.conditions)
    wanted = world.job.spec.learners.replicas
    states = Counter(row.state for row in world.job.status.learner_statuses)
    assert ended or states["Running"] + states["Parked"] + states["Succeeded"] >= wanted, states
    assert ended or world.plan().actions == ()
