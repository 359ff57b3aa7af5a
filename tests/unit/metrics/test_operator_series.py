"""What the operator exposes: exactly the table, from passes over jobs, and nothing of a job that is gone."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from diloco_api.metrics import LABELS, Exposer
from diloco_api.progress import LearnerState, Phase, Progress
from diloco_api.states import ConditionType, GoodputState
from diloco_operator.api import JobRef
from diloco_operator.health import Health
from diloco_operator.metrics.jobs import JobMetrics
from diloco_operator.metrics.site_calls import SiteCalls
from diloco_operator.metrics.views import STATUSES
from diloco_operator.metrics.words import LOSSES, OTHER, PHASES, POD_REASONS, pod_reason
from diloco_operator.planning.types import Ended, PodView
from diloco_operator.reconciler import Pass
from diloco_operator.sites.expiry import expires_at
from diloco_operator.sites.kubeconfig import parse_kubeconfig
from fakes.exposed import breaches, samples, values
from fakes.fleet import Fleet, running_fleet
from fakes.kubeconfigs import kubeconfig


class Exposed:
    """The collectors of an operator's process, fed with the passes of fleets."""

    def __init__(self) -> None:
        self.health = Health()
        self.jobs = JobMetrics(self.health.registry)
        self.connections: list[str] = []
        self.calls = SiteCalls(self.health.registry, lambda: self.connections)

    def step(self, fleet: Fleet, seconds: float = 1.0) -> None:
        planned = fleet.step(seconds)
        done = Pass(fleet.job, fleet.observe(), planned, fleet.now)
        self.jobs.keep(ref(fleet), done, {site: 2e9 for site in fleet.clusters if site != "hub"})

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        return values(self.health.registry, name)


def ref(fleet: Fleet) -> JobRef:
    metadata = fleet.job.metadata
    return JobRef(metadata.namespace, metadata.name, metadata.uid)


def counting(fleet: Fleet) -> Fleet:
    """Its Learners count their training from the first word on."""
    told, begun = fleet._progress, {}

    def progress() -> Progress | None:
        found = told()
        for learner in found.learners if found is not None else ():
            who = (learner.index, learner.incarnation)
            at = fleet.heard[who]
            learner.state_seconds = {LearnerState.TRAINING: at - begun.setdefault(who, at)}
        return found

    fleet._progress = progress  # type: ignore[method-assign]
    return fleet


def lost_and_replaced(exposed: Exposed) -> Fleet:
    """A fleet that has seen a crash, a move, and calls to its sites."""
    fleet = counting(running_fleet())
    exposed.step(fleet)
    fleet.finish(fleet.learner(0), 137, "killed")
    for _ in range(4):
        exposed.step(fleet)
        fleet.run_all()
    site = fleet.row(1).site
    fleet.clusters[site].down = "Timeout"
    fleet.clusters[site].cut = True
    for _ in range(20):
        exposed.step(fleet, 15)
        fleet.run_all()
    exposed.connections = ["hub/default", "site-1"]
    exposed.calls.called("site-1", "GET", 200, 0.1)
    exposed.calls.called("hub", "GET", None, 5.0)
    exposed.health.passes.labels("done").inc()
    return fleet


def test_what_is_exposed_and_the_table_are_the_same() -> None:
    exposed = Exposed()
    fleet = lost_and_replaced(exposed)
    fleet.edit({"learners.max": 8})
    exposed.step(fleet)
    assert breaches(exposed.health.registry, Exposer.OPERATOR) == []


def test_every_label_comes_from_an_allow_list() -> None:
    exposed = Exposed()
    fleet = lost_and_replaced(exposed)
    sites, indices = {"", *fleet.clusters}, {"", *map(str, range(8))}
    allowed: dict[str, Callable[[str], object]] = {
        "diloco_job": {"toy"}.__contains__,
        "job_namespace": {"default"}.__contains__,
        "site": sites.__contains__,
        "from_site": sites.__contains__,
        "to_site": sites.__contains__,
        "learner": indices.__contains__,
        "state": set(GoodputState).__contains__,
        "reason": (LOSSES | POD_REASONS | {OTHER}).__contains__,
        "counted": {"true", "false"}.__contains__,
        "phase": (PHASES | {OTHER}).__contains__,
        "condition": set(ConditionType).__contains__,
        "status": set(STATUSES).__contains__,
        "role": {"learner", "synchronizer"}.__contains__,
        "device": {"cpu", "nvidia.com/gpu"}.__contains__,
        "verb": {"GET", "POST", "PUT", "PATCH", "DELETE"}.__contains__,
        "code": lambda value: value == "none" or re.fullmatch(r"[1-5]\d\d", value),
        "result": {"done", "failed"}.__contains__,
    }
    infos = {"uid", "preset", "pod", "namespace", "version", "python", "kopf", "le"}
    assert allowed.keys() | infos | {"direction"} == LABELS.keys()
    for sample in samples(exposed.health.registry):
        for label, value in sample.labels.items():
            if label in infos:
                assert label == "le" or sample.name.endswith("_info"), f"{sample.name} has the label {label}"
            else:
                assert allowed[label](value), f"{sample.name}: {label}={value!r}"


def test_no_word_of_a_cluster_becomes_a_label() -> None:
    pod = PodView("p", "u", "learner", 0, 1, "Failed", ended=Ended(1, reason="node-7f3a said 12:01"))
    assert pod_reason(pod) == OTHER


def test_nothing_is_left_of_jobs_that_are_gone() -> None:
    exposed = Exposed()
    exposed.health.passes.labels("done").inc()
    before = {(sample.name, *sorted(sample.labels.items())) for sample in samples(exposed.health.registry)}
    fleet, passes = counting(running_fleet()), []
    fleet.finish(fleet.learner(0), 137)
    for _ in range(4):
        passes.append(Pass(fleet.job, fleet.observe(), fleet.step(), fleet.now))
        fleet.run_all()
    refs = [JobRef("default", f"job-{number}", f"uid-{number}") for number in range(200)]
    for number, one in enumerate(refs):
        metadata = fleet.job.metadata.model_copy(update={"name": one.name, "uid": one.uid})
        for done in passes:
            exposed.jobs.keep(one, replace(done, job=done.job.model_copy(update={"metadata": metadata})), {"s": 1.0})
        exposed.connections.append(f"site-{number}")
        exposed.calls.called(f"site-{number}", "GET", 200, 0.1)
    exposed_then = [sample.name for sample in samples(exposed.health.registry)]
    assert exposed_then.count("diloco_learner_restarts_total") == exposed_then.count("diloco_job_info") == 200
    assert exposed_then.count("diloco_learner_replacement_seconds_count") == 200
    for one in refs:
        exposed.jobs.forget(one)
    exposed.connections.clear()
    assert {(sample.name, *sorted(sample.labels.items())) for sample in samples(exposed.health.registry)} == before


def test_nothing_is_left_of_a_site_nothing_is_connected_to_while_its_jobs_go_on() -> None:
    exposed = Exposed()
    exposed.connections = ["hub/default", "site-1", "site-2"]
    for site in ("hub", "site-1", "site-2"):
        exposed.calls.called(site, "GET", 200, 0.1)
    exposed.connections.remove("site-2")
    exposed.calls.called("site-2", "GET", None, 5.0)  # begun before
    told = {sample.labels["site"] for sample in samples(exposed.health.registry) if "site_api" in sample.name}
    assert told == {"hub", "site-1"}


def test_a_site_that_is_away_is_nobodys_trouble_once_the_job_has_ended() -> None:
    exposed, fleet = Exposed(), running_fleet()
    exposed.step(fleet)
    fleet.clusters["site-2"].down = "TCPFailure"
    exposed.step(fleet)
    found = {site: up for (*_, site), up in exposed.values("diloco_site_reachable").items()}
    assert found == {"hub": 1.0, "site-1": 1.0, "site-2": 0.0}
    fleet.finish(fleet.learner(0), 64, "error: it is wrong")
    for _ in range(3):
        exposed.step(fleet)
    assert fleet.condition("Failed").status == "True"
    assert exposed.values("diloco_site_reachable") == {}


def test_counters_go_on_where_they_were_when_the_operator_is_started_anew() -> None:
    exposed = Exposed()
    fleet = lost_and_replaced(exposed)
    names = ("diloco_learner_state_seconds_total", "diloco_job_wanted_seconds_total", "diloco_job_window_seconds_total")
    before = {name: exposed.values(name) for name in names}
    again, phase = Exposed(), fleet.phase
    fleet.phase = None  # at its first look the Synchronizer does not answer
    again.step(fleet)
    assert again.values("diloco_learner_state_seconds_total") == {}
    fleet.phase = phase
    again.step(fleet)
    for name in names:
        after = again.values(name)
        assert all(after[labels] >= value for labels, value in before[name].items())


def test_wanted_seconds_are_those_of_all_states_at_every_scrape() -> None:
    exposed = Exposed()
    fleet = counting(running_fleet())
    told = []
    for number in range(40):
        if not 10 <= number < 30:  # unheard meanwhile: its time is told afterwards
            fleet.beat()
        exposed.step(fleet)
        states = exposed.values("diloco_learner_state_seconds_total")
        wanted = sum(exposed.values("diloco_job_wanted_seconds_total").values())
        assert wanted == pytest.approx(
            sum(seconds for labels, seconds in states.items() if labels[-1] != GoodputState.EXCLUDED), abs=1e-6
        )
        told.append(wanted)
    assert told[29] - told[10] < 10 < told[39] - told[29], "what was open was told in the end"


def test_counters_do_not_go_back_while_the_synchronizer_is_away() -> None:
    exposed = Exposed()
    fleet = counting(running_fleet())
    for _ in range(5):
        fleet.beat()
        exposed.step(fleet)
    before = exposed.values("diloco_learner_state_seconds_total")
    assert any(labels[-1] == "training" for labels in before)
    # A state that is not there yet would appear with all its seconds at once, which no rate sees.
    assert {labels[-1] for labels in before} == {state.value for state in GoodputState}
    fleet.phase = None
    exposed.step(fleet)
    after = exposed.values("diloco_learner_state_seconds_total")
    assert all(after[labels] >= value for labels, value in before.items())


def test_a_loss_its_replacement_and_a_move_are_counted_once() -> None:
    exposed = Exposed()
    lost_and_replaced(exposed)
    restarts = exposed.values("diloco_learner_restarts_total")
    assert sum(value for labels, value in restarts.items() if labels[-1] == "true") == 1
    moves = exposed.values("diloco_learner_relocations_total")
    assert moves
    assert all(labels[2] != labels[3] for labels in moves)
    assert sum(exposed.values("diloco_learner_replacement_seconds_count").values()) >= 1


def test_a_lost_learner_that_was_not_wanted_meanwhile_has_no_replacement() -> None:
    exposed, fleet = Exposed(), running_fleet()
    exposed.step(fleet)
    fleet.finish(fleet.learner(3), 137, "killed")
    exposed.step(fleet)
    fleet.edit({"learners.replicas": 3})
    for seconds in (1, 1, 7200):
        exposed.step(fleet, seconds)
    fleet.edit({"learners.replicas": 4})
    for _ in range(4):
        exposed.step(fleet)
        fleet.run_all()
    assert sum(exposed.values("diloco_learner_restarts_total").values()) == 1
    assert {labels[-1] for labels in exposed.values("diloco_job_learners")} == {LearnerState.TRAINING.value}
    assert exposed.values("diloco_learner_replacement_seconds_count") == {}


def test_learners_are_counted_by_what_they_do_now_and_pods_by_what_they_are() -> None:
    exposed = Exposed()
    fleet = running_fleet()
    exposed.step(fleet)
    states = exposed.values("diloco_job_learners")
    assert sum(states.values()) == 4
    assert {labels[-1] for labels in states} == {LearnerState.TRAINING.value}
    pods = exposed.values("diloco_pod_status")
    assert {labels[4] for labels in pods if labels[3] == "learner"} == {"0", "1", "2", "3"}
    fleet.serve(Phase.COMPLETE)
    for _ in range(3):
        exposed.step(fleet, 20)
    assert exposed.values("diloco_job_learners") == {}
    assert list(exposed.values("diloco_job_learners_desired").values()) == [0.0]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("head." + base64.urlsafe_b64encode(json.dumps({"exp": 1893456000}).encode()).decode() + ".sign", 1893456000.0),
        ("head." + base64.urlsafe_b64encode(b'{"sub": "x"}').decode() + ".sign", None),
        ("head.%%%.sign", None),
        ("opaque", None),
    ],
    ids=["jwt", "without an end", "no base64", "opaque"],
)
def test_when_a_token_expires_is_read_from_itself(token: str, expected: float | None) -> None:
    credentials = parse_kubeconfig(kubeconfig("https://hub.example:6443").replace("s3cret", token))
    assert expires_at(credentials) == expected
