"""A site from its chart to a check that passes, by the notes and the program alone."""

from pathlib import Path

import pytest

from clusters import charts
from clusters.api import Api


@pytest.fixture
def kubeconfig(hub, site_1, new_namespace, tmp_path: Path):
    """(namespace, kubeconfig file) of a site made as the chart's notes say; the namespace is there on the hub, too."""
    namespace = new_namespace(hub, site_1)
    return namespace, charts.site_kubeconfig(site_1, namespace, tmp_path)


def test_a_site_made_as_the_notes_say_passes_every_check(hub, site_1, kubeconfig):
    namespace, file = kubeconfig
    added = charts.diloco(hub, "site", "add", "far", "--kubeconfig", str(file), "--namespace", namespace)
    assert (added.returncode, added.stderr) == (0, "")
    secret = Api(hub).get("v1", "Secret", namespace, "far")
    assert secret is not None
    assert secret["metadata"]["labels"] == {"diloco.dev/kubeconfig": "true"}
    checked = charts.diloco(hub, "site", "check", "far", "--namespace", namespace)
    assert checked.returncode == 0, checked.stdout
    verdicts = [line.split()[1 if not line.startswith("rights:") else 2] for line in checked.stdout.splitlines()[1:]]
    assert set(verdicts) == {"ok"}
    kube_system = Api(site_1).get("v1", "Namespace", None, "kube-system")
    assert kube_system is not None
    assert kube_system["metadata"]["uid"] in checked.stdout
    again = charts.diloco(hub, "site", "add", "far", "--kubeconfig", str(file), "--namespace", namespace)
    assert "Secret far unchanged" in again.stdout


def test_a_right_taken_away_is_named(hub, site_1, kubeconfig):
    namespace, file = kubeconfig
    charts.diloco(hub, "site", "add", "far", "--kubeconfig", str(file), "--namespace", namespace)
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/diloco-diloco-site"
    rules = Api(site_1).request("GET", role)["rules"]
    for rule in rules:
        if "secrets" in rule["resources"]:
            rule["verbs"].remove("patch")
    Api(site_1).patch(role, {"rules": rules})
    checked = charts.diloco(hub, "site", "check", "far", "--namespace", namespace)
    assert checked.returncode == 1
    failed = [" ".join(line.split()) for line in checked.stdout.splitlines() if " failed " in line]
    assert failed == ["rights: configmaps failed may not patch", "rights: secrets failed may not patch"]


def test_a_namespace_that_is_not_there_is_said_so(hub, site_1, new_namespace):
    namespace = new_namespace(hub)
    charts.diloco(hub, "site", "add", "admin", "--kubeconfig", str(site_1.kubeconfig), "--namespace", namespace)
    checked = charts.diloco(hub, "site", "check", "admin", "-n", namespace, "--site-namespace", "not-there")
    assert checked.returncode == 1
    assert "there is no namespace not-there in that cluster" in checked.stdout


def test_mistakes_are_one_line_each(hub, site_1, new_namespace, tmp_path: Path):
    namespace = new_namespace(hub)
    bad = tmp_path / "exec.kubeconfig"
    bad.write_text(
        site_1.kubeconfig.read_text().replace('"client-key-data"', '"exec": {"command": "true"}, "client-key-data"')
    )
    for arguments, code, said in (
        (["site", "add", "far", "--kubeconfig", str(bad)], 2, "user.exec is refused"),
        (["site", "check", "never-added"], 2, "there is no Secret never-added"),
        (["status", "no-job"], 2, "there is no job no-job"),
        (["logs", "no-job"], 2, "there is no job no-job"),
    ):
        answer = charts.diloco(hub, *arguments, "--namespace", namespace)
        assert (answer.returncode, answer.stderr.count("\n")) == (code, 1), answer.stderr
        assert answer.stderr.startswith("error: ")
        assert said in answer.stderr
    answer = charts.diloco(hub, "site", "add", "far", "--kubeconfig", str(site_1.kubeconfig), "-n", "no-such-namespace")
    assert (answer.returncode, 'namespaces "no-such-namespace" not found' in answer.stderr) == (1, True)
