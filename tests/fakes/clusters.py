"""A cluster in memory, as the command line uses one."""

import base64
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diloco_cli.cluster import ClusterError, Document

Answer = Document | ClusterError | Callable[[Document | None], Document]


class FakeCluster:
    """`answers` by (method, path); what is not there is answered with 404."""

    def __init__(
        self, answers: Mapping[tuple[str, str], Answer] | None = None, logs: Mapping[str, list[str]] | None = None
    ):
        self.server = "https://cluster.example.com:6443"
        self.namespace = "train"
        self.answers: dict[tuple[str, str], Answer] = dict(answers or {})
        self.logs = dict(logs or {})
        """Lines by path."""
        self.asked: list[tuple[str, str, Any]] = []
        """(method, path, body), and for logs the query."""

    def request(
        self, method: str, path: str, body: Document | None = None, *, query: Mapping[str, str] | None = None
    ) -> Document:
        self.asked.append((method, path, copy.deepcopy(body)))
        answer = self.answers.get((method, path), not_found(path))
        if isinstance(answer, ClusterError):
            raise answer
        return answer(body) if callable(answer) else copy.deepcopy(answer)

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        self.asked.append(("LOG", path, dict(query or {})))
        if path not in self.logs:
            raise not_found(path)
        yield from self.logs[path]

    @property
    def writes(self) -> list[tuple[str, str, Any]]:
        return [one for one in self.asked if one[0] in ("POST", "PATCH", "PUT", "DELETE")]


def not_found(path: str) -> ClusterError:
    return ClusterError(f"{path.rsplit('/', 1)[-1]} not found", 404)


def forbidden(what: str) -> ClusterError:
    return ClusterError(f"{what} is forbidden", 403)


def kubeconfig_secret(name: str = "site-1", content: bytes = b"{}", **labels: str) -> Document:
    return {
        "metadata": {"name": name, "resourceVersion": "7", "labels": {"diloco.dev/kubeconfig": "true", **labels}},
        "data": {"kubeconfig": base64.b64encode(content).decode()},
    }
