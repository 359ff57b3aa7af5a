"""`diloco site add` and `diloco site check`: the Secret by which the hub's operator uses another cluster.

The check is made from this machine with the site's own credentials; it does not prove that the hub reaches the site.
"""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from diloco_cli.cluster import BadCredentials, Cluster, ClusterError, Document, find
from diloco_cli.site_rights import NEEDED, Needed
from diloco_operator.kubeconfigs import KEY_KUBECONFIG, LABEL_KUBECONFIG

_ASKED = ("reachable", "identity", "namespace", "rights")

OpenSite = Callable[[bytes], Cluster]


@dataclass(frozen=True)
class Finding:
    """One row of a check."""

    what: str
    verdict: Literal["ok", "missing", "failed", "not asked"]
    detail: str


def secret_path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/secrets" + (f"/{name}" if name else "")


def add_site(hub: Cluster, namespace: str, name: str, kubeconfig: bytes) -> Literal["created", "updated", "unchanged"]:
    """Lay the Secret down, or renew it. A Secret that is not a site's is left alone."""
    found = find(hub, secret_path(namespace, name))
    data = {KEY_KUBECONFIG: base64.b64encode(kubeconfig).decode()}
    if found is None:
        metadata = {"name": name, "labels": {LABEL_KUBECONFIG: "true"}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
        hub.request("POST", secret_path(namespace), secret)
        return "created"
    if not _is_site(found):
        raise BadCredentials(
            f"Secret {name} in namespace {namespace} is there already and is not a site's "
            f"(no label {LABEL_KUBECONFIG}); choose another name"
        )
    if found.get("data") == data:
        return "unchanged"
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    hub.request("PATCH", secret_path(namespace, name), {"metadata": version, "data": data})
    return "updated"


def read_site(hub: Cluster, namespace: str, name: str) -> bytes:
    """The kubeconfig of a site; BadCredentials where the operator would find none either."""
    found = find(hub, secret_path(namespace, name))
    if found is None:
        raise BadCredentials(f"there is no Secret {name} in namespace {namespace} (diloco site add makes it)")
    if not _is_site(found):
        raise BadCredentials(f'Secret {name} in namespace {namespace}: lacks the label {LABEL_KUBECONFIG}: "true"')
    encoded = (found.get("data") or {}).get(KEY_KUBECONFIG)
    if encoded is None:
        raise BadCredentials(f"Secret {name} in namespace {namespace}: has no key {KEY_KUBECONFIG}")
    return base64.b64decode(encoded)


def check_site(kubeconfig: bytes, namespace: str, open_site: OpenSite) -> list[Finding]:
    """Row by row what was found; once the site does not answer, the rest is not asked."""
    try:
        site = open_site(kubeconfig)
    except BadCredentials as error:
        return [
            Finding("kubeconfig", "failed", str(error)),
            *_not_asked(*_ASKED),
        ]
    findings = [Finding("kubeconfig", "ok", f"leads to {site.server}")]
    try:
        version = site.request("GET", "/version").get("gitVersion", "")
        findings.append(Finding("reachable", "ok", f"from this machine; Kubernetes {version}"))
        findings.append(_identity(site))
        findings.append(_namespace(site, namespace))
        findings += _rights(site, namespace)
    except ClusterError as error:
        # Rights are told row by row, so `rights` itself is never among what is done.
        done = {finding.what for finding in findings}
        first, *left = [what for what in _ASKED if what not in done]
        findings += [Finding(first, "failed", str(error)), *_not_asked(*left)]
    return findings


def is_usable(findings: list[Finding]) -> bool:
    return all(finding.verdict in ("ok", "missing") for finding in findings)


def _is_site(secret: Document) -> bool:
    labels = secret["metadata"].get("labels") or {}
    return bool(labels.get(LABEL_KUBECONFIG) == "true")


def _not_asked(*what: str) -> list[Finding]:
    return [Finding(one, "not asked", "") for one in what]


def _identity(site: Cluster) -> Finding:
    """The operator recognises a cluster by the uid of its namespace kube-system."""
    try:
        found = site.request("GET", "/api/v1/namespaces/kube-system")
    except ClusterError as error:
        if error.status != 403:
            raise
        return Finding("identity", "failed", f"may not read the namespace kube-system: {error}")
    return Finding("identity", "ok", f"cluster {found['metadata']['uid']}")


def _namespace(site: Cluster, namespace: str) -> Finding:
    """By a ConfigMap that is only tried: namespaces themselves may be unreadable, and are for an operator."""
    trial = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "diloco-site-check-"}}
    try:
        site.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", trial, query={"dryRun": "All"})
    except ClusterError as error:
        if error.status == 404:
            return Finding("namespace", "failed", f"there is no namespace {namespace} in that cluster")
        if error.status == 403:
            return Finding("namespace", "failed", f"nothing may be made in {namespace}, if it exists: {error}")
        raise
    return Finding("namespace", "ok", f"{namespace}, objects can be made")


def _rights(site: Cluster, namespace: str) -> Iterator[Finding]:
    for needed in NEEDED:
        lacking = [verb for verb in needed.verbs if not _may(site, namespace, needed, verb)]
        name = f"{needed.resource}.{needed.group}" if needed.group else needed.resource
        if not lacking:
            yield Finding(f"rights: {name}", "ok", ", ".join(needed.verbs))
        elif needed.optional_for:
            yield Finding(f"rights: {name}", "missing", f"{', '.join(lacking)}; only needed for {needed.optional_for}")
        else:
            yield Finding(f"rights: {name}", "failed", f"may not {', '.join(lacking)}")


def _may(site: Cluster, namespace: str, needed: Needed, verb: str) -> bool:
    resource, _, subresource = needed.resource.partition("/")
    attributes = {"namespace": namespace, "group": needed.group, "resource": resource, "verb": verb}
    if subresource:
        attributes["subresource"] = subresource
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = site.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))
