"""Files that must not be where they are: a package `operator` would shadow the standard library."""

from collections.abc import Iterator

from checks.source import SOURCE_ROOTS, Breach


def check(files: list[str]) -> Iterator[Breach]:
    packages_missing_init = _folders_without_init(files)
    for path in files:
        parts = path.split("/")
        if len(parts) == 2 and parts[0] in SOURCE_ROOTS and path.endswith(".py"):
            yield Breach(path, 1, f"no module directly in {parts[0]}/: packages only")
        if parts[0] == "tests" and parts[-1] == "__init__.py":
            yield Breach(path, 1, "no __init__.py under tests/")
    for folder in packages_missing_init:
        yield Breach(folder, 1, "package without an __init__.py that says what it is for")


def _folders_without_init(files: list[str]) -> list[str]:
    """Folders of the packages that hold modules and no `__init__.py`."""
    modules = [path for path in files if path.split("/")[0] in SOURCE_ROOTS and path.endswith(".py")]
    folders = {path.rsplit("/", 1)[0] for path in modules if path.count("/") >= 2}
    return sorted(folder for folder in folders if f"{folder}/__init__.py" not in files)
