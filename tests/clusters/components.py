"""Command lines and configuration files of the control plane of a site; those of a node are in node.py."""

import json
from pathlib import Path

from clusters.layout import SERVICE_CIDR, SiteLayout
from clusters.processes import Component, write_configuration

NODE_MONITOR_GRACE = "16s"
"""After so long without a sign of life a node is NotReady; Kubernetes' default is 50 s."""

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"], "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "verbs": ["get", "list", "watch"], "userGroups": ["system:serviceaccounts"]},
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
         "userGroups": ["system:nodes", "system:masters"]},
        {"level": "Metadata"},
    ],
}  # fmt: skip
"""Every write with its author and its object, by which tests count writes and deleted pods; and what ServiceAccounts
read, by which they compare rights with what is done with them."""


def control_plane(site: SiteLayout) -> list[Component]:
    """In the order in which they are started."""
    commands = [
        ("etcd", _etcd(site)),
        ("kube-apiserver", _apiserver(site)),
        ("kube-controller-manager", _controller_manager(site)),
        ("kube-scheduler", _scheduler(site)),
        ("coredns", ["-conf", str(_corefile(site))]),
    ]
    network = str(site.clusters.namespace_path(site.name))
    return [
        Component(name, [str(site.clusters.bin / name), *arguments], network, f"{site.cgroup}/components")
        for name, arguments in commands
    ]


def _etcd(site: SiteLayout) -> list[str]:
    return [
        f"--data-dir={site.folder}/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(site: SiteLayout) -> list[str]:
    policy = site.folder / "audit-policy.json"
    write_configuration(policy, json.dumps(_AUDIT_POLICY, indent=1))
    pki = site.pki
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={site.address}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-account-key-file={pki}/sa.pub",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={site.audit_log}",
    ]


def _controller_manager(site: SiteLayout) -> list[str]:
    pki = site.pki
    config = f"{pki}/controller-manager.kubeconfig"
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={NODE_MONITOR_GRACE}",
    ]


def _scheduler(site: SiteLayout) -> list[str]:
    config = f"{site.pki}/scheduler.kubeconfig"
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
    ]


def _corefile(site: SiteLayout) -> Path:
    """Names outside the cluster are refused at once: there is nobody to ask."""
    path = site.folder / "Corefile"
    write_configuration(
        path,
        f""".:53 {{
    bind {site.address}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {site.pki}/coredns.kubeconfig
        ttl 5
    }}
    cache 5
}}
""",
    )
    return path
