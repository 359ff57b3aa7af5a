"""Each check of `make verify` finds a planted breach and lets the neighbouring right thing pass."""

from pathlib import Path

import pytest

from checks import links, no_pickle, one_engine, places, purity, sizes
from checks.source import read_module

PLANNING = "operator/diloco_operator/planning/x.py"
TRAINER = "trainer_image/diloco_trainer/learner/x.py"


def test_long_modules_and_functions_are_found() -> None:
    body = "\n".join(["    pass"] * 50)
    found = [str(b) for b in sizes.check(read_module(TRAINER, f"def long():\n{body}\n" + "\n" * 300))]
    assert found == [f"{TRAINER}:1: module of 351 lines, at most 300", f"{TRAINER}:1: long: 51 lines, at most 50"]
    assert not list(sizes.check(read_module(TRAINER, "def short():\n" + "\n".join(["    pass"] * 49) + "\n")))


@pytest.mark.parametrize(
    "line",
    ["time.time()", "datetime.now(UTC)", "datetime.datetime.now()", "random.random()", "uuid.uuid4()", "open(p)",
     "torch.rand(3)", "x.bernoulli_(0.5)"],
)  # fmt: skip
def test_hidden_time_chance_and_files_are_found_in_pure_packages_only(line: str) -> None:
    assert list(purity.check(read_module(PLANNING, line)))
    assert not list(purity.check(read_module(TRAINER, line)))


def test_chance_from_a_given_generator_is_pure() -> None:
    assert not list(purity.check(read_module(PLANNING, "torch.rand(3, generator=g)\nx.uniform_(generator=g)")))


@pytest.mark.parametrize(
    "line", ["a = 'DecoupledDiLoCo'", "if policy.preset == name: pass", "match policy.preset:\n    case _: pass"]
)
def test_branching_on_an_algorithms_name_is_found_below_the_policy(line: str) -> None:
    assert list(one_engine.check(read_module(TRAINER, line)))
    assert not list(one_engine.check(read_module("crds/diloco_api/sync_policy.py", line)))


def test_printing_an_algorithms_name_is_no_branch() -> None:
    assert not list(
        one_engine.check(read_module(TRAINER, "print(policy.preset)\n'''DiLoCo is described elsewhere.'''"))
    )


@pytest.mark.parametrize("line", ["import pickle", "from pickle import loads", "import marshal as m", "torch.load(f)"])
def test_code_that_runs_code_while_reading_is_found(line: str) -> None:
    assert list(no_pickle.check(read_module(TRAINER, line)))
    assert not list(no_pickle.check(read_module(TRAINER, "import json\njson.load(f)\nmodel.eval()")))


def test_files_in_the_wrong_place_are_found() -> None:
    files = [
        "operator/__init__.py",
        "operator/diloco_cli/sub/x.py",
        "operator/diloco_cli/__init__.py",
        "tests/unit/__init__.py",
    ]
    assert {breach.path for breach in places.check(files)} == {
        "operator/__init__.py",
        "operator/diloco_cli/sub",
        "tests/unit/__init__.py",
    }


def test_dead_links_and_anchors_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# A heading: of `code`\n")
    (tmp_path / "a.md").write_text(
        "[ok](b.md) [ok](b.md#a-heading-of-code) [ok](https://example.org/x)\n"
        "[bad](c.md)\n```\n[not prose](d.md)\n```\n[bad](b.md#no)\n`[code](e.md)`\n"
    )
    assert [(breach.line, breach.text) for breach in links.check("a.md", tmp_path)] == [
        (2, "link to c.md: no such file"),
        (6, "link to b.md#no: no such heading"),
    ]
