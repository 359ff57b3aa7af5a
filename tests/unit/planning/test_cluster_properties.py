"""Invariants of a job on several clusters after every step of a random life: what dies, is cut off, or refuses."""

from collections import Counter

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diloco_api import names
from diloco_api.progress import Phase
from diloco_api.states import SITE_CONDITION_REASONS, Reason, SiteConditionType
from diloco_api.status import JobStatus
from diloco_operator.planning.incarnations import CREATING
from diloco_operator.planning.types import Refusal
from fakes.fleet import POLICY, Fleet, fleet_job

REPLICAS, SITES = 4, ("site-1", "site-2", "site-3")
some_site = st.sampled_from(SITES)
some_index = st.integers(0, REPLICAS - 1)

happenings = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1.0, 5.0, 40.0, 150.0, 700.0])),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 5.0])),
    st.tuples(st.just("run"), st.just(0)),
    st.tuples(st.just("down"), some_site),
    st.tuples(st.just("up"), some_site),
    st.tuples(st.just("cut"), some_site),
    st.tuples(st.just("heal"), some_site),
    st.tuples(st.just("finish"), some_index),
    st.tuples(st.just("delete"), some_index),
    st.tuples(st.just("silent node"), some_index),
    st.tuples(st.just("unschedulable"), some_site),
    st.tuples(st.just("refuse"), some_site),
    st.tuples(st.just("accept"), some_site),
    st.tuples(st.just("reap"), st.just(0)),
    st.tuples(st.just("synchronizer away"), st.just(0)),
    st.tuples(st.just("synchronizer back"), st.just(0)),
    st.tuples(st.just("operator restarts"), st.just(0)),
)


def happen(fleet: Fleet, what: tuple[str, object]) -> None:
    name, argument = what
    rows = {row.index: row for row in fleet.job.status.learner_statuses}
    row = rows.get(argument) if isinstance(argument, int) else None
    pod = fleet.clusters[row.site].pods.get(row.pod_name) if row is not None else None
    cluster = fleet.clusters.get(str(argument))
    match name:
        case "pass":
            fleet.beat()
            fleet.step(float(str(argument)))
        case "run":
            fleet.run_all()
        case "down" if cluster:
            cluster.down = "Timeout"
        case "up" if cluster:
            cluster.down = ""
        case "cut" if cluster:
            cluster.cut = True
        case "heal" if cluster:
            cluster.cut = False
        case "finish" if pod is not None and not pod.finished:
            fleet.finish(pod, 137)
        case "delete" if pod is not None and not pod.finished:
            fleet.change(pod, deleting=True, delete_by=fleet.now + 30)
        case "silent node" if pod is not None and pod.phase == "Running":
            fleet.change(pod, node_silent=True)
        case "unschedulable" if cluster:
            fleet.wait(cluster.name, unscheduled="Unschedulable", unscheduled_message="no room")
        case "refuse" if cluster:
            cluster.refuse = Refusal("QuotaExceeded", "exceeded quota")
        case "accept" if cluster:
            cluster.refuse = None
        case "reap":
            fleet.reap()
        case "synchronizer away":
            fleet.phase = None
        case "synchronizer back":
            fleet.serve()
        case "operator restarts":
            fleet.begun_at = fleet.now
            for each in fleet.clusters.values():
                each.last_contact = None


def check(fleet: Fleet) -> None:
    status, rows = fleet.job.status, {row.index: row for row in fleet.job.status.learner_statuses}
    assert all(count == 1 for count in Counter(fleet.created).values()), "an incarnation was created twice"
    pods = [pod for cluster in fleet.clusters.values() for pod in cluster.pods.values() if pod.role == "learner"]
    assert all(pod.incarnation <= rows[pod.index].incarnation for pod in pods), "created before it was committed"
    newest = Counter(pod.index for pod in pods if pod.incarnation == rows[pod.index].incarnation)
    assert all(count == 1 for count in newest.values()), "one incarnation at two sites"
    seen = [
        pod
        for cluster in fleet.clusters.values()
        if not cluster.down
        for pod in cluster.pods.values()
        if pod.role == "learner" and not pod.finished and (pod.delete_by is None or pod.delete_by >= fleet.now)
    ]
    assert len(seen) <= 2 * REPLICAS
    for site in status.sites:
        for condition in site.conditions:
            allowed = SITE_CONDITION_REASONS[SiteConditionType(condition.type)][condition.status != "True"]
            assert Reason(condition.reason) in allowed
    assert JobStatus.model_validate_json(status.model_dump_json(by_alias=True)) == status


def nobody_who_is_well_is_replaced(fleet: Fleet) -> None:
    """Heard, and its pod neither over nor on its way out: whatever else is wrong, it is left alone."""
    well = {}
    for row in fleet.job.status.learner_statuses:
        pod = fleet.clusters[row.site].pods.get(row.pod_name)
        fresh = fleet.now - fleet.heard.get((row.index, row.incarnation), 0.0) < 20
        ours = pod is not None and pod.phase == "Running" and not pod.deleting and row.state == "Running"
        if ours and fresh and fleet.phase is not None:
            well[row.index] = row.incarnation
    fleet.step(1.0)
    for index, incarnation in well.items():
        assert fleet.row(index).incarnation == incarnation, f"Learner {index} was well"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(happenings, max_size=40))
def test_invariants_hold_after_every_step_of_a_random_life(life: list[tuple[str, object]]) -> None:
    fleet = started()
    for what in life:
        happen(fleet, what)
        check(fleet)
        first = fleet.plan()
        assert first == fleet.plan(), "two plans on one observation differ"
        away = {cluster.name for cluster in fleet.clusters.values() if cluster.down}
        assert not any(getattr(action, "site", "") in away for action in first.actions)
        nobody_who_is_well_is_replaced(fleet)
        check(fleet)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(happenings, max_size=30))
@example([("delete", 0), ("refuse", "site-1"), ("pass", 1.0)])
def test_after_healing_every_learner_is_at_work_and_nothing_is_left_to_do(life: list[tuple[str, object]]) -> None:
    fleet = started()
    for what in life:
        happen(fleet, what)
    for cluster in fleet.clusters.values():
        cluster.down, cluster.cut, cluster.refuse = "", False, None
        for pod in list(cluster.pods.values()):
            fleet.change(pod, node_silent=False, unscheduled="")
    fleet.serve()
    for _ in range(90):
        fleet.reap()
        fleet.run_all()
        fleet.step(10)
    assert [row.state for row in fleet.job.status.learner_statuses] == ["Running"] * REPLICAS
    assert fleet.plan().actions == ()
    assert fleet.condition("Degraded").reason == "AsDesired"
    writes = fleet.writes
    fleet.pass_time(300)
    assert fleet.writes == writes
    pods = [pod for cluster in fleet.clusters.values() for pod in cluster.pods.values() if pod.role == "learner"]
    assert len(pods) == REPLICAS


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(happenings, max_size=20))
def test_a_deleted_job_is_let_go_within_the_wait_and_leaves_nothing_where_it_can_be_reached(
    life: list[tuple[str, object]],
) -> None:
    fleet = started()
    for what in life:
        happen(fleet, what)
    metadata = fleet.job.metadata.model_copy(update={"deletion_timestamp": "2027-01-15T08:00:00Z"})
    fleet.job = fleet.job.model_copy(update={"metadata": metadata})
    fleet.now = max(fleet.now, 1_800_000_000.0)
    for _ in range(int(POLICY.timeouts.deletion_wait_seconds / 10) + 5):
        if not fleet.job.metadata.finalizers:
            break
        fleet.step(10)
        fleet.reap()
        for cluster in fleet.clusters.values():
            for pod in [pod for pod in cluster.pods.values() if pod.node_silent]:
                fleet.change(pod, node_silent=False)
    assert fleet.job.metadata.finalizers == []
    for cluster in fleet.clusters.values():
        if not cluster.down:
            assert cluster.pods == {}
            assert {kind for kind, _ in cluster.objects} <= {"PersistentVolumeClaim"}


def started() -> Fleet:
    fleet = Fleet(job=fleet_job({"failurePolicy.maxRestarts": 1000}, sites=3, replicas=REPLICAS))
    fleet.settle(3)
    fleet.serve()
    fleet.settle(3)
    assert names.FINALIZER in fleet.job.metadata.finalizers
    return fleet


def test_a_row_that_waits_for_its_pod_says_so() -> None:
    fleet = started()
    fleet.finish(fleet.learner(0), 1)
    fleet.step()
    assert fleet.row(0).reason == CREATING


def test_phases_of_the_synchronizer_that_end_a_job_end_it_on_clusters_too() -> None:
    fleet = started()
    fleet.serve(Phase.COMPLETE)
    for index in range(REPLICAS):
        fleet.finish(fleet.learner(index), 0)
    fleet.step()
    assert fleet.condition("Complete").status == "True"
    for _ in range(3):
        last = fleet.step()
    assert last.finished
    assert {kind for cluster in fleet.clusters.values() for kind, _ in cluster.objects} == {"PersistentVolumeClaim"}
