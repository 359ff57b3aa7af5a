"""The kinds of objects a job is made of, and how an API server calls them: one table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from diloco_operator.sites.site import SiteInvalid

_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True)
class Kind:
    """One kind of namespaced object."""

    name: str
    api: str
    """Path of its group and version."""
    plural: str
    metadata_only: bool = False
    """Listed without its content, which is secret or large."""
    watched: bool = False
    """Its changes wake the job: something of its status is observed."""

    @property
    def api_version(self) -> str:
        return self.api.removeprefix("/apis/").removeprefix("/api/")

    def path(self, namespace: str) -> str:
        """Of all its objects in a namespace."""
        return f"{self.api}/namespaces/{_checked(namespace)}/{self.plural}"

    def object_path(self, namespace: str, name: str) -> str:
        return f"{self.path(namespace)}/{_checked(name)}"


def _checked(name: str) -> str:
    """SiteInvalid for names that could mean another path."""
    if len(name) > 253 or not _DNS_SUBDOMAIN.fullmatch(name):
        raise SiteInvalid(f"{name!r} is no name of an object")
    return name


POD = Kind("Pod", "/api/v1", "pods", watched=True)
SECRET = Kind("Secret", "/api/v1", "secrets", metadata_only=True)
CONFIG_MAP = Kind("ConfigMap", "/api/v1", "configmaps", metadata_only=True)
NETWORK_POLICY = Kind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies")

SITE_KINDS: tuple[Kind, ...] = (POD, SECRET, CONFIG_MAP, NETWORK_POLICY)
"""What Learners need, and all that an operator may see in a site other than the hub."""

HUB_KINDS: tuple[Kind, ...] = (
    *SITE_KINDS,
    Kind("Service", "/api/v1", "services", watched=True),
    Kind("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
    Kind("Deployment", "/apis/apps/v1", "deployments", watched=True),
    Kind("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
)
"""Those, and what the Synchronizer needs."""


def by_name(kinds: tuple[Kind, ...]) -> Mapping[str, Kind]:
    return {kind.name: kind for kind in kinds}
