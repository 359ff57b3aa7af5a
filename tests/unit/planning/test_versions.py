"""An operator of another time and a running job: what it finds it leaves as it was built, but for the user's edits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from diloco_api import names
from diloco_api.sites import NodePoolSpec
from diloco_api.status import LearnerStatus, ResolvedStatus
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.acceptance import resolve_status
from diloco_operator.planning.desired import Wanted, object_actions, pod_actions
from diloco_operator.planning.manifests.common import Home
from diloco_operator.planning.manifests.learner import LearnerKit, learner_pod
from diloco_operator.planning.manifests.synchronizer import synchronizer_deployment
from diloco_operator.planning.manifests.versions import TEMPLATE_VERSION, TEMPLATES, PodTemplates, templates_of
from diloco_operator.planning.sites import places
from diloco_operator.planning.types import Apply, CreatePod
from fakes.fleet import POLICY, Fleet, fleet_job, running_fleet

Manifest = dict[str, Any]
OURS = {1: PodTemplates(learner_pod, synchronizer_deployment)}


def written(word: str) -> PodTemplates:
    """Templates that write the same decisions down in another way, to be known by the image."""

    def learner(kit: LearnerKit, row: LearnerStatus, pool: NodePoolSpec | None) -> Manifest:
        return learner_pod(replace(kit, image=word), row, pool)

    def synchronizer(home: Home, resolved: ResolvedStatus, site: str, image: str, timeouts: Timeouts) -> Manifest:
        return synchronizer_deployment(home, resolved, site, word, timeouts)

    return PodTemplates(learner, synchronizer)


TWO = {1: written("1"), 2: written("2")}


def wanted(fleet: Fleet, templates: Mapping[int, PodTemplates] = OURS) -> Wanted:
    """What an operator with these templates wants of the job as it is now."""
    job, observed = fleet.job, fleet.observe()
    refs = {ref.name: ref for ref in places(job, fleet.policy, observed)}
    rows = {row.index: row for row in job.status.learner_statuses}
    return Wanted(job, job.status, fleet.policy, observed, refs, rows, 1, fleet.now, templates)


def applied(fleet: Fleet, templates: Mapping[int, PodTemplates] = OURS) -> dict[str, Manifest]:
    actions = object_actions(wanted(fleet, templates))
    return {action.key[0]: action.manifest for action in actions if isinstance(action, Apply)}


def image(manifest: Manifest) -> str:
    spec = manifest["spec"].get("template", manifest)["spec"]
    return str(spec["containers"][0]["image"])


def accepted_with(version: int) -> Fleet:
    """A running job another operator accepted with this version."""
    fleet = running_fleet()
    assert fleet.job.status.resolved is not None
    resolved = fleet.job.status.resolved.model_copy(update={"template_version": version})
    fleet.job = fleet.job.model_copy(update={"status": fleet.job.status.model_copy(update={"resolved": resolved})})
    for action in object_actions(wanted(fleet)):
        if isinstance(action, Apply):
            fleet._carry_out(action)
    return fleet


def next_incarnation(fleet: Fleet, templates: Mapping[int, PodTemplates]) -> Manifest:
    """The pod of an incarnation that was just committed."""
    row = fleet.row(0)
    pod_name = names.learner_name("toy", fleet.job.metadata.uid, 0, row.incarnation + 1)
    new = row.model_copy(update={"incarnation": row.incarnation + 1, "state": "Pending", "pod_name": pod_name})
    rows = {**wanted(fleet).rows, 0: new}
    actions = pod_actions(replace(wanted(fleet, templates), rows=rows))
    return next(action.manifest for action in actions if isinstance(action, CreatePod))


def test_an_operator_that_writes_the_same_decisions_in_another_way_applies_nothing() -> None:
    fleet = running_fleet()
    assert applied(fleet) == {}
    assert applied(fleet, {1: written("otherwise")}) == {}


def test_an_operator_with_newer_templates_uses_them_for_no_pod_of_a_job_that_runs() -> None:
    fleet = running_fleet()
    assert applied(fleet, TWO) == {}
    assert image(next_incarnation(fleet, TWO)) == "1"


def test_a_synchronizer_somebody_removed_is_written_down_as_it_was() -> None:
    fleet = running_fleet()
    fleet.hub.objects = {key: found for key, found in fleet.hub.objects.items() if key[0] != "Deployment"}
    assert image(applied(fleet, TWO)["Deployment"]) == "1"


def test_new_jobs_have_the_newest_templates() -> None:
    assert resolve_status(fleet_job(), POLICY.ports, "trainer:1").template_version == TEMPLATE_VERSION == max(TEMPLATES)
    assert image(next_incarnation(accepted_with(2), TWO)) == "2"


def test_an_older_operator_leaves_the_synchronizer_of_a_newer_one_alone_and_writes_pods_as_well_as_it_can() -> None:
    fleet = accepted_with(2)
    assert applied(fleet, OURS) == {}
    assert image(next_incarnation(fleet, {1: written("old")})) == "old"
    assert templates_of(7, TWO) is TWO[2]


@pytest.mark.parametrize(
    "edit",
    [
        {"synchronizer.template": {"spec": {"nodeSelector": {"disk": "fast"}}}},
        {"priorityClassName": "high"},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_what_the_user_edits_is_applied_and_written_down_as_before(edit: dict[str, object]) -> None:
    fleet = running_fleet()
    fleet.edit(edit)
    deployment = applied(fleet, TWO)["Deployment"]
    assert image(deployment) == "1"
    fleet._carry_out(Apply("hub", deployment))
    assert applied(fleet, {1: written("otherwise")}) == {}


def test_an_operator_that_was_configured_otherwise_restarts_no_synchronizer() -> None:
    fleet = running_fleet()
    fleet.policy = replace(
        POLICY, image="trainer:2", fs_group=None, monitoring_namespace="elsewhere",
        timeouts=POLICY.timeouts.model_copy(update={"grace_period_seconds": 99.0}),
    )  # fmt: skip
    assert set(applied(fleet)) == {"NetworkPolicy", "ConfigMap"}, "these restart nothing"


def test_the_hash_of_a_plain_job_is_the_same_for_ever() -> None:
    """Changing it restarts the Synchronizer of every job there is."""
    found = running_fleet().hub.objects["Deployment", names.synchronizer_name("toy", fleet_job().metadata.uid)]
    assert found.spec_hash == "a4f50ace91860869"
