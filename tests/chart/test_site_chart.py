"""The site's chart: an account that may do in one namespace what Learners need, and the way to its kubeconfig."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from chart.rendering import SITE, notes, of_kind, render, rights
from chart.variants import SITE_VARIANTS
from diloco_cli.site_rights import NEEDED

IN_THE_NAMESPACE = {
    *(("", "pods", "", verb) for verb in ("get", "list", "watch", "create", "delete")),
    *(
        (group, resource, "", verb)
        for group, resource in (("", "configmaps"), ("", "secrets"), ("networking.k8s.io", "networkpolicies"))
        for verb in ("get", "list", "create", "patch", "delete")
    ),
}
LOGS = {("", "pods/log", "", "get")}
IDENTITY = {("", "namespaces", "kube-system", "get")}
NODES = {("", "nodes", "", "list"), ("", "nodes", "", "watch")}


@pytest.mark.parametrize(
    ("variant", "in_namespace", "in_cluster"),
    [
        ("default", IN_THE_NAMESPACE | LOGS, []),
        ("full", IN_THE_NAMESPACE | LOGS, [NODES]),
        ("minimal", IN_THE_NAMESPACE, []),
    ],
)
def test_the_account_has_exactly_these_rights(
    variant: str, in_namespace: set[tuple[str, ...]], in_cluster: list[set[tuple[str, ...]]]
) -> None:
    documents = render(SITE, SITE_VARIANTS[variant], namespace="train")
    granted = {role["metadata"]["namespace"]: rights(role) for role in of_kind(documents, "Role")}
    assert granted == {"train": in_namespace, "kube-system": IDENTITY}
    assert [rights(role) for role in of_kind(documents, "ClusterRole")] == in_cluster
    account = of_kind(documents, "ServiceAccount")[0]["metadata"]["name"]
    for binding in of_kind(documents, "RoleBinding") + of_kind(documents, "ClusterRoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "train"}]


def test_what_a_check_of_a_site_asks_for_is_what_the_chart_grants() -> None:
    def asked(optional: bool) -> set[tuple[str, str, str, str]]:
        return {(one.group, one.resource, "", verb) for one in NEEDED
                if bool(one.optional_for) == optional for verb in one.verbs}  # fmt: skip

    assert asked(optional=False) == IN_THE_NAMESPACE
    assert asked(optional=True) == LOGS


def test_two_sites_of_one_cluster_share_no_object() -> None:
    first, second = (
        {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in render(
            SITE, SITE_VARIANTS["full"], namespace=namespace)}
        for namespace in ("team-a", "team-b")
    )  # fmt: skip
    assert first & second == set()


@pytest.mark.parametrize("variant", ["default", "full", "minimal"])
def test_the_recipe_of_the_notes_makes_a_kubeconfig_the_operator_takes(variant: str, tmp_path: Path) -> None:
    """Run by a shell, with a kubectl that answers as one whose cluster has the chart installed."""
    script = notes(SITE, SITE_VARIANTS[variant], namespace="train").partition("operator:\n")[2].partition("2. With")[0]
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(_KUBECTL)
    kubectl.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, check=True, timeout=20)
    found = yaml.safe_load((tmp_path / "site.kubeconfig").read_text())
    server = "https://site.example.com:6443" if variant == "full" else "https://from-kubectl:6443"
    assert found["clusters"][0]["cluster"] == {"server": server, "certificate-authority-data": "Y2VydGlmaWNhdGU="}
    assert found["users"][0]["user"] == {"token": "secret-token"}
    assert found["current-context"] == found["contexts"][0]["name"]


_KUBECTL = r"""#!/usr/bin/env bash
case "$*" in
    *"config view"*) printf https://from-kubectl:6443 ;;
    *"get secret diloco-diloco-site-token"*"ca\.crt"*) printf Y2VydGlmaWNhdGU= ;;
    *"get secret diloco-diloco-site-token"*"{.data.token}"*) printf secret-token | base64 ;;
    *"get configmap kube-root-ca.crt"*) printf certificate ;;
    *"create token diloco-diloco-site"*) printf secret-token ;;
    *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""
