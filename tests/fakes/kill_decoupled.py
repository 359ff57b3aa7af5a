"""`kill_host` for Decoupled rounds: held, rebased and refused bodies, fencing joins and goodbyes in the killed lives.

As a program it exits 0 when nothing was lost: what Learners were told is on record, once; the state that snapshots and
the log's tail give is the one that all records since the first give; and an orderly script (see `decoupled_script`)
has come to what it comes to without a kill.
"""

import asyncio
import json
import os
import shutil
import sys
from collections import Counter
from difflib import unified_diff
from pathlib import Path
from typing import Any

import torch

from diloco_trainer.algorithm.events import GoneReason, RefusalReason
from diloco_trainer.synchronizer.assembly import Synchronizer, inline, open_job, threaded
from diloco_trainer.synchronizer.clock import SystemClock
from diloco_trainer.synchronizer.control import Control
from diloco_trainer.synchronizer.housekeeping import Limits
from diloco_trainer.synchronizer.log import Log, read_log, segment_numbers, segment_path
from diloco_trainer.synchronizer.records import AdmitRecord, GoneRecord, MergeRecord, Record, RefuseRecord, parse_record
from diloco_trainer.synchronizer.state import FragmentState
from fakes.clock import ManualClock
from fakes.decoupled_script import Script, decoupled_job
from fakes.kill_host import kill_lives
from fakes.toy_task import ToyTask

LIMITS = Limits(least_log_bytes=20_000)  # small, so that kills fall into snapshots too
LEAST_LINES = 150
"""Of reports: enough for three periods of the script."""


class Archive:
    """Keeps every segment of a log, as a second name of the same file."""

    def __init__(self, state: Path, archive: Path) -> None:
        self._state = state
        self._archive = archive
        archive.mkdir(exist_ok=True)

    def keep(self) -> None:
        """All segments there are now, and whatever is added to them or cut off."""
        for number in segment_numbers(self._state):
            kept = segment_path(self._archive, number)
            if not kept.exists():
                os.link(segment_path(self._state, number), kept)

    def attach(self, log: Log) -> None:
        """Keep segments before this log deletes them."""
        remove = log.remove_segments_before

        def keep_and_remove(number: int) -> None:
            self.keep()
            remove(number)

        log.remove_segments_before = keep_and_remove  # type: ignore[method-assign]


def life(folder: Path, report: int, orderly: bool) -> None:
    """One child, until it is killed."""
    archive = Archive(folder / "state", folder / "archive")
    if (folder / "state").exists():
        archive.keep()
    synchronizer = threaded(decoupled_job(), ToyTask(), folder / "state", SystemClock(), lambda _: os._exit(3), LIMITS)
    archive.attach(synchronizer.engine._opened.log)
    synchronizer.engine.start()

    async def pause() -> None:
        await asyncio.sleep(0.0005)

    asyncio.run(Script(synchronizer, orderly, pause, lambda line: write(report, line)).play(None))


def write(report: int, line: str) -> None:
    os.write(report, line.encode())


def undisturbed(folder: Path, rounds: int) -> Synchronizer:
    """The script, from wherever the folder has it, to the end of so many rounds, without threads or kills."""
    clock = ManualClock()
    calm = inline(decoupled_job(), ToyTask(), folder, clock)
    calm.engine.start()

    async def pause() -> None:
        clock.advance(0.02)
        calm.engine.post(lambda: void(calm.engine.tick()))
        await asyncio.sleep(0)

    asyncio.run(Script(calm, True, pause, lambda _: None).play(rounds))
    return calm


def void(_: object) -> None:
    """For a command whose answer nobody wants."""


def check_records(records: list[Record], told: list[dict[str, Any]]) -> None:
    """What was told is on record, nothing was settled twice, and the script has done what it is for."""
    settled: list[tuple[int, ...]] = []
    outcomes: dict[tuple[int, ...], tuple[int, str]] = {}
    for record in records:
        if isinstance(record, MergeRecord):
            for c in record.contributors:
                settled.append((c.index, c.incarnation, record.fragment, c.sequence))
                outcomes[settled[-1]] = (record.version, "merged")
        elif isinstance(record, RefuseRecord):
            settled.append((record.index, record.incarnation, record.fragment, record.sequence))
            outcomes[settled[-1]] = (record.newest_version, record.reason)
    twice = [key for key, count in Counter(settled).items() if count > 1]
    assert not twice, f"settled twice: {twice}"
    admitted = {(record.index, record.incarnation) for record in records if isinstance(record, AdmitRecord)}
    for item in told:
        who = tuple(item["who"])
        assert who in admitted
        if "settled" in item:
            fragment, sequence, version, outcome = item["settled"]
            assert outcomes.get((*who, fragment, sequence)) == (version, outcome), f"told {item}"
    gone = {record.reason for record in records if isinstance(record, GoneRecord)}
    assert gone == {GoneReason.FENCED, GoneReason.LEFT}, gone
    refused = {record.reason for record in records if isinstance(record, RefuseRecord)}
    assert {RefusalReason.NON_FINITE, RefusalReason.NORM_OUTLIER} <= refused, refused
    merges = [record for record in records if isinstance(record, MergeRecord)]
    assert any(len(record.contributors) == 3 for record in merges)
    assert any(c.base_version < record.version - 1 for record in merges for c in record.contributors), "no rebase"


def same_tensors(one: list[FragmentState], other: list[FragmentState]) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a.version, a.newest.digest) == (b.version, b.newest.digest)
        for name in ("theta", "momentum", "published"):
            assert torch.equal(getattr(a, name), getattr(b, name)), f"fragment {a.index}: {name} differs"
        assert a.norms == b.norms
        assert [item.checksum for item in a.retained] == [item.checksum for item in b.retained]


def durable_part(control: Control) -> dict[str, Any]:
    """Without the folder's own fencing number and the token clocks that heartbeats alone have told."""
    data = control.to_json()
    data["fence"] = 0
    for learner in data["ledger"]["learners"]:
        if not learner["gone"]:
            learner["clock"] = max(books["covered"] for books in learner["fragments"])
    return data


def script_part(control: Control) -> dict[str, Any]:
    """What an orderly script leaves behind whatever the kills: books, work, members, settlements."""
    data = durable_part(control)
    enrolled = [{name: item[name] for name in ("index", "incarnation", "gone", "settled")} for item in data["enrolled"]]
    return {**{name: data[name] for name in ("ledger", "pool", "newest", "versions")}, "enrolled": enrolled}


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Lines of JSON that only one of them has."""
    one, other = (json.dumps(data, indent=1, sort_keys=True).splitlines() for data in (found, wanted))
    return "\n".join(unified_diff(one, other, "killed", "undisturbed", n=2, lineterm=""))


def main(folder: Path, seed: int, kills: int, orderly: bool) -> None:
    torch.set_num_threads(1)
    reports = folder / "reports"
    for batch in range(5):  # a slow machine needs more lives for as much of the script
        kill_lives(reports, seed + 1000 * batch, kills, lambda _, report: life(folder, report, orderly))
        if len(reports.read_text().splitlines()) >= LEAST_LINES:
            break
    Archive(folder / "state", folder / "archive").keep()
    shutil.copytree(folder / "archive", folder / "whole log")  # opening appends
    shutil.copytree(folder / "state", folder / "played on")
    survived, _ = open_job(decoupled_job(), ToyTask(), folder / "state", ManualClock())
    folded, _ = open_job(decoupled_job(), ToyTask(), folder / "whole log", ManualClock())
    records = [parse_record(entry.meta) for entry in read_log(folder / "whole log", 1, 1)]
    check_records(records, [json.loads(line) for line in reports.read_text().splitlines()])
    same_tensors(survived.fragments, folded.fragments)
    assert json.dumps(durable_part(survived.journal.control)) == json.dumps(durable_part(folded.journal.control))
    assert segment_numbers(folder / "state")[0] > 1, "no kill could fall into a snapshot"
    versions = survived.journal.control.versions
    if orderly:
        rounds = sum(versions) + 1  # the last kill fell into the middle of one
        survivor, calm = (undisturbed(folder / name, rounds).engine for name in ("played on", "calm"))
        same_tensors(survivor.fragments, calm.fragments)
        found, wanted = script_part(survivor.control), script_part(calm.control)
        assert found == wanted, _difference(found, wanted)
    print("versions", versions)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "orderly")
