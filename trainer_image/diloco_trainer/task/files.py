"""Which files a `data.uri` means.

A URI is a path or `file://` path; `*`, `?`, `[...]` match within a name, `**` crosses any number of folders;
`{stdlib}` stands for the folder of the Python standard library, without what is installed into it (`site-packages`,
`dist-packages`) or compiled (`__pycache__`), so that installing a package does not change the data. As in a shell, a
name that begins with a dot matches only a pattern that does. Links to files count as files; links to folders are not
entered, so a loop of links is harmless. Anything else that matches and cannot be read is an error, not left out.
"""

import fnmatch
import os
import stat
import sysconfig
from pathlib import Path

from diloco_trainer.task.errors import DataError

_STDLIB = "{stdlib}"
_NOT_OF_STDLIB = frozenset({"site-packages", "dist-packages", "__pycache__"})
_MAGIC = frozenset("*?[")


def find_files(uri: str) -> list[Path]:
    """Files of a URI in the order of their path names; raises DataError when there is none."""
    pattern = _path_of(uri)
    parts = Path(pattern).parts
    fixed = next((number for number, part in enumerate(parts) if _MAGIC & set(part)), len(parts))
    if fixed == len(parts):
        return [_single_file(uri, Path(pattern))]
    root = Path(*parts[:fixed])
    found = sorted(_walk(uri, root, parts[fixed:], skip=_NOT_OF_STDLIB if _STDLIB in uri else frozenset()))
    if not found:
        raise DataError(f"data.uri: no file matches {uri}")
    return [root / name for name in found]


def _path_of(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if separator and scheme != "file":
        raise DataError(f"data.uri: {uri}: scheme {scheme}:// is not supported, give a path or file://")
    if separator and not rest.startswith(("/", _STDLIB)):
        raise DataError(f"data.uri: {uri}: a file:// URI needs an absolute path, as in file:///data/text.txt")
    return (rest if separator else uri).replace(_STDLIB, sysconfig.get_paths()["stdlib"])


def _single_file(uri: str, path: Path) -> Path:
    if path.is_dir():
        raise DataError(f"data.uri: {uri} is a folder; name its files with a glob such as {uri.rstrip('/')}/**/*")
    _check_readable_kind(path)
    return path


def _check_readable_kind(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise DataError(f"data.uri: {path}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise DataError(f"data.uri: {path} is not a regular file")


def _walk(uri: str, root: Path, pattern: tuple[str, ...], skip: frozenset[str]) -> list[str]:
    """Names relative to root, with `/` between folders."""
    deepest = None if "**" in pattern else len(pattern)
    found: list[str] = []

    def refuse(error: OSError) -> None:
        raise DataError(f"data.uri: {uri}: {error.filename}: cannot be read: {error.strerror}") from error

    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=False):
        relative = Path(folder).relative_to(root).parts
        folders[:] = [name for name in folders if name not in skip and _may_enter((*relative, name), pattern)]
        if deepest is not None and len(relative) + 1 >= deepest:
            folders.clear()
        for name in files:
            if _matches((*relative, name), pattern):
                _check_readable_kind(Path(folder, name))
                found.append("/".join((*relative, name)))
    return found


def _may_enter(names: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """False when nothing below this folder can match."""
    for name, part in zip(names, pattern, strict=False):
        if part == "**":
            return not _hidden(names[-1]) or any(other.startswith(".") for other in pattern)
        if not _name_matches(name, part):
            return False
    return True


def _matches(names: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(names) and not any(map(_hidden, names))
        skipping = names and not _hidden(names[0]) and _matches(names[1:], pattern)
        return bool(skipping) or _matches(names, pattern[1:])
    return bool(names) and _name_matches(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def _name_matches(name: str, pattern: str) -> bool:
    if _hidden(name) and not pattern.startswith("."):
        return False
    return fnmatch.fnmatchcase(name, pattern)


def _hidden(name: str) -> bool:
    return name.startswith(".")
