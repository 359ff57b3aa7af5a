"""`diloco logs`: which pod a Learner or the Synchronizer has now, in which cluster, and its log."""

from collections.abc import Iterator
from dataclasses import dataclass

from diloco_api import names
from diloco_api.names import Role
from diloco_api.status import LearnerStatus
from diloco_cli.cluster import BadCredentials, Cluster, ClusterError, Document
from diloco_cli.job_status import status_of_job
from diloco_cli.site_commands import OpenSite, read_site


@dataclass(frozen=True)
class PodPlace:
    """One pod and the cluster it is in."""

    cluster: Cluster
    namespace: str
    pod: str
    role: Role
    gone: str = ""
    """What is said when the pod is not there any more."""

    def lines(self, follow: bool, tail: int | None) -> Iterator[str]:
        """Its log; ClusterError when there is none to be had."""
        query = {"container": self.role.value}
        if follow:
            query["follow"] = "true"
        if tail is not None:
            query["tailLines"] = str(tail)
        try:
            yield from self.cluster.lines(_pods_path(self.namespace, self.pod) + "/log", query=query)
        except ClusterError as error:
            if error.status == 404 and self.gone:
                raise ClusterError(self.gone, 404) from error
            raise


def find_learner(hub: Cluster, job: Document, index: int, open_site: OpenSite) -> PodPlace:
    """The newest incarnation's pod, at whichever site it was placed."""
    rows = status_of_job(job).learner_statuses
    row = next((row for row in rows if row.index == index), None)
    metadata = job["metadata"]
    if row is None:
        known = ", ".join(str(row.index) for row in rows) or "none yet"
        raise BadCredentials(f"job {metadata['name']} has no Learner {index}; it has {known}")
    cluster, namespace = _site(hub, job, row.site, open_site)
    return PodPlace(cluster, namespace, row.pod_name, Role.LEARNER, _gone(row))


def find_synchronizer(hub: Cluster, job: Document) -> PodPlace:
    """The newest pod of its Deployment, at the hub."""
    metadata = job["metadata"]
    selector = f"{names.LABEL_JOB_UID}={metadata['uid']},{names.LABEL_ROLE}={Role.SYNCHRONIZER.value}"
    pods = hub.request("GET", _pods_path(metadata["namespace"]), query={"labelSelector": selector}).get("items") or []
    if not pods:
        raise ClusterError(f"the Synchronizer of job {metadata['name']} has no pod now")
    newest = max(pods, key=_age_key)
    return PodPlace(hub, metadata["namespace"], newest["metadata"]["name"], Role.SYNCHRONIZER)


def _age_key(pod: Document) -> tuple[bool, str]:
    """One that is not being deleted before one that is; then the youngest."""
    metadata = pod["metadata"]
    return "deletionTimestamp" not in metadata, str(metadata.get("creationTimestamp", ""))


def _site(hub: Cluster, job: Document, name: str, open_site: OpenSite) -> tuple[Cluster, str]:
    here = job["metadata"]["namespace"]
    sites: list[Document] = job["spec"].get("sites") or []
    spec = next((site for site in sites if site["name"] == name), None)
    if spec is None and sites:
        raise BadCredentials(f"the job's spec has no site {name} any more")
    reference = (spec or {}).get("kubeconfigSecretRef")
    if reference is None:
        return hub, here
    kubeconfig = read_site(hub, here, reference["name"])
    return open_site(kubeconfig), (spec or {}).get("namespace") or here


def _gone(row: LearnerStatus) -> str:
    said = ": ".join(part for part in (row.state, row.reason, row.message) if part)
    return f"pod {row.pod_name} is not there at site {row.site} (Learner {row.index} is {said})"


def _pods_path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")
