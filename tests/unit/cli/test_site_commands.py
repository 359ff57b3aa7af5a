"""Sites: the Secret that is laid down, and what a check finds. The clusters are fakes."""

import base64
import json
from pathlib import Path

import pytest
import yaml

from diloco_cli.cluster import BadCredentials, Cluster, ClusterError, Document, read_site_file
from diloco_cli.site_commands import Finding, add_site, check_site, is_usable, read_site
from diloco_cli.site_rights import NEEDED
from diloco_operator.sites.kubeconfig import parse_kubeconfig
from fakes.authority import Authority
from fakes.clusters import FakeCluster, forbidden, kubeconfig_secret

SECRETS = "/api/v1/namespaces/jobs/secrets"
SECRET = f"{SECRETS}/site-1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KUBE_SYSTEM = "/api/v1/namespaces/kube-system"
CONFIG_MAPS = "/api/v1/namespaces/train/configmaps"


def test_a_new_site_gets_a_labelled_secret() -> None:
    hub = FakeCluster({("POST", SECRETS): {}})
    assert add_site(hub, "jobs", "site-1", b"content") == "created"
    ((_, _, secret),) = hub.writes
    assert secret["metadata"] == {"name": "site-1", "labels": {"diloco.dev/kubeconfig": "true"}}
    assert secret["data"] == {"kubeconfig": base64.b64encode(b"content").decode()}


def test_a_new_kubeconfig_takes_the_place_of_the_old_one_that_was_read() -> None:
    hub = FakeCluster({("GET", SECRET): kubeconfig_secret(content=b"old"), ("PATCH", SECRET): {}})
    assert add_site(hub, "jobs", "site-1", b"new") == "updated"
    ((_, _, patch),) = hub.writes
    assert patch == {
        "metadata": {"resourceVersion": "7"},
        "data": {"kubeconfig": base64.b64encode(b"new").decode()},
    }


def test_the_same_kubeconfig_is_not_written_again() -> None:
    hub = FakeCluster({("GET", SECRET): kubeconfig_secret(content=b"same")})
    assert add_site(hub, "jobs", "site-1", b"same") == "unchanged"
    assert hub.writes == []


@pytest.mark.parametrize("labels", [{}, None, {"diloco.dev/kubeconfig": "false"}])
def test_a_secret_that_is_not_a_sites_is_left_alone(labels: dict[str, str] | None) -> None:
    secret = kubeconfig_secret()
    secret["metadata"]["labels"] = labels
    hub = FakeCluster({("GET", SECRET): secret})
    with pytest.raises(BadCredentials, match="is there already and is not a site's"):
        add_site(hub, "jobs", "site-1", b"new")
    with pytest.raises(BadCredentials, match="lacks the label"):
        read_site(hub, "jobs", "site-1")
    assert hub.writes == []


def test_a_site_that_was_never_added_is_said_so() -> None:
    with pytest.raises(
        BadCredentials, match=r"there is no Secret site-1 in namespace jobs \(diloco site add makes it\)"
    ):
        read_site(FakeCluster(), "jobs", "site-1")


def kubeconfig(authority: Authority, *more: str) -> Document:
    """With a context beside the current one, for each of `more`."""
    names = ("site", *more)
    ca = base64.b64encode(authority.pem.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{name}.example.com:6443", "certificate-authority-data": ca}}
            for name in names
        ],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"}} for name in names],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in names],
        "current-context": "site",
    }


def test_of_a_kubeconfig_file_the_operator_gets_the_current_context_alone(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(kubeconfig(Authority("ours"), "production")))
    content = read_site_file(file)
    assert b"production" not in content
    assert parse_kubeconfig(content) == parse_kubeconfig(file.read_bytes())


def test_client_certificates_survive_the_way_to_the_secret(tmp_path: Path) -> None:
    authority = Authority("ours")
    document = kubeconfig(authority)
    certificate, key = authority.client("admin")
    document["users"][0]["user"] = {
        "client-certificate-data": base64.b64encode(certificate.encode()).decode(),
        "client-key-data": base64.b64encode(key.encode()).decode(),
    }
    file = tmp_path / "config"
    file.write_text(json.dumps(document))
    assert parse_kubeconfig(read_site_file(file)) == parse_kubeconfig(file.read_bytes())


def test_a_kubeconfig_the_operator_would_refuse_is_refused_with_its_path_and_without_its_token(tmp_path: Path) -> None:
    document = kubeconfig(Authority("ours"))
    document["users"][0]["user"]["exec"] = {"command": "aws"}
    file = tmp_path / "config"
    file.write_text(json.dumps(document))
    with pytest.raises(BadCredentials, match=r"config: user\.exec is refused: no program is run") as refused:
        read_site_file(file)
    assert "token-of-site" not in str(refused.value)
    with pytest.raises(BadCredentials, match="missing: No such file"):
        read_site_file(tmp_path / "missing")


def site(**changes: object) -> FakeCluster:
    """One at which everything is as it should be; `lacks` are verbs on pods/log and others that are not granted."""
    lacks = changes.pop("lacks", ())

    def review(body: Document | None) -> Document:
        assert body is not None
        asked = body["spec"]["resourceAttributes"]
        assert asked["namespace"] == "train"
        name = "/".join(part for part in (asked["resource"], asked.get("subresource")) if part)
        return {"status": {"allowed": (name, asked["verb"]) not in lacks}}  # type: ignore[operator]

    cluster = FakeCluster({
        ("GET", "/version"): {"gitVersion": "v1.34.4"},
        ("GET", KUBE_SYSTEM): {"metadata": {"uid": "1234"}},
        ("POST", CONFIG_MAPS): {},
        ("POST", REVIEWS): review,
    })  # fmt: skip
    cluster.answers.update(changes.pop("answers", {}))  # type: ignore[call-overload]
    return cluster


def found(cluster: Cluster) -> dict[str, Finding]:
    return {finding.what: finding for finding in check_site(b"", "train", lambda _: cluster)}


def test_a_site_that_can_be_used_passes_every_row() -> None:
    findings = found(site())
    assert [finding.verdict for finding in findings.values()] == ["ok"] * (4 + len(NEEDED))
    assert findings["identity"].detail == "cluster 1234"
    assert findings["namespace"].detail.startswith("train")
    assert is_usable(list(findings.values()))


def test_nothing_is_left_behind_by_a_check() -> None:
    cluster = site()
    queries: list[object] = []
    request = cluster.request
    cluster.request = lambda *a, **more: (queries.append((a[0], a[1], more.get("query"))), request(*a, **more))[1]  # type: ignore[method-assign,assignment]
    check_site(b"", "train", lambda _: cluster)
    assert ("POST", CONFIG_MAPS, {"dryRun": "All"}) in queries
    assert {path for _, path, _ in cluster.writes} == {CONFIG_MAPS, REVIEWS}


def test_a_missing_right_is_named_and_makes_the_site_unusable() -> None:
    findings = found(site(lacks={("secrets", "patch"), ("secrets", "delete")}))
    assert findings["rights: secrets"] == Finding("rights: secrets", "failed", "may not patch, delete")
    assert findings["rights: pods"].verdict == "ok"
    assert not is_usable(list(findings.values()))


def test_a_right_that_only_serves_logs_may_be_missing() -> None:
    findings = found(site(lacks={("pods/log", "get")}))
    assert findings["rights: pods/log"].verdict == "missing"
    assert "diloco logs" in findings["rights: pods/log"].detail
    assert is_usable(list(findings.values()))


@pytest.mark.parametrize(
    ("path", "error", "row", "said"),
    [
        (
            ("POST", CONFIG_MAPS),
            ClusterError('namespaces "train" not found', 404),
            "namespace",
            "there is no namespace",
        ),
        (("POST", CONFIG_MAPS), forbidden("configmaps"), "namespace", "nothing may be made in train"),
        (("GET", KUBE_SYSTEM), forbidden("namespaces"), "identity", "may not read the namespace kube-system"),
    ],
)
def test_what_is_wrong_is_said_in_its_row_and_the_others_are_asked_all_the_same(
    path: tuple[str, str], error: ClusterError, row: str, said: str
) -> None:
    findings = found(site(answers={path: error}))
    assert findings[row].verdict == "failed"
    assert said in findings[row].detail
    assert findings["rights: pods"].verdict == "ok"
    assert not is_usable(list(findings.values()))


def test_a_site_that_does_not_answer_is_not_asked_for_the_rest() -> None:
    findings = found(site(answers={("GET", "/version"): ClusterError("https://x does not answer: timed out")}))
    assert findings["reachable"].verdict == "failed"
    assert [findings[what].verdict for what in ("identity", "namespace", "rights")] == ["not asked"] * 3
    assert "timed out" in findings["reachable"].detail


def test_a_site_that_stops_answering_half_way_is_not_usable() -> None:
    findings = found(site(answers={("POST", REVIEWS): ClusterError("https://x does not answer: reset")}))
    assert findings["rights"] == Finding("rights", "failed", "https://x does not answer: reset")
    assert not is_usable(list(findings.values()))


def test_a_kubeconfig_that_is_refused_is_the_only_thing_found() -> None:
    def refuse(_: bytes) -> Cluster:
        raise BadCredentials("user.exec is refused")

    findings = check_site(b"", "train", refuse)
    assert [finding.verdict for finding in findings] == ["failed", *["not asked"] * 4]
    assert not is_usable(findings)
