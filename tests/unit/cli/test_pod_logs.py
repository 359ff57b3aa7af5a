"""Where a log is found: the newest pod, at whichever site it is."""

import pytest

from diloco_cli.cluster import BadCredentials, Cluster, ClusterError, Document
from diloco_cli.pod_logs import find_learner, find_synchronizer
from fakes.clusters import FakeCluster, kubeconfig_secret

PODS = "/api/v1/namespaces/jobs/pods"


def job(*sites: Document) -> Document:
    rows = [
        {"index": 0, "site": "hub", "incarnation": 1, "podName": "demo-0-1", "state": "Running"},
        {"index": 1, "site": "far", "incarnation": 3, "podName": "demo-1-3", "state": "BackOff", "reason": "OOMKilled"},
    ]
    return {
        "metadata": {"name": "demo", "namespace": "jobs", "uid": "u"},
        "spec": {"sites": list(sites)} if sites else {},
        "status": {"learnerStatuses": rows},
    }


HUB = {"name": "hub"}
FAR = {"name": "far", "kubeconfigSecretRef": {"name": "far-secret"}, "namespace": "train"}


def never(_: bytes) -> Cluster:
    raise AssertionError("no site is to be opened")


def test_a_learner_of_the_hub_is_found_in_the_jobs_namespace() -> None:
    hub = FakeCluster(logs={f"{PODS}/demo-0-1/log": ["one", "two"]})
    place = find_learner(hub, job(HUB, FAR), 0, never)
    assert list(place.lines(follow=False, tail=None)) == ["one", "two"]
    assert hub.asked[-1][2] == {"container": "learner"}


def test_a_learner_of_another_site_is_found_there_with_the_sites_credentials() -> None:
    hub = FakeCluster(
        {("GET", "/api/v1/namespaces/jobs/secrets/far-secret"): kubeconfig_secret(content=b"credentials")}
    )
    far = FakeCluster(logs={"/api/v1/namespaces/train/pods/demo-1-3/log": ["far away"]})
    opened: list[bytes] = []

    def open_site(content: bytes) -> Cluster:
        opened.append(content)
        return far

    place = find_learner(hub, job(HUB, FAR), 1, open_site)
    assert list(place.lines(follow=True, tail=5)) == ["far away"]
    assert far.asked[-1][2] == {"container": "learner", "follow": "true", "tailLines": "5"}
    assert opened == [b"credentials"]


def test_a_site_without_a_namespace_uses_the_jobs() -> None:
    far = FakeCluster()
    hub = FakeCluster({("GET", "/api/v1/namespaces/jobs/secrets/far-secret"): kubeconfig_secret()})
    place = find_learner(hub, job({key: value for key, value in FAR.items() if key != "namespace"}), 1, lambda _: far)
    assert (place.cluster, place.namespace) == (far, "jobs")


def test_without_sites_all_learners_are_at_the_hub() -> None:
    hub = FakeCluster()
    assert find_learner(hub, job(), 1, never).cluster is hub


def test_a_learner_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(BadCredentials, match="has no Learner 7; it has 0, 1"):
        find_learner(FakeCluster(), job(), 7, never)
    with pytest.raises(BadCredentials, match="no site far any more"):
        find_learner(FakeCluster(), job(HUB), 1, never)


def test_a_pod_that_is_gone_is_said_with_what_is_known_of_its_learner() -> None:
    place = find_learner(FakeCluster(), job(), 1, never)
    with pytest.raises(
        ClusterError, match=r"pod demo-1-3 is not there at site far \(Learner 1 is BackOff: OOMKilled\)"
    ):
        list(place.lines(follow=False, tail=None))


def test_of_the_synchronizers_pods_the_youngest_that_stays_is_meant() -> None:
    pods = [
        {"metadata": {"name": "old", "creationTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"name": "new", "creationTimestamp": "2026-01-02T00:00:00Z"}},
        {"metadata": {"name": "going", "creationTimestamp": "2026-01-03T00:00:00Z", "deletionTimestamp": "x"}},
    ]
    place = find_synchronizer(FakeCluster({("GET", PODS): {"items": pods}}), job())
    assert (place.pod, place.role.value) == ("new", "synchronizer")
    with pytest.raises(ClusterError, match="has no pod now"):
        find_synchronizer(FakeCluster({("GET", PODS): {"items": []}}), job())
