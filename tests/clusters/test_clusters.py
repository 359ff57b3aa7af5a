"""The clusters are what a job needs: nodes, names, Services, logs, admission, GPUs, volumes, Python."""

import json

import pytest

from clusters import node, storage, workloads
from clusters.api import Api, ApiError, wait_until
from clusters.fake_nodes import LABEL, TAINT, FakeNodes
from clusters.pythons import PythonEnvironment

PORT = 8080
NODE_PORT = 30771
GPU = "nvidia.com/gpu"


def web_server(namespace):
    serve = "echo hello > /tmp/index.html && exec httpd -f -p 8080 -h /tmp"
    return workloads.pod(namespace, "web", "sh", "-c", serve)


def output_of(api, namespace, manifest, phase="Succeeded"):
    api.create(manifest)
    name = manifest["metadata"]["name"]
    seen = workloads.wait_for_pod(api, namespace, name, "Succeeded", "Failed", timeout_seconds=90)
    text = workloads.logs(api, namespace, name)
    assert seen["status"]["phase"] == phase, text
    return text


def test_every_site_has_a_ready_node(clusters):
    assert [site.name for site in clusters.sites()][:3] == ["hub", "site-1", "site-2"]
    for site in clusters.sites():
        assert node.is_ready(Api(site), f"{site.name}-node-0")


def test_kubectl_reaches_a_site_by_its_kubeconfig(site_1):
    version = json.loads(workloads.kubectl(site_1, "version", "--output=json"))
    assert version["serverVersion"]["gitVersion"].startswith("v1.34.")


def test_a_pod_finds_a_service_by_name_and_reaches_it(hub, new_namespace):
    namespace, api = new_namespace(hub), Api(hub)
    api.create(web_server(namespace))
    api.create(workloads.service(namespace, "web", "web", PORT))
    workloads.wait_for_pod(api, namespace, "web", "Running")
    ask = f"nslookup web.{namespace}.svc.cluster.local && printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 web {PORT}"
    again = f"for i in 1 2 3 4 5 6 7 8 9 10; do {{ {ask}; }} && exit; sleep 1; done; exit 1"
    text = output_of(api, namespace, workloads.pod(namespace, "ask", "sh", "-c", again))
    assert "10.96." in text
    assert text.rstrip().endswith("hello")


def test_a_pod_of_another_site_reaches_the_hubs_node_port(hub, site_1, new_namespace):
    namespace = new_namespace(hub, site_1)
    Api(hub).create(web_server(namespace))
    Api(hub).create(workloads.service(namespace, "web", "web", PORT, NODE_PORT))
    workloads.wait_for_pod(Api(hub), namespace, "web", "Running")
    ask = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {hub.address} {NODE_PORT}"
    again = f"for i in 1 2 3 4 5 6 7 8 9 10; do {{ {ask}; }} && exit; sleep 1; done; exit 1"
    assert "hello" in output_of(Api(site_1), namespace, workloads.pod(namespace, "ask", "sh", "-c", again))


def test_logs_and_exec_work(site_1, new_namespace):
    namespace, api = new_namespace(site_1), Api(site_1)
    api.create(workloads.pod(namespace, "speaker", "sh", "-c", "echo said; exec sleep 1000"))
    workloads.wait_for_pod(api, namespace, "speaker", "Running")
    wait_until("the log", lambda: workloads.logs(api, namespace, "speaker") == "said\n", 10)
    assert workloads.kubectl(site_1, "exec", "-n", namespace, "speaker", "--", "id", "-u") == "65532\n"


def test_a_restricted_namespace_refuses_a_privileged_pod(site_1, new_namespace):
    namespace = new_namespace(site_1)
    manifest = workloads.pod(namespace, "strong")
    manifest["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ApiError, match='violates PodSecurity "restricted:latest"') as refused:
        Api(site_1).create(manifest)
    assert refused.value.status == 403


def test_gpus_of_a_node_run_out_like_real_ones(site_1, new_namespace):
    namespace, api = new_namespace(site_1), Api(site_1)
    node.add_capacity(api, "site-1-node-0", {GPU: 1})
    try:
        for name in ("first", "second"):
            manifest = workloads.pod(namespace, name)
            manifest["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
            api.create(manifest)
            if name == "first":
                workloads.wait_for_pod(api, namespace, name, "Running")
        wait_until("no GPU for the second pod", lambda: unschedulable(api, namespace, "second"), 20)
        api.delete("v1", "Pod", namespace, "first")
        workloads.wait_for_pod(api, namespace, "second", "Running")
    finally:
        node.add_capacity(api, "site-1-node-0", {GPU: 0})


def test_a_tainted_node_takes_only_pods_that_tolerate_it(site_1, new_namespace):
    namespace, api = new_namespace(site_1), Api(site_1)
    node.taint(api, "site-1-node-0", "pool=gpu:NoSchedule")
    try:
        api.create(workloads.pod(namespace, "plain"))
        tolerations = [{"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}]
        api.create(workloads.pod(namespace, "tolerant", tolerations=tolerations))
        workloads.wait_for_pod(api, namespace, "tolerant", "Running")
        assert unschedulable(api, namespace, "plain")
    finally:
        node.taint(api, "site-1-node-0")
    workloads.wait_for_pod(api, namespace, "plain", "Running")


def test_fake_nodes_run_and_end_pods_on_paper(site_1, new_namespace):
    namespace, api = new_namespace(site_1), Api(site_1)
    names = [f"paper-{index}" for index in range(12)]
    tolerations = [{"key": TAINT["key"], "operator": "Exists"}]
    with FakeNodes(site_1, 2, {GPU: "8"}) as fakes:
        for name in names:
            manifest = workloads.pod(namespace, name, nodeSelector={LABEL: "true"}, tolerations=tolerations)
            manifest["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
            api.create(manifest)
        seen = [workloads.wait_for_pod(api, namespace, name, "Running") for name in names]
        assert {one["spec"]["nodeName"] for one in seen} == set(fakes.names)
        api.delete("v1", "Pod", namespace, names[0])
        workloads.wait_until_gone(api, "v1", "Pod", namespace, names[0])
        fakes.finish(namespace, names[1], 3, "went wrong")
        ended = workloads.wait_for_pod(api, namespace, names[1], "Failed")
        assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert not [one for one in api.all("v1", "Node") if LABEL in one["metadata"]["labels"]]


def test_a_claim_is_bound_by_its_first_pod_and_written_with_fs_group(hub, new_namespace):
    namespace, api = new_namespace(hub), Api(hub)
    storage.provide(hub, hub.node(0), 1)  # jobs before may have taken all
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "state", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
    }
    api.create(claim)
    manifest = workloads.pod(namespace, "writer", "sh", "-c", "echo kept > /state/file && cat /state/file")
    manifest["spec"]["securityContext"]["fsGroup"] = 65532
    manifest["spec"]["volumes"] = [{"name": "state", "persistentVolumeClaim": {"claimName": "state"}}]
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
    assert api.get("v1", "PersistentVolumeClaim", namespace, "state")["status"]["phase"] == "Pending"
    assert output_of(api, namespace, manifest) == "kept\n"


def test_a_restricted_pod_imports_torch_and_cannot_write_to_it(site_1, new_namespace, python: PythonEnvironment):
    namespace, api = new_namespace(site_1), Api(site_1)
    python.provide(site_1, namespace)
    code = "import sys, pathlib, torch, diloco_trainer; print(torch.ones(3).sum().item(), diloco_trainer.__file__)\n"
    code += "try: pathlib.Path(sys.prefix, 'probe').touch()\nexcept OSError as error: print(error.strerror)"
    manifest = workloads.pod(namespace, "torch", "python", "-c", code, image=python.image)
    template = python.pod_template["spec"]
    manifest["spec"]["volumes"] = template["volumes"]
    manifest["spec"]["containers"][0] |= template["containers"][0]
    manifest["spec"]["securityContext"]["fsGroup"] = 65532
    try:
        text = output_of(api, namespace, manifest)
    finally:
        python.remove(site_1, namespace)
    assert text == "3.0 /opt/diloco/trainer_image/diloco_trainer/__init__.py\nRead-only file system\n"


def unschedulable(api, namespace, name):
    conditions = api.get("v1", "Pod", namespace, name)["status"].get("conditions", [])
    return any(one.get("reason") == "Unschedulable" for one in conditions)
