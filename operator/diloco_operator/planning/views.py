"""From the objects a site lists (plain dicts, as Kubernetes returns them) to the values decisions are made of."""

from collections.abc import Iterable

from diloco_api import names
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.types import Ended, Manifest, ObjectKey, ObjectView, PodView

MAX_LAST_WORDS = 4096
"""Characters of a termination message, from its end. A kubelet keeps as many bytes; not every site is a kubelet."""


def split_objects(listed: Iterable[Manifest], now: float) -> tuple[tuple[PodView, ...], dict[ObjectKey, ObjectView]]:
    """Pods in order of their names, and everything else by kind and name."""
    pods, objects = [], {}
    for manifest in listed:
        if manifest["kind"] == "Pod":
            pods.append(pod_view(manifest, now))
        else:
            objects[(manifest["kind"], manifest["metadata"]["name"])] = object_view(manifest)
    return tuple(sorted(pods, key=lambda pod: pod.name)), objects


def object_view(manifest: Manifest) -> ObjectView:
    metadata = manifest["metadata"]
    return ObjectView(
        uid=metadata["uid"],
        spec_hash=metadata.get("annotations", {}).get(names.ANNOTATION_SPEC_HASH, ""),
        origin=metadata.get("labels", {}).get(names.LABEL_ORIGIN, ""),
        deleting="deletionTimestamp" in metadata,
        addresses=_ingress(manifest),
        node_port=_node_port(manifest),
        problem=str(_condition(manifest.get("status", {}), "ReplicaFailure", "True").get("message", "")),
    )


def _ingress(manifest: Manifest) -> tuple[str, ...]:
    """Hosts of a Service of type LoadBalancer."""
    ingress = manifest.get("status", {}).get("loadBalancer", {}).get("ingress") or []
    return tuple(str(entry.get("ip") or entry.get("hostname")) for entry in ingress)


def _node_port(manifest: Manifest) -> int:
    ports = manifest.get("spec", {}).get("ports") or [] if manifest["kind"] == "Service" else []
    return next((int(port.get("nodePort", 0)) for port in ports if port.get("name") == "grpc"), 0)


def pod_view(manifest: Manifest, now: float) -> PodView:
    """The first container stands for the pod. Missing status: a pod that was just created.

    A kubelet never says that all containers are ready and the pod is not (ours have no readiness gates): the cluster
    does, of pods on a node it does not hear.
    """
    metadata, status = manifest["metadata"], manifest.get("status", {})
    labels = metadata.get("labels", {})
    container: Manifest = next(iter(status.get("containerStatuses", [])), {})
    state = container.get("state", {})
    waiting, running = state.get("waiting", {}), state.get("running", {})
    since = running.get("startedAt") or metadata.get("creationTimestamp")
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(names.LABEL_ROLE, ""),
        index=int(labels.get(names.LABEL_LEARNER_INDEX, -1)),
        incarnation=int(labels.get(names.LABEL_INCARNATION, 0)),
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in metadata,
        delete_by=_delete_by(metadata),
        ended=_ended(state.get("terminated")),
        last_ended=_ended(container.get("lastState", {}).get("terminated")),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        restarts=container.get("restartCount", 0),
        pod_reason=_pod_reason(status),
        age_seconds=max(0.0, now - to_seconds(since)) if since else 0.0,
        created_at=to_seconds(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0.0,
        disruption=_condition(status, "DisruptionTarget", "True").get("reason", ""),
        unscheduled=_condition(status, "PodScheduled", "False").get("reason", ""),
        unscheduled_message=_condition(status, "PodScheduled", "False").get("message", ""),
        origin=labels.get(names.LABEL_ORIGIN, ""),
        node_silent=bool(_condition(status, "Ready", "False") and _condition(status, "ContainersReady", "True")),
    )


def _delete_by(metadata: Manifest) -> float | None:
    """Kubernetes sets deletionTimestamp to when the grace period will be over."""
    return to_seconds(metadata["deletionTimestamp"]) if "deletionTimestamp" in metadata else None


def _ended(terminated: Manifest | None) -> Ended | None:
    if terminated is None:
        return None
    started, finished = terminated.get("startedAt"), terminated.get("finishedAt")
    return Ended(
        exit_code=terminated["exitCode"],
        reason=terminated.get("reason", ""),
        message=terminated.get("message", "")[-MAX_LAST_WORDS:],
        ran_seconds=to_seconds(finished) - to_seconds(started) if started and finished else 0.0,
    )


def _pod_reason(status: Manifest) -> str:
    """The kubelet's word says more: of what it ends itself it tells pressure and shutdown apart only by that."""
    return str(
        status.get("reason", "") or ("DisruptionTarget" if _condition(status, "DisruptionTarget", "True") else "")
    )


def _condition(status: Manifest, kind: str, value: str) -> Manifest:
    """The condition of that type when it has that status, else an empty one."""
    found = (each for each in status.get("conditions", []) if (each["type"], each["status"]) == (kind, value))
    return next(found, {})
