"""Modules of at most 300 lines, functions of at most 50: what is longer is split by meaning."""

import ast
from collections.abc import Iterator

from checks.source import Breach, Module

MODULE_LINES = 300
FUNCTION_LINES = 50


def check(module: Module) -> Iterator[Breach]:
    lines = module.text.count("\n")
    if lines > MODULE_LINES:
        yield Breach(module.path, 1, f"module of {lines} lines, at most {MODULE_LINES}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield Breach(module.path, node.lineno, f"{node.name}: {length} lines, at most {FUNCTION_LINES}")
