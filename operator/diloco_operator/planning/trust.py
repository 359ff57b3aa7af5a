"""Whether a site is what it was taken for: the same cluster as before, and not another site under a second name.

What is said by one that is not counts for nothing, and neither does what another installation made there.
"""

from collections.abc import Sequence
from dataclasses import replace

from diloco_api import names
from diloco_api.states import Reason
from diloco_api.status import SiteStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.sites import SiteRef
from diloco_operator.planning.types import Observed, OperatorPolicy, SiteView


def origin_of(job: DiLoCoJob, policy: OperatorPolicy) -> str:
    """By what label the job's objects are known: it stays with the job when the installation is made anew."""
    accepted = job.status.resolved.origin if job.status.resolved is not None else ""
    return accepted or names.label_value(policy.origin)


def of_origin(observed: Observed, origin: str) -> Observed:
    """Without what carries the job's uid and was made by somebody else. On one machine there is nobody else."""
    if not origin:
        return observed
    sites = [
        replace(
            view,
            pods=tuple(pod for pod in view.pods if pod.origin == origin),
            objects={key: found for key, found in view.objects.items() if found.origin == origin},
        )
        for view in observed.sites
    ]
    return replace(observed, sites=tuple(sites))


def trusted(observed: Observed, refs: Sequence[SiteRef], before: Sequence[SiteStatus]) -> Observed:
    """What was observed, without what another cluster said, or the same one under two names."""
    known = {row.name: row.cluster_uid for row in before}
    namespaces = {ref.name: ref.namespace for ref in refs}
    seen: dict[tuple[str, str], str] = {}
    views = []
    for view in observed.sites:
        target = (view.cluster_uid, namespaces.get(view.name, view.name))
        if view.cluster_uid and known.get(view.name, "") not in ("", view.cluster_uid):
            text = "its credentials lead to another cluster than before"
            view = SiteView(view.name, Reason.CLUSTER_IDENTITY_CHANGED.value, text)
        elif view.cluster_uid and target in seen:
            text = f"its credentials lead to the namespace of site {seen[target]}"
            view = SiteView(view.name, Reason.SAME_CLUSTER.value, text)
        elif view.cluster_uid:
            seen[target] = view.name
        views.append(view)
    return replace(observed, sites=tuple(views))
