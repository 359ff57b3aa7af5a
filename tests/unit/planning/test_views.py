"""From what real clusters list to what is decided upon."""

from typing import Any

from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.views import MAX_LAST_WORDS, object_view, pod_view

NOW = 1_800_000_000.0


def pod(*conditions: tuple[str, str, str, str], **status: Any) -> dict[str, Any]:
    listed = [{"type": t, "status": s, "reason": r, "message": m} for t, s, r, m in conditions]
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": to_text(NOW - 60)},
        "status": {"phase": "Pending", "conditions": listed, **status},
    }


def test_a_pod_no_node_takes() -> None:
    view = pod_view(pod(("PodScheduled", "False", "Unschedulable", "0/3 nodes")), NOW)
    assert (view.unscheduled, view.unscheduled_message, view.age_seconds) == ("Unschedulable", "0/3 nodes", 60)
    assert view.created_at == to_seconds(to_text(NOW - 60))
    assert pod_view(pod(("PodScheduled", "True", "", "")), NOW).unscheduled == ""


def test_a_pod_whose_image_cannot_be_pulled() -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    view = pod_view(pod(containerStatuses=[waiting]), NOW)
    assert (view.waiting, view.waiting_message) == ("ErrImagePull", "not found")


def test_of_endless_last_words_only_the_end_is_read() -> None:
    terminated = {"exitCode": 1, "message": "x" * 10_000_000 + "the reason"}
    ended = pod_view(pod(containerStatuses=[{"state": {"terminated": terminated}}]), NOW).ended
    assert ended is not None
    assert (len(ended.message), ended.message[-10:]) == (MAX_LAST_WORDS, "the reason")


def test_a_pod_on_a_node_that_is_not_heard() -> None:
    ready = ("ContainersReady", "True", "", "")
    assert pod_view(pod(("Ready", "False", "", ""), ready, phase="Running"), NOW).node_silent
    assert not pod_view(pod(("Ready", "True", "", ""), ready, phase="Running"), NOW).node_silent
    starting = pod(("Ready", "False", "", ""), ("ContainersReady", "False", "", ""), phase="Running")
    assert not pod_view(starting, NOW).node_silent


def test_a_pod_the_cluster_takes_away() -> None:
    view = pod_view(pod(("DisruptionTarget", "True", "DeletionByTaintManager", "")), NOW)
    assert (view.pod_reason, view.disruption) == ("DisruptionTarget", "DeletionByTaintManager")
    assert pod_view(pod(reason="Evicted"), NOW).pod_reason == "Evicted"


def service(**fields: Any) -> dict[str, Any]:
    return {"kind": "Service", "metadata": {"name": "s", "uid": "u"}, **fields}


def test_what_a_service_was_given() -> None:
    ports = [{"name": "other", "nodePort": 1}, {"name": "grpc", "nodePort": 31400}]
    ingress = [{"ip": "203.0.113.7"}, {"hostname": "lb.example"}]
    view = object_view(service(spec={"ports": ports}, status={"loadBalancer": {"ingress": ingress}}))
    assert (view.node_port, view.addresses) == (31400, ("203.0.113.7", "lb.example"))
    empty = object_view(service(spec={"ports": [{"name": "grpc"}]}, status={"loadBalancer": {}}))
    assert (empty.node_port, empty.addresses) == (0, ())


def test_why_a_deployment_has_no_pod() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    manifest = {"kind": "Deployment", "metadata": {"name": "d", "uid": "u"}, "status": {"conditions": [failure]}}
    assert object_view(manifest).problem == "exceeded quota"
