"""One engine: below `sync_policy.py` nothing branches on the name of an algorithm."""

import ast
from collections.abc import Iterator

from checks.source import Breach, Module

PRESETS = {"DiLoCo", "StreamingDiLoCo", "DecoupledDiLoCo"}
BELOW = ("operator/diloco_operator/", "trainer_image/diloco_trainer/")


def check(module: Module) -> Iterator[Breach]:
    if not module.path.startswith(BELOW):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PRESETS:
            yield Breach(module.path, node.lineno, f"names the preset {node.value!r}; ask the resolved policy instead")
        elif isinstance(node, ast.Compare | ast.Match) and any(_asks_preset(part) for part in _asked(node)):
            yield Breach(module.path, node.lineno, "branches on .preset; ask the resolved policy instead")


def _asked(node: ast.Compare | ast.Match) -> list[ast.expr]:
    return [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject]


def _asks_preset(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "preset"
