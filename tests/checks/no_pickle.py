"""Nothing that runs code while it reads: no pickle family, no torch.load or torch.save, no eval."""

import ast
from collections.abc import Iterator

from checks.purity import dotted_name
from checks.source import Breach, Module

MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
CALLS = {"torch.load", "torch.save", "eval", "exec"}


def check(module: Module) -> Iterator[Breach]:
    for node in ast.walk(module.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] in MODULES:
                yield Breach(module.path, node.lineno, f"imports {name}; files are safetensors or JSON")
        if isinstance(node, ast.Call) and dotted_name(node.func) in CALLS:
            yield Breach(module.path, node.lineno, f"calls {dotted_name(node.func)}")
