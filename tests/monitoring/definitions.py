"""What the Prometheus operator itself takes for a monitor or a rule: the CustomResourceDefinitions in its Go module.

Fetched into Go's own cache, at the version and checksum that `prometheus-operator/go.sum` names.
"""

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from fakes.admission import check

MODULE = "github.com/prometheus-operator/prometheus-operator"
_HERE = Path(__file__).with_name("prometheus-operator")


def breaches(found: dict[str, Any]) -> list[str]:
    """`field path: message` of all that an API server which knows the definition would refuse, or not keep."""
    file = f"monitoring.coreos.com_{found['kind'].lower()}s.yaml"
    definition = yaml.safe_load((_module() / "example/prometheus-operator-crd" / file).read_text())
    versions = {f"{definition['spec']['group']}/{one['name']}": one for one in definition["spec"]["versions"]}
    return check(versions[found["apiVersion"]]["schema"]["openAPIV3Schema"], found)


@functools.cache
def _module() -> Path:
    required = json.loads(_go("mod", "edit", "-json"))["Require"]
    (version,) = (one["Version"] for one in required if one["Path"] == MODULE)
    return Path(json.loads(_go("mod", "download", "-json", f"{MODULE}@{version}"))["Dir"])


def _go(*command: str) -> str:
    if shutil.which("go") is None:
        raise RuntimeError(
            "Go 1.24 or newer is needed to fetch the Prometheus operator's definitions: https://go.dev/dl"
        )
    answer = subprocess.run(["go", *command], cwd=_HERE, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise RuntimeError(f"go {' '.join(command)}: {answer.stdout}{answer.stderr}")
    return answer.stdout
