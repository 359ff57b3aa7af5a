"""Pod templates: what they may hold, and that everything else is refused by its field path."""

from typing import Any

import pytest

from builders import job
from diloco_api import rules
from diloco_api.accept import problems


def of_pod(**fields: object) -> dict[str, Any]:
    return {"spec": fields}


def of_container(**fields: object) -> dict[str, Any]:
    return of_pod(containers=[fields])


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("host network", of_pod(hostNetwork=True), "spec.hostNetwork", rules.TEMPLATE_RESTRICTED),
    ("host process ids", of_pod(hostPID=True), "spec.hostPID", rules.TEMPLATE_RESTRICTED),
    ("pod security", of_pod(securityContext={"runAsUser": 0}), "spec.securityContext", rules.TEMPLATE_RESTRICTED),
    (
        "privileged",
        of_container(securityContext={"privileged": True}),
        "spec.containers.0.securityContext",
        rules.TEMPLATE_RESTRICTED,
    ),
    (
        "a folder of the host",
        of_pod(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
        "spec.volumes.0.hostPath",
        rules.TEMPLATE_RESTRICTED,
    ),
    ("init containers", of_pod(initContainers=[{}]), "spec.initContainers", rules.TEMPLATE_FIELD),
    ("a node's name", of_pod(nodeName="n"), "spec.nodeName", rules.TEMPLATE_FIELD),
    ("restart policy", of_pod(restartPolicy="Always"), "spec.restartPolicy", rules.TEMPLATE_FIELD),
    ("a command", of_container(command=["sh"]), "spec.containers.0.command", rules.TEMPLATE_FIELD),
    ("host ports", of_container(ports=[{"hostPort": 1}]), "spec.containers.0.ports", rules.TEMPLATE_FIELD),
    ("no list", of_pod(tolerations={"a": 1}), "spec.tolerations", rules.TEMPLATE_TYPE),
    ("a list of texts", of_pod(imagePullSecrets=["x"]), "spec.imagePullSecrets", rules.TEMPLATE_TYPE),
    ("no mapping", {"spec": []}, "spec", rules.TEMPLATE_TYPE),
    ("a status", {"status": {}}, "status", rules.TEMPLATE_FIELD),
    ("finalizers", {"metadata": {"finalizers": ["x"]}}, "metadata.finalizers", rules.TEMPLATE_FIELD),
    ("our label", {"metadata": {"labels": {"diloco.dev/role": "x"}}}, "metadata.labels", rules.TEMPLATE_OURS),
    ("kopf's", {"metadata": {"annotations": {"kopf.dev/x": "y"}}}, "metadata.annotations", rules.TEMPLATE_OURS),
    (
        "a profile",
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/learner": "unconfined"}}},
        "metadata.annotations",
        rules.TEMPLATE_OURS,
    ),
    ("a bad label", {"metadata": {"labels": {"team": "a b"}}}, "metadata.labels", "is not a legal label value"),
    ("numbers", {"metadata": {"labels": {"team": 1}}}, "metadata.labels", rules.TEMPLATE_TYPE),
    ("two containers", of_pod(containers=[{}, {}]), "spec.containers", rules.TEMPLATE_CONTAINERS),
    (
        "our variable",
        of_container(env=[{"name": "DILOCO_DEVICE", "value": "cpu"}]),
        "spec.containers.0.env.0.name",
        rules.TEMPLATE_OURS,
    ),
    ("a nameless variable", of_container(env=[{"value": "cpu"}]), "spec.containers.0.env.0.name", "is required"),
    (
        "our folder",
        of_container(volumeMounts=[{"name": "x", "mountPath": "/etc/diloco/config/"}]),
        "spec.containers.0.volumeMounts.0.mountPath",
        rules.TEMPLATE_OURS,
    ),
    (
        "our folder in other words",
        of_container(volumeMounts=[{"name": "x", "mountPath": "/etc//diloco/x/../credentials"}]),
        "spec.containers.0.volumeMounts.0.mountPath",
        rules.TEMPLATE_OURS,
    ),
    (
        "a file of ours",
        of_container(volumeMounts=[{"name": "x", "mountPath": "/etc/diloco/credentials/ca.crt", "subPath": "ca.crt"}]),
        "spec.containers.0.volumeMounts.0.mountPath",
        rules.TEMPLATE_OURS,
    ),
    (
        "our credentials",
        of_container(volumeMounts=[{"name": "credentials", "mountPath": "/mine"}]),
        "spec.containers.0.volumeMounts.0.name",
        rules.TEMPLATE_OURS,
    ),
    ("half a mount", of_container(volumeMounts=[{"name": "x"}]), "spec.containers.0.volumeMounts.0", "needs name"),
    (
        "our volume",
        of_pod(volumes=[{"name": "state", "emptyDir": {}}]),
        "spec.volumes.0.name",
        rules.TEMPLATE_OURS,
    ),
    ("a nameless volume", of_pod(volumes=[{"emptyDir": {}}]), "spec.volumes.0.name", "is required"),
    ("no source", of_pod(volumes=[{"name": "x", "emptyDir": []}]), "spec.volumes.0.emptyDir", rules.TEMPLATE_TYPE),
]


@pytest.mark.parametrize("section", ["learners", "synchronizer"])
@pytest.mark.parametrize(("template", "path", "rule"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_a_template_may_not_hold_is_refused_by_its_path(
    section: str, template: dict[str, Any], path: str, rule: str
) -> None:
    (problem,) = problems(job({f"{section}.template": template}))
    assert problem.path == f"spec.{section}.template.{path}"
    assert problem.rule.startswith(rule)


def test_what_a_template_may_hold_is_accepted() -> None:
    template = {
        "metadata": {"labels": {"team": "x"}, "annotations": {"any/thing": "with spaces"}},
        "spec": {
            "containers": [{"image": "i", "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": 2}}}],
            "volumes": [{"name": "x", "csi": {"driver": "d"}}, {"name": "y", "configMap": {"name": "c"}}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [{}],
            "dnsConfig": {"nameservers": ["1.1.1.1"]},
        },
    }
    assert problems(job({"learners.template": template, "synchronizer.template": template})) == []
