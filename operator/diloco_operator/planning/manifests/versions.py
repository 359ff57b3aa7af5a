"""The ways in which a job's pods are written down, by version: images of one time fit the pods of that time.

A job keeps the version it was accepted with, for every pod it will ever have; a new one is for new jobs. Once images of
a version are in use, what it writes changes only in ways that those images do not notice; anything else is a new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diloco_api.sites import NodePoolSpec
from diloco_api.status import LearnerStatus, ResolvedStatus
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.manifests.common import Home
from diloco_operator.planning.manifests.learner import LearnerKit, learner_pod
from diloco_operator.planning.manifests.synchronizer import synchronizer_deployment
from diloco_operator.planning.types import Manifest


@dataclass(frozen=True)
class PodTemplates:
    """Of one version."""

    learner: Callable[[LearnerKit, LearnerStatus, NodePoolSpec | None], Manifest]
    synchronizer: Callable[[Home, ResolvedStatus, str, str, Timeouts], Manifest]


TEMPLATES: Mapping[int, PodTemplates] = {1: PodTemplates(learner_pod, synchronizer_deployment)}
TEMPLATE_VERSION = max(TEMPLATES)
"""For new jobs."""


def templates_of(version: int, known: Mapping[int, PodTemplates] = TEMPLATES) -> PodTemplates:
    """Those of a job; the newest there are, where a newer operator accepted it and this one has come back."""
    return known[min(version, max(known))]
