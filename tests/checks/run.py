"""Runs every check over the repository and prints each breach as `file:line: what is wrong`; exit code 1 if any."""

import subprocess
import sys

from checks import links, no_pickle, one_engine, places, purity, sizes
from checks.source import ROOT, Breach, package_modules, repository_files

MODULE_CHECKS = (sizes.check, purity.check, one_engine.check, no_pickle.check)


def main() -> int:
    files = repository_files()
    breaches = list(places.check(files))
    modules = list(package_modules(files))
    for check in MODULE_CHECKS:
        for module in modules:
            breaches += check(module)
    for path in files:
        if path.endswith(".md"):
            breaches += links.check(path, ROOT)
    breaches += _standard_library_shadowed()
    for breach in breaches:
        print(breach)
    print(f"checks: {len(modules)} modules, {len(breaches)} breaches")
    return 1 if breaches else 0


def _standard_library_shadowed() -> list[Breach]:
    """An interpreter that has not loaded `operator` yet must find the standard one from the repository's root."""
    probe = [sys.executable, "-S", "-c", "import operator, collections; operator.itemgetter"]
    answer = subprocess.run(probe, cwd=ROOT, capture_output=True, text=True, check=False)
    return [] if answer.returncode == 0 else [Breach("operator", 1, answer.stderr.strip().splitlines()[-1])]


if __name__ == "__main__":
    sys.exit(main())
