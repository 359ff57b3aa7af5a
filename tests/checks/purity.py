"""Pure packages take time, chance and the world as arguments: what `lint-imports` cannot see of it."""

import ast
from collections.abc import Iterator

from checks.source import Breach, Module

PURE = (
    "operator/diloco_operator/planning/",
    "trainer_image/diloco_trainer/algorithm/",
    "crds/diloco_api/",
)
FORBIDDEN_CALLS = {
    "time.time", "time.monotonic", "time.perf_counter", "time.sleep",
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "datetime.datetime.now", "datetime.date.today",
    "open", "input",
}  # fmt: skip
FORBIDDEN_MODULES = ("random", "secrets", "uuid")
TORCH_CHANCE = {"rand", "randn", "randint", "randperm", "bernoulli", "normal", "multinomial", "manual_seed"}
TENSOR_CHANCE = {"uniform_", "normal_", "bernoulli_", "random_", "exponential_"}


def check(module: Module) -> Iterator[Breach]:
    if not module.path.startswith(PURE):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            if name in FORBIDDEN_CALLS or name.split(".")[0] in FORBIDDEN_MODULES:
                yield Breach(module.path, node.lineno, f"{name}() in a pure package")
            elif _draws(name) and not any(keyword.arg == "generator" for keyword in node.keywords):
                yield Breach(module.path, node.lineno, f"{name}() without generator= in a pure package")


def _draws(name: str) -> bool:
    first, _, last = name.rpartition(".")
    return (first == "torch" and last in TORCH_CHANCE) or last in TENSOR_CHANCE


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain; what is called on something else than a name starts with a dot."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return ""
