"""What dangles in a release: whatever names something that neither it nor anybody else has."""

from collections.abc import Iterator, Set
from typing import Any

from chart.rendering import of_kind, pods_of

Document = dict[str, Any]
Brought = Set[tuple[str, str]]
"""(kind, name) of what is there without the release."""


def dangling(documents: list[Document], brought: Brought) -> list[str]:
    """A line for each."""
    return [
        *_bindings(documents, brought),
        *(problem for pod in pods_of(documents) for problem in _pod(pod, documents, brought)),
        *_workloads(documents),
        *_services(documents),
        *_policies(documents),
        *_monitors(documents),
        *_requests_of_tests(documents),
    ]


def repeated(documents: list[Document]) -> list[tuple[str, str, str]]:
    """Kind, namespace and name of what is there twice."""
    found = [
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in documents
    ]  # fmt: skip
    return sorted({one for one in found if found.count(one) > 1})


def selects(selector: Document, labels: Document) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def _has(documents: list[Document], brought: Brought, kind: str, name: str, namespace: str | None) -> bool:
    own = ((one["metadata"]["name"], one["metadata"].get("namespace")) for one in of_kind(documents, kind))
    return (name, namespace) in own or (kind, name) in brought


def _bindings(documents: list[Document], brought: Brought) -> Iterator[str]:
    bound = set()
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(documents, kind):
            role, namespace = binding["roleRef"], binding["metadata"].get("namespace")
            at = namespace if role["kind"] == "Role" else None
            bound.add((role["kind"], at, role["name"]))
            if not _has(documents, set(), role["kind"], role["name"], at):
                yield f"{kind} {binding['metadata']['name']}: no {role['kind']} {role['name']}"
            for subject in binding["subjects"]:
                if not _has(documents, brought, "ServiceAccount", subject["name"], subject["namespace"]):
                    yield f"{kind} {binding['metadata']['name']}: no ServiceAccount {subject['name']}"
    for kind in ("Role", "ClusterRole"):
        for role in of_kind(documents, kind):
            metadata = role["metadata"]
            is_aggregated = any("aggregate-to" in label for label in metadata["labels"])
            if (kind, metadata.get("namespace"), metadata["name"]) not in bound and not is_aggregated:
                yield f"{kind} {metadata['name']}: bound to nobody"


def _pod(pod: Document, documents: list[Document], brought: Brought) -> Iterator[str]:
    spec = pod["spec"]
    (namespace,) = {one["metadata"]["namespace"] for one in of_kind(documents, "Deployment")}
    account = spec.get("serviceAccountName")
    if account is not None and not _has(documents, brought, "ServiceAccount", account, namespace):
        yield f"no ServiceAccount {account}"
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    mounted = [mount["name"] for one in spec["containers"] for mount in one.get("volumeMounts", [])]
    yield from (f"volume {name} is mounted by nobody" for name in set(volumes) - set(mounted))
    yield from (f"no volume {name}" for name in set(mounted) - set(volumes))
    yield from (f"volume {name} twice" for name in set(volumes) if volumes.count(name) > 1)
    needed = [("ConfigMap", volume["configMap"]["name"]) for volume in spec["volumes"] if "configMap" in volume]
    needed += [("Secret", volume["secret"]["secretName"]) for volume in spec["volumes"] if "secret" in volume]
    needed += [("Secret", secret["name"]) for secret in spec.get("imagePullSecrets", [])]
    for kind, name in needed:
        if not _has(documents, brought, kind, name, namespace):
            yield f"no {kind} {name}"
    for container in spec["containers"]:
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if probe in container and container[probe]["httpGet"]["port"] not in ports:
                yield f"{probe}: no port {container[probe]['httpGet']['port']}"


def _workloads(documents: list[Document]) -> Iterator[str]:
    for found in of_kind(documents, "Deployment"):
        if not selects(found["spec"]["selector"]["matchLabels"], found["spec"]["template"]["metadata"]["labels"]):
            yield f"Deployment {found['metadata']['name']}: selects none of its own pods"


def _selected(documents: list[Document], selector: Document) -> list[Document]:
    return [pod for pod in pods_of(documents) if selects(selector, pod["metadata"]["labels"])]


def _ports(pods: list[Document]) -> set[str]:
    return {port["name"] for pod in pods for one in pod["spec"]["containers"] for port in one.get("ports", [])}


def _services(documents: list[Document]) -> Iterator[str]:
    for service in of_kind(documents, "Service"):
        pods = _selected(documents, service["spec"]["selector"])
        if len(pods) != 1:
            yield f"Service {service['metadata']['name']}: selects pods of {len(pods)} kinds"
        missing = {port["targetPort"] for port in service["spec"]["ports"]} - _ports(pods)
        yield from (f"Service {service['metadata']['name']}: its pods have no port {port}" for port in missing)


def _policies(documents: list[Document]) -> Iterator[str]:
    for policy in of_kind(documents, "NetworkPolicy"):
        pods = _selected(documents, policy["spec"]["podSelector"]["matchLabels"])
        if len(pods) != 1:
            yield f"NetworkPolicy: selects pods of {len(pods)} kinds"
        named = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        yield from (f"NetworkPolicy: its pods have no port {port}" for port in named - _ports(pods))
        sources = [peer for rule in policy["spec"]["ingress"] for peer in rule.get("from", [])]
        for selector in [peer["podSelector"]["matchLabels"] for peer in sources if "podSelector" in peer]:
            if not _selected(documents, selector):
                yield f"NetworkPolicy: nobody has {selector}"
    for budget in of_kind(documents, "PodDisruptionBudget"):
        if len(_selected(documents, budget["spec"]["selector"]["matchLabels"])) != 1:
            yield "PodDisruptionBudget: selects no pod"


def _monitors(documents: list[Document]) -> Iterator[str]:
    """Of the operator; Synchronizers are no part of the release."""
    for monitor in of_kind(documents, "ServiceMonitor") + of_kind(documents, "PodMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        if "diloco.dev/role" in selector:
            continue
        name = f"{monitor['kind']} {monitor['metadata']['name']}"
        if monitor["kind"] == "PodMonitor":
            pods = _selected(documents, selector)
            count, ports = len(pods), _ports(pods)
        else:
            services = [one for one in of_kind(documents, "Service") if selects(selector, one["metadata"]["labels"])]
            count, ports = len(services), {port["name"] for one in services for port in one["spec"]["ports"]}
        if count != 1:
            yield f"{name}: selects {count}"
        endpoints = monitor["spec"].get("endpoints", []) + monitor["spec"].get("podMetricsEndpoints", [])
        yield from (f"{name}: no port {one['port']}" for one in endpoints if one["port"] not in ports)


def _requests_of_tests(documents: list[Document]) -> Iterator[str]:
    """URLs of `helm test` lead to Services of the release."""
    served = {
        f"http://{one['metadata']['name']}.{one['metadata']['namespace']}.svc:{port['port']}"
        for one in of_kind(documents, "Service")
        for port in one["spec"]["ports"]
    }
    for pod in of_kind(documents, "Pod"):
        for argument in pod["spec"]["containers"][0]["args"]:
            flag, _, value = argument.partition("=")
            if flag.endswith("-url") and value.rpartition("/")[0] not in served:
                yield f"{flag}: nobody serves {value}"
