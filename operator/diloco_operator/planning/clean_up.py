"""Which of a job's objects should exist, and what to do about those that do not match.

Pods of older incarnations and surplus Secrets go; configuration comes before what reads it. The Synchronizer goes last,
its volume claim never.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from diloco_api import names
from diloco_api.names import Role
from diloco_api.status import LearnerStatus
from diloco_operator.planning.types import Action, Apply, Delete, Manifest, ObjectKey, Observed, SiteView

_KEPT_KINDS = frozenset({"PersistentVolumeClaim"})


def differences(
    site: SiteView, desired: Mapping[ObjectKey, Manifest], keep: Collection[ObjectKey] = ()
) -> list[Action]:
    """Apply what is missing or differs by its spec-hash, delete what is not desired. Pods are not looked at.

    `keep`: stays as it is, whatever that is.
    """
    if site.unreachable:
        return []
    actions: list[Action] = []
    for key, manifest in desired.items():
        present = site.objects.get(key)
        wanted_hash = manifest["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
        if present is None or (present.spec_hash != wanted_hash and key[0] not in _KEPT_KINDS):
            actions.append(Apply(site.name, manifest))
    return actions + removals(site, [key for key in site.objects if key not in desired and key not in keep])


def removals(site: SiteView, keys: Iterable[ObjectKey]) -> list[Action]:
    """Delete these objects, but no data."""
    return [
        Delete(site.name, kind, name, site.objects[kind, name].uid)
        for kind, name in keys
        if kind not in _KEPT_KINDS and not site.objects[kind, name].deleting
    ]


def surplus_pods(site: SiteView, rows: Mapping[int, LearnerStatus], keep: frozenset[int]) -> list[Action]:
    """Learner pods that are not the present incarnation of an index in `keep`."""
    return [
        Delete(site.name, "Pod", pod.name, pod.uid)
        for pod in site.pods
        if pod.role == Role.LEARNER
        and not pod.deleting
        and not (
            pod.index in keep and pod.index in rows
            and (rows[pod.index].site, rows[pod.index].incarnation) == (site.name, pod.incarnation)
        )
    ]  # fmt: skip


def teardown(sites: Iterable[SiteView], *, spare_learners: bool) -> list[Action]:
    """Everything but data: Learners first, the Synchronizer and all else when no Learner is left at any site.

    A site that cannot be reached is not waited for. `spare_learners`: those still running are about to end by
    themselves.
    """
    actions: list[Action] = []
    by_site = [(site, [pod for pod in site.pods if pod.role == Role.LEARNER]) for site in sites]
    any_learner = any(learners for _, learners in by_site)
    for site, learners in by_site:
        actions += [
            Delete(site.name, "Pod", pod.name, pod.uid)
            for pod in learners
            if not pod.deleting and (pod.finished or not spare_learners)
        ]
        if not any_learner:
            actions += removals(site, site.objects)
    return actions


def without_outlived(observed: Observed, limit: float) -> Observed:
    """What was observed, without pods whose grace period was over before `limit`.

    Their node is lost: they go by themselves when it is back or removed, and an end that waited for that might never
    come.
    """
    sites = [
        replace(site, pods=tuple(pod for pod in site.pods if pod.delete_by is None or pod.delete_by >= limit))
        for site in observed.sites
    ]
    return replace(observed, sites=tuple(sites))


def is_clean(sites: Iterable[SiteView]) -> bool:
    """Nothing of the job is left but its data, as far as sites can be asked."""
    return all(not site.unreachable and is_empty(site) for site in sites)


def is_empty(site: SiteView) -> bool:
    """Nothing but data was seen there."""
    return not site.pods and all(kind in _KEPT_KINDS for kind, _ in site.objects)
