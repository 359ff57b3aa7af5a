"""The values both charts are rendered with: what somebody may want of them."""

from typing import Any

Values = dict[str, Any]
DIGEST = "sha256:" + "0" * 64
_SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
_MONITOR = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s", "scrapeTimeout": "10s",
            "relabelings": [{"targetLabel": "cluster", "replacement": "hub"}],
            "metricRelabelings": [{"action": "labeldrop", "regex": "pod"}]}  # fmt: skip
NAMESPACES: Values = {"scope": "namespaces", "namespaces": ["team-a", "team-b"]}
MONITORING: Values = {
    "monitoring": {
        "renderMode": "alwaysRender",
        "serviceMonitor": _MONITOR,
        "rules": {"enabled": True},
        "dashboards": {"enabled": True},
    },
}

OPERATOR_VARIANTS: dict[str, Values] = {
    "default": {},
    "minimal": {
        "crds": {"install": False},
        "metrics": {"service": {"enabled": False}},
        "rbac": {"create": False, "nodes": False, "userRoles": False},
        "serviceAccount": {"create": False, "name": "somebody"},
        "networkPolicy": {"enabled": False},
        "resources": {},
    },
    "namespaces": NAMESPACES,
    "high availability": {
        "replicas": 2,
        "strategy": {"type": "RollingUpdate"},
        "priorityClassName": "system-cluster-critical",
        "topologySpreadConstraints": [_SPREAD],
    },
    "monitoring": MONITORING,
    "monitoring by pods": {
        **NAMESPACES,
        "monitoring": {"renderMode": "alwaysRender", "podMonitor": _MONITOR},
        "metrics": {"service": {"enabled": False}},
    },
    "openshift": {"fsGroup": "none", "monitoringNamespace": "openshift-monitoring", **MONITORING},
    "full": {
        "image": {"tag": "v1", "digest": DIGEST, "pullPolicy": "Always"},
        "trainerImage": {"digest": DIGEST},
        "imagePullSecrets": ["registry"],
        "serviceAccount": {"annotations": {"example.com/role": "diloco"}},
        "replicas": 3,
        "metrics": {"port": 9000, "service": {"annotations": {"example.com/scrape": "true"}}},
        "health": {"port": 9001},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
        "topologySpreadConstraints": [{**_SPREAD, "labelSelector": {"matchLabels": {"team": "research"}}}],
        "podAnnotations": {"example.com/note": "1"},
        "podLabels": {"team": "research"},
        "extraArgs": ["--log-level=DEBUG"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
        **MONITORING,
    },
    "long names": {"fullnameOverride": "a" * 63, "nameOverride": "b" * 63},
}  # fmt: skip
"""Without images, which have no default."""

SITE_VARIANTS: dict[str, Values] = {
    "default": {},
    "full": {
        "rbac": {"nodes": True},
        "serviceAccount": {"annotations": {"example.com/role": "diloco"}},
        "server": "https://site.example.com:6443",
    },
    "minimal": {"rbac": {"podLogs": False}, "token": {"create": False}},
    "long names": {"fullnameOverride": "a" * 63, "nameOverride": "b" * 63},
}

RELEASES = ("diloco", "diloco-operator", "a" * 53, "team.diloco", "1", "0x10", "true")
"""Names that helm lets a release have."""

BROUGHT = {("ServiceAccount", "somebody"), ("ConfigMap", "company-ca"), ("Secret", "registry")}
"""(kind, name) of what somebody else makes in these variants."""
