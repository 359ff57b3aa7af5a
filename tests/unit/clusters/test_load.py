"""Loading images: what is the same on two nodes is on the disk once, what is not stays as it is."""

import os
from pathlib import Path

from clusters.load import share


def layer(folder: Path, **changed: str) -> Path:
    for name, text in {"lib/a.so": "code", "lib/b.py": "text", "bin/tool": "run", **changed}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1, 1))
    (folder / "bin/link").symlink_to("tool")
    (folder / "bin/tool").chmod(0o755)
    return folder


def test_equal_files_are_shared(tmp_path: Path) -> None:
    kept, copy = layer(tmp_path / "kept"), layer(tmp_path / "copy")
    share(kept, copy)
    for name in ("lib/a.so", "lib/b.py", "bin/tool"):
        assert (copy / name).samefile(kept / name)
    assert os.readlink(copy / "bin/link") == "tool"
    assert sorted(path.name for path in copy.rglob("*")) == sorted(path.name for path in kept.rglob("*"))
    share(kept, copy)  # again changes nothing
    assert (copy / "lib/a.so").stat().st_nlink == 2


def test_files_that_differ_stay_as_they_are(tmp_path: Path) -> None:
    kept = layer(tmp_path / "kept", **{"lib/b.py": "longer text"})
    copy = layer(tmp_path / "copy", **{"only-here": "x"})
    os.utime(copy / "lib/a.so", (2, 2))
    (copy / "bin/tool").chmod(0o700)
    share(kept, copy)
    for name in ("lib/a.so", "lib/b.py", "bin/tool"):
        assert not (copy / name).samefile(kept / name)
    assert (copy / "lib/b.py").read_text() == "text"
    assert (copy / "only-here").exists()
