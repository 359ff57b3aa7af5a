"""Generates docs/manifest.md, the reference of every field a user writes, from the models' own docstrings.

`python -m diloco_api.manifest_page [--check]`. What a field means is said at the field and nowhere else.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diloco_api.crd import build_schema, walk
from diloco_api.generated import write_or_check
from diloco_api.sync_policy import PRESETS

PAGE_PATH = Path(__file__).parents[2] / "docs" / "manifest.md"
_HEAD = """<!-- Generated from the models in crds/diloco_api; change those and run `make manifests`. -->
# The manifest

A `DiLoCoJob` with everything that has no default:

    apiVersion: diloco.dev/v1alpha1
    kind: DiLoCoJob
    metadata:
      name: mine
    spec:
      train:
        data:
          uri: "texts/**/*.txt"
      learners:
        replicas: 2

Relative paths start at the folder the program runs in. Ready ones to start from: `crds/examples/`. Any field can be
given on the command line too: `--set spec.budget.innerSteps=500`.

## What the presets fill in

`spec.algorithm.preset` chooses a row of defaults; each can be overridden. A default gives way where a small model or
another value of the manifest leaves no room for it; what you write never does.

"""


_FIELDS = {
    "sync_every": ("syncEvery", ""),
    "num_fragments": ("fragments", "8, 16, 36 or 40 by model size"),
    "fragmentation": ("fragmentation", ""),
    "sync_delay": ("syncDelay", ""),
    "blend_alpha": ("blendAlpha", ""),
    "weighting": ("weighting", ""),
    "merge": ("merge", ""),
    "up": ("encoding.up", ""),
    "down": ("encoding.down", ""),
    "error_feedback": ("encoding.errorFeedback", ""),
    "outer_lr": ("outerOptimizer.learningRate", "0.4, 0.6 or 0.8 by replicas"),
    "outer_momentum": ("outerOptimizer.momentum", ""),
}
"""Field of a preset: (path in the manifest, what stands for None)."""


def build_page() -> str:
    """The page's text."""
    spec = build_schema()["properties"]["spec"]
    parts = [_HEAD, *_presets(), "\n## All fields\n"]
    for path, node in walk(spec, "spec"):
        if path == "spec":
            continue
        depth = path.count(".")
        if depth == 1:
            parts.append(f"\n### `{path}`\n\n{_text(node)}\n\n")
        if not node.get("properties"):
            parts.append(f"- `{path}` ({_kind(node)}): {_text(node)}\n" if depth > 1 else "")
    return "".join(parts)


def _presets() -> Iterator[str]:
    yield f"| below `spec.algorithm` | {' | '.join(PRESETS)} |\n|---{'|---' * len(PRESETS)}|\n"
    for field, (path, worked_out) in _FIELDS.items():
        values = [getattr(preset, field) for preset in PRESETS.values()]
        cells = [worked_out if value is None else _show(value) for value in values]
        yield f"| `{path}` | {' | '.join(cells)} |\n"


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(node: dict[str, Any]) -> str:
    choices = node.get("enum")
    kind = " or ".join(f"`{choice}`" for choice in choices) if choices else str(node.get("type", "integer or string"))
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        kind += f", {low} to {high}"
    if "default" in node:
        kind += f", default `{json.dumps(node['default'])}`"
    return kind


def _text(node: dict[str, Any]) -> str:
    return " ".join(str(node.get("description", "")).split())


def main(arguments: Sequence[str] | None = None, path: Path = PAGE_PATH) -> int:
    return write_or_check("the page about the manifest", path, build_page, arguments)


if __name__ == "__main__":
    sys.exit(main())
