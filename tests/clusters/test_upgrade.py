"""`helm upgrade` from the commit before this one, and `helm rollback`, under running jobs of real pods.

The earlier build writes its pods down in another way (earlier.py), so that an operator which takes what it would write
for what should be restarts them. The tests share one job, in the order of the file.
"""

import copy
import time

import pytest
import yaml

from clusters import charts, workloads
from clusters.api import path_of, wait_until
from clusters.audit import AuditTrail
from clusters.earlier import CRD, DESCRIPTION, MARK, earlier_build
from clusters.operator_process import GROUP
from clusters.pythons import REPOSITORY, PythonEnvironment
from clusters.release import NAME, Release

pytestmark = pytest.mark.timeout(900)
DEFINITION = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "dilocojobs.diloco.dev")


class Upgrade(Release):
    """With what an upgrade is watched by."""

    def replace_learner(self, uid):
        """Learner 1 is lost; its next incarnation's pod."""
        lost, api = self.learners(uid)[1]
        api.request("DELETE", path_of("v1", "Pod", self.name, lost["metadata"]["name"]), {"gracePeriodSeconds": 0})

        def next_pod():
            pod, _ = self.learners(uid).get(1, (lost, api))
            return pod if pod["metadata"]["uid"] != lost["metadata"]["uid"] else None

        return wait_until("a replacement", next_pod, 60)

    def operator_takes_over(self, change):
        """Seconds from the change of the release until the next operator's first write to the job."""
        (before,) = {pod["metadata"]["name"] for pod in self.operator_pods()}
        told, begun = self.last_word(), time.monotonic()
        change()

        def other():
            lease = self.hub.get("coordination.k8s.io/v1", "Lease", self.own, "diloco-operator")
            holder = lease["spec"]["holderIdentity"]
            return holder if holder and not holder.startswith(before) else None

        wait_until("the next operator holds the Lease", other, 120)
        wait_until("it writes progress", lambda: self.last_word() != told, 120, every_seconds=1)
        assert "waiting for the lease" not in self.log(), "it was given back"
        return time.monotonic() - begun

    def last_word(self):
        return self.status("old")["progress"]["lastUpdatedTime"]

    def what_stays(self):
        """All that an operator of another time must leave as it is: pods, Secrets to the byte, the Deployments."""
        found = {}
        for cluster, api in (("hub", self.hub), ("site-1", self.site)):
            for pod in api.all("v1", "Pod", self.name):
                restarts = sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
                found[cluster, "Pod", pod["metadata"]["name"]] = (pod["metadata"]["uid"], restarts)
            for secret in api.all("v1", "Secret", self.name):
                found[cluster, "Secret", secret["metadata"]["name"]] = secret["data"]
        origin = self.hub.get("v1", "Secret", self.own, "diloco-operator-origin")
        found["hub", "Secret", "origin"] = origin["data"]
        for one in self.hub.all("apps/v1", "Deployment", self.name):
            metadata = one["metadata"]
            found["hub", "Deployment", metadata["name"]] = (metadata["uid"], metadata["generation"], one["spec"])
        for one in self.hub.all("v1", "Service", self.name):
            found["hub", "Service", one["metadata"]["name"]] = (one["spec"]["clusterIP"], one["spec"]["ports"])
        return found

    def schema(self):
        """Of the CRD in force."""
        return self.hub.get(*DEFINITION)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def writes(self):
        return AuditTrail(self.sites, self.name)


def check_counters(run, name, before):
    """What is counted goes on from where it was, what is decided once stays: as far as the CRD in force knows it."""
    after, known = run.status(name), run.schema()["properties"]["status"]["properties"]
    for field in ("startTime", "executionAttempt", "selector"):
        assert after[field] == before[field], field
    assert after["resolved"] == {
        field: value for field, value in before["resolved"].items() if field in known["resolved"]["properties"]
    }
    for row, was in zip(after["learnerStatuses"], before["learnerStatuses"], strict=True):
        for field in ("index", "site", "incarnation", "podName", "restarts", "restartsCounted", "runningSince"):
            assert row.get(field) == was.get(field), (row["index"], field)
    for field in ("tokens", "outerSteps", "outerRounds"):
        assert after["progress"][field] > before["progress"][field], field
    counted = known["goodput"]["properties"]
    seconds = [field for field in before["goodput"] if field.endswith("Seconds") and field in counted]
    assert {"windowSeconds", "wantedSeconds"} <= set(seconds), seconds
    for field in seconds:
        assert float(after["goodput"][field]) > float(before["goodput"][field]), field


def variables(manifest):
    spec = manifest["spec"].get("template", manifest)["spec"]
    return {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    return PythonEnvironment(repository=earlier_build(tmp_path_factory.mktemp("earlier")), code_claim="earlier-code")


@pytest.fixture(scope="module")
def run(clusters, python, earlier):
    """The earlier release, and a running job whose Learner 1 was replaced once."""
    run = Upgrade(clusters, "upgrade", python, earlier)
    assert not run.hub.get(*DEFINITION) or not run.hub.all(GROUP, "DiLoCoJob"), "jobs would go with the definition"
    run.hub.delete(*DEFINITION)
    workloads.wait_until_gone(run.hub, *DEFINITION)
    run.prepare()
    try:
        run.install(earlier)
        run.uid = run.create_job("old", earlier, ["hub", "site-1"])
        run.at_work("old", [1, 1])
        assert variables(run.replace_learner(run.uid))[MARK] == "earlier"
        run.at_work("old", [1, 2])
        yield run
    finally:
        run.take_down()
        run.hub.delete(*DEFINITION)  # it is marked as this release's
        workloads.wait_until_gone(run.hub, *DEFINITION)
        run.hub.apply(yaml.safe_load((REPOSITORY / CRD).read_text()))


def test_an_upgrade_leaves_a_running_job_as_it_was_built(run, python):
    before, stays, writes = run.at_work("old", [1, 2]), run.what_stays(), run.writes()
    assert run.schema()["description"] == DESCRIPTION
    taken = run.operator_takes_over(lambda: run.install(python))
    print(f"the next operator wrote {taken:.1f} s after the upgrade began")
    assert run.what_stays() == stays
    assert vars(writes.pod_writes()) == {"created": set(), "deleted": set(), "changed": set()}
    check_counters(run, "old", before)
    definition = yaml.safe_load((REPOSITORY / CRD).read_text())
    assert run.schema() == definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    (deployment,) = run.hub.all("apps/v1", "Deployment", run.name)
    assert variables(deployment)[MARK] == "earlier"


def test_the_newer_operator_replaces_a_learner_of_the_older_job(run):
    rest = {key: value for key, value in run.what_stays().items() if key[:2] == ("hub", "Pod")}
    pod = run.replace_learner(run.uid)
    assert MARK not in variables(pod), "by the templates this operator has for jobs of that time"
    restarts = run.at_work("old", [1, 3])["learnerStatuses"][1]["restarts"]
    assert restarts == 2
    assert {key: value for key, value in run.what_stays().items() if key[:2] == ("hub", "Pod")} == rest


def test_a_rollback_leaves_jobs_of_both_times_as_they_were_built(run, python):
    run.create_job("new", python, ["hub"])
    before = {"old": run.at_work("old", [1, 3]), "new": run.at_work("new", [1])}
    stays, writes = run.what_stays(), run.writes()
    taken = run.operator_takes_over(lambda: charts.rollback(run.clusters.hub, NAME, run.own, 1))
    print(f"the earlier operator wrote {taken:.1f} s after the rollback began")
    assert run.what_stays() == stays
    assert vars(writes.pod_writes()) == {"created": set(), "deleted": set(), "changed": set()}
    for name, status in before.items():
        wait_until(
            "its progress",
            lambda n=name, s=status: run.status(n)["progress"]["lastUpdatedTime"] != s["progress"]["lastUpdatedTime"],
            60,
            every_seconds=1,
        )
        check_counters(run, name, status)
    assert run.schema()["description"] == DESCRIPTION
    (new,) = [d for d in run.hub.all("apps/v1", "Deployment", run.name) if d["metadata"]["name"].startswith("new-")]
    assert MARK not in variables(new)


def test_an_older_operator_leaves_alone_what_a_newer_one_wrote_into_the_status(run):
    definition = run.hub.get(*DEFINITION)
    newer = copy.deepcopy(definition["spec"])
    status = newer["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    for properties in (status, status["progress"]["properties"], status["learnerStatuses"]["items"]["properties"]):
        properties["forecast"] = {"type": "string"}
    run.hub.patch(path_of(*DEFINITION[:2], None, DEFINITION[3]), {"spec": newer})

    def written():
        found = run.job("old")
        told = found["status"]
        rows = [row | {"forecast": f"of {row['index']}"} for row in told["learnerStatuses"]]
        change = {"forecast": "of all", "progress": {"forecast": "fine"}, "learnerStatuses": rows}
        metadata = {"resourceVersion": found["metadata"]["resourceVersion"]}
        path = path_of(GROUP, "DiLoCoJob", run.name, "old", "status")
        return forecasts(run.hub.patch(path, {"metadata": metadata, "status": change}))

    wanted = ("of all", "fine", ["of 0", "of 1"])
    wait_until("the server keeps the new fields", lambda: written() == wanted, 30)
    run.replace_learner(run.uid)
    run.at_work("old", [1, 4])
    assert forecasts(run.job("old")) == wanted


def forecasts(job):
    status = job["status"]
    rows = [row.get("forecast") for row in status["learnerStatuses"]]
    return status.get("forecast"), status["progress"].get("forecast"), rows
