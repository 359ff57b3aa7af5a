"""What a user gets wrong, under the operator of the chart: the job says in a condition what is wrong and where.

The bad jobs are there at once, beside a healthy one, which has the longest name there may be: none of its pods may
notice. Bad kubeconfigs, quotas and namespaces are in test_operator_jobs and test_kube_site. Deadlines are those of
every job. The last test takes the CRD away from everybody.
"""

import base64
import re
import time

import pytest
import yaml

from clusters import node, workloads
from clusters.api import Api, ApiError, path_of, wait_until
from clusters.endless_job import endless
from clusters.installation import CRD
from clusters.operator_process import GROUP, condition, owned, pods, site_of
from clusters.processes import Processes
from diloco_api.names import FILE_TOKEN
from diloco_api.states import Reason

pytestmark = pytest.mark.timeout(900)
HEALTHY = "as-long-as-a-name-may-be-".ljust(63, "x")
ONLY_AT_SITE_2 = "registry.test/only-at-site-2:1"
NOBODY_HAS = "example.com/nobody-has"
KEPT_FREE = "example.com/kept-free"
SOON_SECONDS = 15.0
"""From when there is something to be seen: two looks at a job, on a small machine."""
CHILD_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def one_learner(run, name, change):
    """A job of one Learner at site-1."""

    def changed(job):
        endless(job)
        job["metadata"]["name"] = name
        job["spec"]["learners"]["replicas"] = 1
        job["spec"]["sites"] = job["spec"]["sites"][:1]
        change(job["spec"])

    return run.example("multi-site", changed)


def unreachable_at(*addresses):
    def change(spec):
        spec["synchronizer"]["exposure"] = {"type": "Address", "addresses": list(addresses)}

    return change


def image_of_one_site(spec):
    spec["sites"] = [*spec["sites"], spec["sites"][0] | {"name": "site-2", "kubeconfigSecretRef": {"name": "site-2"}}]
    spec["learners"]["template"]["spec"]["containers"][0]["image"] = ONLY_AT_SITE_2


def gpus_nobody_has(spec):
    spec["sites"][0]["nodePools"] = [{"name": "big", "gpuResource": NOBODY_HAS}]


BAD = {
    "image": image_of_one_site,
    "gpu": gpus_nobody_has,
    "dns": unreachable_at("sync.nowhere.invalid:443"),
    "tcp": unreachable_at("192.0.2.1:9"),
}


@pytest.fixture(scope="module")
def healthy(installation):
    """UID of a job at work at both sites."""

    def change(job):
        endless(job)
        job["metadata"]["name"] = HEALTHY
        job["spec"]["learners"]["replicas"] = 2

    uid = installation.hub.create(installation.example("multi-site", change))["metadata"]["uid"]
    installation.wait_for(
        "the healthy job at work", HEALTHY, lambda job: job.get("status", {}).get("phase") == "Running", 300
    )
    return uid


@pytest.fixture(scope="module")
def bad(installation, clusters, healthy):
    """UIDs of all bad jobs, by name."""
    site = clusters.site("site-2")
    tag = ["ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "images", "tag"]
    node.run(site.node(0), Processes(site.folder), *tag, installation.python.image, ONLY_AT_SITE_2)
    jobs = {name: one_learner(installation, name, change) for name, change in BAD.items()}
    return {name: installation.hub.create(job)["metadata"]["uid"] for name, job in jobs.items()}


@pytest.fixture
def run(installation, healthy):
    """The installation; afterwards the healthy job's pods are the same ones, never restarted, and at work."""
    before = pods_of(installation, healthy)
    yield installation
    after = pods_of(installation, healthy)
    assert after.keys() == before.keys()
    for pod in after.values():
        (container,) = pod["status"]["containerStatuses"]
        assert ("running" in container["state"], container["restartCount"]) == (True, 0)
    learners = installation.job(HEALTHY)["status"]["learners"]
    assert learners["summary"] == "2/2"


def pods_of(run, uid):
    """All clusters' pods of a job by their UIDs."""
    found = [pod for site in run.sites for pod in pods(Api(site), run.namespace, uid).values()]
    return {pod["metadata"]["uid"]: pod for pod in found}


def told(run, name, figure, found, timeout_seconds=120):
    """Wait for what a job says; how long that took since its first Learner's pod was there is a figure."""
    job = run.job(name)
    there = [Api(site) for site in run.sites]

    def learner():
        every = [pod for api in there for pod in pods(api, run.namespace, job["metadata"]["uid"]).items()]
        return next((pod for pod_name, pod in every if "synchronizer" not in pod_name), None)

    wait_until(f"a Learner of {name}", learner, 300)
    begun = time.monotonic()
    text = run.wait_for(f"what {name} says", name, found, timeout_seconds)
    taken = time.monotonic() - begun
    figure(f"{name}: told {taken:.1f} s after its Learner's pod was there: {text}")
    return text, taken


def degraded(*reasons):
    """What is said of a job that is Degraded for this reason."""

    def found(job):
        status, reason, message = condition(job, "Degraded")
        return message if status == "True" and reason in reasons else None

    return found


def test_the_longest_name_there_may_be_makes_legal_names_only(run, healthy):
    found = [key.partition("/")[2] for site in run.sites for key in owned(Api(site), run.namespace, healthy)]
    assert len(found) > 10
    assert [name for name in found if not CHILD_NAME.fullmatch(name)] == []
    for name in run.job(HEALTHY)["status"]["learnerStatuses"]:
        assert name["state"] == "Running"


def test_a_name_that_is_longer_is_refused_at_admission(run):
    job = one_learner(run, HEALTHY + "x", lambda spec: None)
    with pytest.raises(ApiError, match=r"metadata\.name must be a DNS label: at most 63 of ") as refused:
        run.hub.create(job)
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")


def test_another_namespace_of_a_site_is_refused_where_what_is_there_would_be_forgotten(run):
    sites = [site | {"namespace": "elsewhere"} for site in run.job(HEALTHY)["spec"]["sites"]]
    with pytest.raises(ApiError, match=r"spec\.sites\[0\]\.namespace: .*cannot change: take the site out") as refused:
        run.hub.patch(path_of(GROUP, "DiLoCoJob", run.namespace, HEALTHY), {"spec": {"sites": sites}})
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (
            lambda spec: spec.update(securityContext={"runAsUser": 0}),
            "spec.learners.template.spec.securityContext",
        ),
        (lambda spec: spec.update(hostNetwork=True), "spec.learners.template.spec.hostNetwork"),
        (
            lambda spec: spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
            r"spec.learners.template.spec.volumes.\d.hostPath",
        ),
        (
            lambda spec: spec["containers"][0].update(securityContext={"privileged": True}),
            "spec.learners.template.spec.containers.0.securityContext",
        ),
    ],
    ids=["user", "network", "volume", "privileged"],
)
def test_a_template_beyond_the_restricted_profile_is_not_accepted(run, figure, request, change, path):
    name = request.node.callspec.id
    job = one_learner(run, name, lambda spec: change(spec["learners"]["template"]["spec"]))
    uid, begun = run.hub.create(job)["metadata"]["uid"], time.monotonic()

    def found(job):
        status, reason, message = condition(job, "Accepted")
        return message if (status, reason) == ("False", "InvalidSpec") else None

    text = run.wait_for("that it is not accepted", name, found, 20)
    taken = time.monotonic() - begun
    figure(f"{name}: told {taken:.1f} s after it was created: {text}")
    assert re.match(path, text)
    assert taken < SOON_SECONDS
    assert [key for site in run.sites for key in owned(Api(site), run.namespace, uid)] == []
    run.hub.delete(GROUP, "DiLoCoJob", run.namespace, name)


def test_a_gpu_resource_nobody_has_is_named_with_its_site_and_pool_long_before_the_deadline(run, bad, figure):
    text, taken = told(run, "gpu", figure, degraded("ReplacementUnschedulable"))
    assert text.startswith("site-1: Learner 0 in pool big: Unschedulable: ")
    assert NOBODY_HAS in text
    assert taken < SOON_SECONDS


def test_a_token_the_synchronizer_does_not_take_is_told_and_the_next_incarnation_has_a_good_one(run, figure, request):
    """What somebody put into the Secret while its pod waited for a node; a Secret is made anew for each incarnation."""
    site, api = run.sites[1], Api(run.sites[1])
    workloads.kubectl(site, "taint", "node", "--all", f"{KEPT_FREE}=:NoSchedule")
    try:
        uid = run.hub.create(one_learner(run, "token", lambda spec: None))["metadata"]["uid"]
        request.addfinalizer(lambda: run.hub.delete(GROUP, "DiLoCoJob", run.namespace, "token"))
        told(run, "token", figure, degraded("ReplacementUnschedulable"))
        (secret,) = [key for key in owned(api, run.namespace, uid) if key.startswith("Secret/")]
        wrong = {"data": {FILE_TOKEN: base64.b64encode(b"somebody else's").decode()}}
        api.patch(path_of("v1", "Secret", run.namespace, secret.partition("/")[2]), wrong)
    finally:
        workloads.kubectl(site, "taint", "node", "--all", f"{KEPT_FREE}-")
    begun = time.monotonic()

    def found(job):
        _, why, message = condition(site_of(job, "site-1"), "SynchronizerReachable")
        return message if why == Reason.AUTH_FAILURE else None

    text = run.wait_for("that its token is refused", "token", found, 120)
    figure(f"token: refused, told {time.monotonic() - begun:.1f} s after its pod had a node: {text}")
    assert "token" in text

    def at_work(job):
        (row,) = job["status"]["learnerStatuses"]
        connected = condition(site_of(job, "site-1"), "SynchronizerReachable")[0] == "True"
        return row if (row["state"], connected) == ("Running", True) else None

    row = run.wait_for("the next one at work", "token", at_work, 120)
    assert (row["site"], row["incarnation"], row["restartsCounted"]) == ("site-1", 2, 1)


def test_an_image_that_cannot_be_pulled_at_one_site_is_named_and_its_learner_moves(run, bad, figure):
    text, taken = told(run, "image", figure, degraded("ImagePullFailed"))
    assert text.startswith("site-1: Learner 0 in pool cpu: ImagePullFailed: ")
    assert ONLY_AT_SITE_2 in text
    assert taken < 2 * SOON_SECONDS, "a registry that is not reached may take a while to say so"
    begun = time.monotonic()

    def moved(job):
        (row,) = job["status"]["learnerStatuses"]
        return row if (row["site"], row["state"]) == ("site-2", "Running") else None

    row = run.wait_for("it runs at the other site", "image", moved, 300)
    figure(f"image: at work at the other site {time.monotonic() - begun:.0f} s after it was told")
    assert (row["incarnation"], row["restartsCounted"]) == (2, 0)
    site = site_of(run.job("image"), "site-1")
    assert condition(site, "Eligible")[:2] == ("False", "ImagePullFailed")
    assert ONLY_AT_SITE_2 in condition(site, "Eligible")[2]


@pytest.mark.parametrize(
    ("name", "words"),
    [("dns", "sync.nowhere.invalid:443: "), ("tcp", "192.0.2.1:9: Connection refused")],
)
def test_learners_that_do_not_find_the_synchronizer_say_which_step_fails(run, bad, figure, name, words):
    reason = {"dns": Reason.DNS_FAILURE, "tcp": Reason.TCP_FAILURE}[name]

    def found(job):
        _, why, message = condition(site_of(job, "site-1"), "SynchronizerReachable")
        return message if why == reason else None

    text, _ = told(run, name, figure, found, 120)
    assert text.startswith(words)
    assert degraded("LearnersMissing")(run.job(name)) == f"site-1: {reason}: {text}"
    run.hub.delete(GROUP, "DiLoCoJob", run.namespace, name)


def test_under_a_crd_older_than_the_operator_nothing_is_touched_and_afterwards_all_goes_on(run, bad, healthy, figure):
    """The CRD lacks one field of the status, which the API server then drops."""
    crd = yaml.safe_load(CRD.read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    old = {name: bad[name] for name in ("gpu", "image")}
    whole = everything(run, old)
    del properties["executionAttempt"]
    run.hub.apply(crd)
    begun = time.monotonic()
    try:
        text = run.wait_for("the healthy job says it", HEALTHY, outdated, 300)
        figure(f"{HEALTHY}: told {time.monotonic() - begun:.1f} s after the CRD was replaced: {text}")
        assert "executionAttempt" in text
        newcomer = run.hub.create(one_learner(run, "newcomer", lambda spec: None))
        uids = {**old, "newcomer": newcomer["metadata"]["uid"]}
        for name in uids:
            run.wait_for(f"{name} says it", name, outdated, 300)
        time.sleep(20)  # what would be done about anything would be done by now
        assert owned_anywhere(run, uids["newcomer"]) == {}
        assert everything(run, old) == whole
    finally:
        run.hub.apply(yaml.safe_load(CRD.read_text()))
    begun = time.monotonic()
    for name in [HEALTHY, *uids]:
        run.wait_for(f"{name} goes on", name, lambda job: condition(job, "Accepted")[0] == "True", 120)
    wait_until("the new job begins", lambda: owned_anywhere(run, uids["newcomer"]), 60)
    figure(f"all jobs go on {time.monotonic() - begun:.1f} s after the right CRD was there")
    for uid in old.values():
        assert not whole[uid].keys() - owned_anywhere(run, uid).keys(), "nothing went in between"


def outdated(job):
    status, reason, message = condition(job, "Accepted")
    return message if (status, reason) == ("False", "CRDOutdated") else None


def owned_anywhere(run, uid):
    return {
        (site.name, key): value for site in run.sites for key, value in owned(Api(site), run.namespace, uid).items()
    }


def everything(run, uids):
    return {uid: owned_anywhere(run, uid) for uid in uids.values()}
