"""The README's section about clusters, command by command, on clusters that know nothing of jobs; then what the charts
promise about tests, rights, upgrades, a second release, and the end. The tests go on where the one before them stopped.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from clusters import cli, readme, rights, storage, workloads
from clusters.api import Api, wait_until
from clusters.operator_process import GROUP, condition, job_of
from clusters.pythons import REPOSITORY
from clusters.readme import Reader

pytestmark = pytest.mark.timeout(900)
CRD = "dilocojobs.diloco.dev"
CRDS = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, CRD)
OWN, JOBS = "diloco", "training"
ACCOUNT, SITE_ACCOUNT = "diloco-diloco-operator", "diloco-diloco-site"
COMMANDS = readme.commands()
_APPLIED = "making an object by server-side apply needs it, beyond the patch that the log tells of"
UNUSED = {
    **{("create", group, resource): _APPLIED for group, resource in (
        ("", "configmaps"), ("", "persistentvolumeclaims"), ("", "services"), ("apps", "deployments"),
        ("networking.k8s.io", "networkpolicies"), ("policy", "poddisruptionbudgets"))},
}  # fmt: skip
"""Rights whose use no log tells of, and what they are for."""
UNUSED_AT_SITE = {
    **{("create", group, resource): _APPLIED
       for group, resource in (("", "configmaps"), ("", "secrets"), ("networking.k8s.io", "networkpolicies"))},
}  # fmt: skip
SELDOM = {
    ("get", "", "pods"): "a pod of that name is there already",
    ("get", "", "pods/log"): "a Learner does not reach the Synchronizer: its log says why",
    ("patch", "", "events"): "an Event that is told again is counted up",
}
"""Rights that these jobs may give no cause to use, and when they are used."""


@pytest.fixture(scope="module")
def reader(clusters, python, operator_image, tmp_path_factory):
    """Somebody who begins; afterwards nothing of it is left but what was there before."""
    sites = [clusters.hub, clusters.site("site-1"), clusters.site("site-2")]
    hub = Api(clusters.hub)
    hub.delete(*CRDS)
    wait_until("no definition of jobs", lambda: hub.get(*CRDS) is None, 60)
    storage.provide(clusters.hub, clusters.hub.node(0), cli.FREE_VOLUMES)
    readme.name_images(clusters, python)
    reader = Reader.with_examples(tmp_path_factory.mktemp("reader"), python, budget_tokens=60_000)
    try:
        yield reader
    finally:
        reader.tries(clusters.hub, "kubectl delete dlj --all --all-namespaces --timeout=60s")
        tell_logs(hub)
        for site in sites:
            reader.tries(site, f"helm --namespace {OWN if site is sites[0] else JOBS} uninstall diloco --wait")
            for namespace in (OWN, JOBS):
                Api(site).delete("v1", "Namespace", None, namespace)
            python.remove(site, JOBS)
        cleanup(clusters.hub, "--orphan", "--lease-namespace", OWN)
        hub.delete(*CRDS)
        for site in sites:
            for namespace in (OWN, JOBS):
                workloads.wait_until_gone(Api(site), "v1", "Namespace", None, namespace)


def tell_logs(hub):
    """For whoever looks into a failure."""
    for pod in hub.all("v1", "Pod", OWN, "app.kubernetes.io/component=operator"):
        print(workloads.logs(hub, OWN, pod["metadata"]["name"])[-8000:])


@pytest.fixture(scope="module")
def records(clusters, reader):
    """What accounts do, by cluster; from before the first of them is made."""
    return {site.name: rights.Record(site) for site in clusters.sites()}


@pytest.fixture(scope="module")
def installed(clusters, python, reader, records):
    """What the hub's commands print, once both sites are given to the operator as the README says."""
    said = reader.types(clusters.hub, COMMANDS.hub)
    for site in (clusters.site("site-1"), clusters.site("site-2")):
        notes = reader.types(site, COMMANDS.site)
        reader.types(site, notes.partition("operator:\n")[2].partition("2. With")[0])
        reader.types(clusters.hub, COMMANDS.secret.replace("site-1", site.name))
    for site in clusters.sites():
        python.provide(site, JOBS)
    return said


@pytest.fixture(scope="module")
def hub(clusters):
    return Api(clusters.hub)


def test_the_installation_passes_its_own_test(installed, hub):
    told = [line for line in installed.splitlines() if line.startswith(("ok ", "FAILED "))]
    assert [line.split()[0] for line in told] == ["ok"] * 4, installed
    assert "diloco.dev/v1alpha1 dilocojobs is served" in told[0]
    assert "a sample job would be accepted in namespace diloco" in told[1]
    assert told[2].endswith("/healthz")
    assert told[3].endswith("/metrics")
    assert hub.all(GROUP, "DiLoCoJob") == [], "the sample was only tried"
    for kind in ("Role", "RoleBinding"):
        assert hub.get("rbac.authorization.k8s.io/v1", kind, OWN, f"{ACCOUNT}-test") is None
    assert hub.get("v1", "ServiceAccount", OWN, f"{ACCOUNT}-test") is None


def test_the_example_is_complete_and_is_deleted(clusters, reader, installed, hub):
    apply, watch, describe, delete = readme.lines(COMMANDS.job)
    reader.types(clusters.hub, apply)
    reader.watches(clusters.hub, watch, "Complete", 600)
    job = job_of(hub, JOBS, "multi-site")
    assert condition(job, "Complete")[0] == "True", job["status"]["conditions"]
    assert "TokenBudgetReached" in reader.types(clusters.hub, describe)
    reader.types(clusters.hub, delete)
    for name in ("site-1", "site-2"):
        left = [
            one
            for kind in ("Pod", "Secret", "ConfigMap")
            for one in Api(clusters.site(name)).all("v1", kind, JOBS, f"diloco.dev/job-uid={job['metadata']['uid']}")
        ]
        assert left == []  # fmt: skip


def test_the_operator_may_do_what_it_does_and_nothing_else(clusters, reader, installed, hub, records, python):
    """More jobs than the example, so that Learners run at the hub, content is copied, and a pod is replaced."""
    reader.types(clusters.hub, f"kubectl --namespace {JOBS} create configmap note --from-literal=a=1")
    reader.types(clusters.hub, f"kubectl --namespace {JOBS} label configmap note diloco.dev/propagate=true")
    hub.create(everything(python.pod_template))
    try:
        wait_until("all at work", lambda: ready(hub, "everything") == 2, 300)
        lost = next(pod for pod in hub.all("v1", "Pod", JOBS, "diloco.dev/role=learner"))
        hub.delete("v1", "Pod", JOBS, lost["metadata"]["name"], grace_seconds=0)
        wait_until("a replacement", lambda: another_than(lost, hub) and ready(hub, "everything") == 2, 200)
    finally:
        reader.types(clusters.hub, f"kubectl --namespace {JOBS} delete dlj everything")
    found = records["hub"]
    assert found.denied(OWN, ACCOUNT) == set()
    unused = rights.granted(clusters.hub, OWN, ACCOUNT) - found.done(OWN, ACCOUNT)
    assert unused - SELDOM.keys() == UNUSED.keys()


def test_the_sites_account_may_do_what_is_done_with_it_and_nothing_else(clusters, installed, records):
    site = clusters.site("site-1")
    found = records["site-1"]
    assert found.denied(JOBS, SITE_ACCOUNT) == set()
    unused = rights.granted(site, JOBS, SITE_ACCOUNT) - found.done(JOBS, SITE_ACCOUNT)
    assert unused - SELDOM.keys() == UNUSED_AT_SITE.keys()


def everything(template):
    cpu = [{"name": "cpu", "device": "cpu"}]
    sites = [
        {"name": "hub", "learners": {"max": 1}, "nodePools": cpu},
        {"name": "site-1", "kubeconfigSecretRef": {"name": "site-1"}, "learners": {"max": 1}, "nodePools": cpu},
    ]
    return {
        "apiVersion": GROUP,
        "kind": "DiLoCoJob",
        "metadata": {"name": "everything", "namespace": JOBS},
        "spec": {
            "train": {"data": {"uri": "{stdlib}/[a-c]*.py", "sequenceLength": 32},
                      "model": {"layers": 1, "hidden": 32, "heads": 2}, "batch": {"sequences": 2}},
            "budget": {"outerRounds": 100000},
            "learners": {"replicas": 2, "template": template},
            "synchronizer": {"template": template, "storage": {"size": "1Gi"}, "exposure": {"type": "NodePort"}},
            "propagate": {"configMaps": ["note"]},
            "sites": sites,
        },
    }  # fmt: skip


def ready(hub, name):
    return job_of(hub, JOBS, name).get("status", {}).get("learners", {}).get("ready")


def another_than(pod, hub):
    """The status may still be that of before."""
    learners = hub.all("v1", "Pod", JOBS, "diloco.dev/role=learner")
    return bool(learners) and pod["metadata"]["uid"] not in {one["metadata"]["uid"] for one in learners}


def test_an_upgrade_applies_a_changed_definition_and_leaves_what_was_made_meanwhile(
    clusters, reader, installed, hub, tmp_path
):
    site = clusters.site("site-1")
    before = made_meanwhile(hub, site)
    chart = tmp_path / "diloco-operator"
    shutil.copytree(REPOSITORY / "helm/diloco-operator", chart)  # with the definition itself in place of the link
    definition = chart / "files/crd.yaml"
    definition.write_text(definition.read_text().replace("shortNames:\n", "shortNames:\n    - dljx\n"))
    reader.types(clusters.hub, f"helm --namespace {OWN} upgrade diloco {chart} --reuse-values --set podAnnotations.a=b")
    wait_until("the new short name", lambda: "dljx" in hub.get(*CRDS)["status"]["acceptedNames"]["shortNames"], 30)
    reader.types(clusters.hub, f"kubectl --namespace {OWN} rollout status deployment/{ACCOUNT} --timeout=90s")
    reader.types(site, f"helm --namespace {JOBS} upgrade diloco helm/diloco-site --set rbac.nodes=true")
    assert made_meanwhile(hub, site) == before
    said = reader.types(clusters.hub, f"helm --namespace {OWN} test diloco")
    assert "Phase:          Succeeded" in said


def made_meanwhile(hub, site):
    """The installation's id, and the site's token: no chart has them."""
    origin = hub.get("v1", "Secret", OWN, "diloco-operator-origin")
    token = Api(site).get("v1", "Secret", JOBS, f"{SITE_ACCOUNT}-token")
    assert origin["data"].keys() == {"origin"}
    assert token["data"].keys() >= {"token", "ca.crt"}
    return origin["data"], token["data"]


INSTALL = f"--set image.repository={readme.REGISTRY}/diloco-operator --set trainerImage.repository=x"


@pytest.mark.parametrize(
    ("namespace", "said"),
    [
        ("elsewhere", "the CustomResourceDefinition dilocojobs.diloco.dev belongs to the release diloco/diloco"),
        (OWN, "the namespace diloco has the operator of the release diloco already"),
    ],
    ids=["of the same definition", "in the same namespace"],
)
def test_a_second_release_is_refused_with_the_line_that_helps(clusters, reader, installed, namespace, said):
    crds = " --set crds.install=false" if namespace == OWN else ""
    answer = reader.tries(
        clusters.hub,
        f"helm install other helm/diloco-operator --namespace {namespace} --create-namespace {INSTALL}{crds}",
    )
    assert answer.returncode != 0
    assert said in answer.stderr
    reader.tries(clusters.hub, "kubectl delete namespace elsewhere --ignore-not-found")


def test_users_with_the_clusters_own_roles_may_use_jobs(clusters, reader, installed):
    make = f"kubectl --namespace {JOBS} create rolebinding {{0}} --clusterrole={{0}} --serviceaccount={JOBS}:{{0}}"
    for role in ("view", "edit"):
        reader.types(clusters.hub, make.format(role))

    def may(role, verb):
        ask = f"kubectl auth can-i {verb} dilocojobs --namespace {JOBS} --as=system:serviceaccount:{JOBS}:{role}"
        return reader.tries(clusters.hub, ask).stdout.strip() == "yes"

    wait_until("the roles are gathered", lambda: may("view", "watch") and may("edit", "create"), 30)
    assert not may("view", "create")
    assert not may("edit", "deletecollection")


def held_job(hub, python, name):
    """One the operator has put its finalizer on."""
    hub.create({**everything(python.pod_template), "metadata": {"name": name, "namespace": JOBS}})
    wait_until("the finalizer", lambda: job_of(hub, JOBS, name)["metadata"].get("finalizers"), 180)
    wait_until("accepted", lambda: condition(job_of(hub, JOBS, name), "Accepted")[0] == "True", 180)


def test_while_the_release_is_there_its_own_account_lets_jobs_go(clusters, reader, installed, hub, python):
    """As docs/charts.md says it."""
    held_job(hub, python, "stuck")
    page = (REPOSITORY / "docs/charts.md").read_text()
    (block,) = (
        text for text in re.findall(r"```\n(.*?)```", page, re.DOTALL) if "kubectl --namespace diloco run" in text
    )
    stop, clean, wait, logs, remove = readme.lines(block)
    refused = cleanup(clusters.hub, "--orphan", "--lease-namespace", OWN)
    assert refused.returncode == 1
    assert "is at work (Lease diloco/diloco-operator)" in refused.stderr
    reader.types(clusters.hub, stop)
    wait_until("the operator gone", lambda: not hub.all("v1", "Pod", OWN, "app.kubernetes.io/component=operator"), 60)
    reader.types(clusters.hub, f"kubectl --namespace {JOBS} delete dlj stuck --wait=false")
    reader.types(clusters.hub, f"{clean}\n{wait}")
    assert "let go: training/stuck (is being deleted); at " in reader.types(clusters.hub, logs)
    reader.types(clusters.hub, remove)
    wait_until("the job gone", lambda: job_of(hub, JOBS, "stuck") is None, 30)


def test_without_the_release_the_definition_and_jobs_stay_and_jobs_can_be_let_go(
    clusters, reader, installed, hub, python
):
    reader.types(clusters.hub, f"kubectl --namespace {OWN} scale deployment {ACCOUNT} --replicas=1")
    held_job(hub, python, "left")
    jobs_gone, uninstall = readme.lines(COMMANDS.uninstall)
    assert "kubectl delete dlj" in jobs_gone
    assert "kept" in reader.types(clusters.hub, uninstall)
    assert hub.get(*CRDS) is not None
    assert job_of(hub, JOBS, "left") is not None
    assert hub.all("apps/v1", "Deployment", OWN) == []
    wait_until("no operator", lambda: not hub.all("v1", "Pod", OWN, "app.kubernetes.io/component=operator"), 60)
    listed = cleanup(clusters.hub)
    assert (listed.returncode, "held: training/left" in listed.stdout) == (1, True)

    def let_go():
        """Refused until the Lease has run out: one that is uninstalled may lose its rights before it gives it back."""
        answer = cleanup(clusters.hub, "--orphan", "--namespace", JOBS, "--lease-namespace", OWN)
        assert answer.returncode == 0 or "is at work (Lease diloco/diloco-operator)" in answer.stderr, answer.stderr
        return answer.returncode == 0

    wait_until("the job is let go", let_go, 90)
    reader.types(clusters.hub, jobs_gone, timeout_seconds=60)
    assert hub.all(GROUP, "DiLoCoJob") == []


def test_a_new_installation_of_the_same_name_takes_the_definition_over(clusters, reader, installed, hub):
    reader.types(clusters.hub, readme.lines(COMMANDS.hub)[0])
    said = reader.types(clusters.hub, readme.lines(COMMANDS.hub)[1])
    assert "Phase:          Succeeded" in said
    assert "dljx" not in hub.get(*CRDS)["spec"]["names"]["shortNames"]


def cleanup(hub, *arguments):
    """By the operator's program, with an administrator's kubeconfig."""
    program = [sys.executable, "-m", "diloco_operator.cleanup", "--kubeconfig", str(hub.kubeconfig), *arguments]
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(program, capture_output=True, text=True, env=environment, timeout=240, check=False)
