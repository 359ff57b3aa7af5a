"""A kubeconfig as an administrator would write it, with a CA of its own and a token."""

import base64
from functools import cache

import yaml

from fakes.authority import Authority


@cache
def _ca() -> str:
    return Authority("sites").pem


def kubeconfig(server: str, token: str = "s3cret") -> str:
    ca = base64.b64encode(_ca().encode()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return yaml.safe_dump(document)
