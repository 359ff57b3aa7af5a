"""What a PromQL expression uses, checked against the table of all series: each name, and each label where it is used.

Labels are followed through the expression, so that `sum by (site)` of a series without a site is found.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import promql_parser
from promql_parser import AggregateExpr, BinaryExpr, Call, Expr, VectorSelector

from diloco_api.metrics import sample_names

SCRAPED = frozenset({"job", "instance", "namespace", "pod", "service", "container", "endpoint", "__name__"})
"""Labels Prometheus adds to every target the monitors select."""
EXPORTED = {"pod": "exported_pod", "namespace": "exported_namespace"}
"""What becomes of a series' own label that a target has, too."""
FOREIGN: Mapping[str, frozenset[str]] = {
    name: SCRAPED | {"exported_pod", "exported_namespace", "gpu", "Hostname", "modelName", "UUID"}
    for name in (
        "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    )
} | {"up": SCRAPED, "ALERTS": frozenset({"alertname", "alertstate", "severity"}) | SCRAPED}  # fmt: skip
"""Series of others: NVIDIA's dcgm-exporter, Prometheus itself."""

Labels = frozenset[str]
_ADDS_A_LABEL = {"label_replace", "label_join"}
_OVER_ALL = {"time", "vector", "absent", "absent_over_time", "scalar"}


class Undeclared(Exception):
    """The expression names something nobody exposes."""


def declared(recorded: Mapping[str, str] = MappingProxyType({})) -> dict[str, Labels]:
    """Labels of every name a query may use; `recorded` has the expressions of recording rules, in their order."""
    known = {name: _own(series.sample_labels) for name, series in sample_names().items()}
    known |= FOREIGN
    for name, expression in recorded.items():
        known[name] = labels_of(expression, known)
    return known


def labels_of(expression: str, known: Mapping[str, Labels]) -> Labels:
    """Labels of the result; Undeclared when a name or a label is not there."""
    return _labels(promql_parser.parse(plain(expression)), known)


def names_in(expression: str) -> set[str]:
    """Series the expression reads."""
    return {selector.name for selector in _selectors(expression) if selector.name}


def plain(expression: str) -> str:
    """PromQL without Grafana's variables."""
    expression = re.sub(r"\$__(rate_interval|range|interval)\b", "5m", expression)
    return re.sub(r"\$\{?\w+(:\w+)?\}?", "x", expression)


def _own(labels: Iterable[str]) -> Labels:
    return frozenset(labels) | SCRAPED | {EXPORTED[label] for label in labels if label in EXPORTED}


def _selectors(expression: str) -> Iterator[VectorSelector]:
    found: list[VectorSelector] = []

    def visit(node: Expr) -> None:
        if isinstance(node, VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(plain(expression)), visit)
    yield from found


def _labels(node: Expr, known: Mapping[str, Labels]) -> Labels:
    if isinstance(node, VectorSelector):
        return _of_selector(node, known)
    if isinstance(node, AggregateExpr):
        return _of_aggregation(node, known)
    if isinstance(node, BinaryExpr):
        return _of_binary(node, known)
    if isinstance(node, Call):
        return _of_call(node, known)
    inner = getattr(node, "vector_selector", None) or getattr(node, "expr", None)
    return _labels(inner, known) if inner is not None else frozenset()


def _of_selector(node: VectorSelector, known: Mapping[str, Labels]) -> Labels:
    if node.name not in known:
        raise Undeclared(f"no process exposes {node.name}")
    labels = known[node.name]
    _need(labels, (matcher.name for matcher in node.matchers.matchers), node.name)
    return labels


def _of_aggregation(node: AggregateExpr, known: Mapping[str, Labels]) -> Labels:
    inner = _labels(node.expr, known)
    if node.modifier is None:
        return inner if str(node.op) in ("topk", "bottomk") else frozenset()
    _need(inner, node.modifier.labels, node.prettify())
    by = str(node.modifier.type).endswith("By")
    return frozenset(node.modifier.labels) if by else inner - frozenset(node.modifier.labels)


def _of_binary(node: BinaryExpr, known: Mapping[str, Labels]) -> Labels:
    left, right = _labels(node.lhs, known), _labels(node.rhs, known)
    modifier = node.modifier
    if modifier is None or modifier.matching is None:
        return left | right
    _need(left, modifier.matching.labels, node.lhs.prettify())
    _need(right, modifier.matching.labels, node.rhs.prettify())
    cardinality = str(modifier.card).rpartition(".")[2]
    if cardinality in ("ManyToOne", "OneToMany"):
        many, one = (left, right) if cardinality == "ManyToOne" else (right, left)
        _need(one, modifier.group_labels or (), node.prettify())
        return many | frozenset(modifier.group_labels or ())
    if cardinality == "OneToOne" and str(node.op) in "+-*/%^":
        return frozenset(modifier.matching.labels)
    return left


def _of_call(node: Call, known: Mapping[str, Labels]) -> Labels:
    of_arguments = [_labels(argument, known) for argument in node.args]
    labels = frozenset().union(*of_arguments) if of_arguments else frozenset()
    name = node.func.name
    if name in _ADDS_A_LABEL:
        return labels | {node.args[1].val}
    if name in _OVER_ALL:
        return frozenset()
    return labels - {"le"} if name == "histogram_quantile" else labels


def _need(have: Labels, wanted: Iterable[str], where: str) -> None:
    if missing := sorted(set(wanted) - have):
        raise Undeclared(f"{where} has no label {', '.join(missing)}")
