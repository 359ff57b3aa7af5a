"""Opening a state folder: only whole records count, only its own job is let in, a wrong byte stops the start."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diloco_api.exit_codes import ExitCode
from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm.fragments import make_layout
from diloco_trainer.synchronizer.assembly import EPOCH, make_pool, open_job, policy_digest
from diloco_trainer.synchronizer.control import new_control
from diloco_trainer.synchronizer.frames import read_frames
from diloco_trainer.synchronizer.log import Log, read_log, segment_path
from diloco_trainer.synchronizer.merge_exec import MergeContext
from diloco_trainer.synchronizer.records import JobRecord, MergeRecord, dump_record, parse_record
from diloco_trainer.synchronizer.recovery import Opened, StateError, open_state
from diloco_trainer.synchronizer.state import first_state
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.clock import ManualClock
from fakes.sync_jobs import Bench, run_config, synchronous
from fakes.toy_task import ToyTask


def job() -> RunConfig:
    return run_config(synchronous({"encode_up": "int4", "encode_down": "int8"}))


def opened(folder: Path, run: RunConfig) -> Opened:
    state, _ = open_job(run, ToyTask(), folder, ManualClock())
    state.journal.close_index()
    state.log.close()
    state.lock.close()
    return state


async def some_work(folder: Path) -> None:
    """What a killed Synchronizer leaves behind; the log ends with a merge and a refusal."""
    bench = Bench(job(), folder.with_name("live"))
    learners = [bench.learner(index) for index in range(2)]
    for learner in learners:
        await learner.join()
    for learner in learners:
        await learner.pull_everything()
        await learner.lease(want=400)
    for fragment in (0, 1, 0):
        for learner in learners:
            learner.train(2)
            await learner.heartbeat()
            await learner.contribute(fragment, learner.parts[fragment].version + 1)
        for learner in learners:
            await learner.adopt(await learner.resend(fragment))
    learners[0].train(1)
    payload = b"\xff" * bench.synchronizer.backend.expectation(1).size_bytes
    settled = await learners[0].send(learners[0].header(1, 2, 2, payload), payload)
    assert settled.outcome == pb.REFUSED
    shutil.copytree(bench.folder, folder)


def opener() -> Callable[[Path], Opened]:
    """Opens folders of the job again and again without building the task each time."""
    task, run = ToyTask(), job()
    model = task.build_model()
    layout = make_layout(task.tensor_specs(model), run.policy.num_fragments, run.policy.fragmentation)
    context = MergeContext(run.policy, layout, EPOCH)
    numels = tuple(fragment.numel for fragment in layout.fragments)
    record = JobRecord(run.job_uid, layout.digest, policy_digest(run), EPOCH)

    def reopen(folder: Path) -> Opened:
        state = open_state(
            folder,
            record,
            context,
            lambda: new_control(numels, make_pool(run, task)),
            lambda: first_state(layout, task.parameters(model), EPOCH, run.policy.retained_versions),
            wall=0.0,
        )
        state.journal.close_index()
        state.log.close()
        state.lock.close()
        return state

    return reopen


def copy_cut(folder: Path, to: Path, size: int) -> Path:
    to.mkdir()
    segment_path(to, 1).write_bytes(segment_path(folder, 1).read_bytes()[:size])
    return to


async def test_a_log_cut_at_any_byte_of_its_last_records_opens_as_the_fold_of_the_whole_ones(tmp_path: Path) -> None:
    await some_work(tmp_path / "state")
    ends = [0, *(end for _, end in read_frames(segment_path(tmp_path / "state", 1), 1))]
    reopen = opener()
    wanted: dict[int, tuple[str, list[torch.Tensor]]] = {}
    # every byte of the last record, and enough of the one before; `test_log` cuts at every byte of all
    for cut in [*range(ends[-3], ends[-2], 25), *range(ends[-2], ends[-1] + 1)]:
        num_whole = sum(end <= cut for end in ends) - 1
        folder = copy_cut(tmp_path / "state", tmp_path / f"cut-{cut}", cut)
        state = reopen(folder)
        control = {**state.journal.control.to_json(), "fence": 0}
        tensors = [t for f in state.fragments for t in (f.theta, f.momentum, f.published)]
        if num_whole not in wanted:  # cut exactly behind a record: nothing but whole records
            assert cut == ends[num_whole]
            wanted[num_whole] = (json.dumps(control), tensors)
        assert json.dumps(control) == wanted[num_whole][0]
        assert all(torch.equal(one, other) for one, other in zip(tensors, wanted[num_whole][1], strict=True))
        shutil.rmtree(folder)
    assert len({text for text, _ in wanted.values()}) == 3


async def test_control_state_survives_a_trip_through_a_snapshot(tmp_path: Path) -> None:
    await some_work(tmp_path / "state")
    control = opened(tmp_path / "state", job()).journal.control
    text = json.dumps(control.to_json())
    again = type(control).from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text


async def test_the_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    await some_work(tmp_path / "state")
    for changes, word in (
        ({"job_uid": "another"}, "belongs to job"),
        ({"policy": synchronous({"num_fragments": 3})}, "layout"),
        ({"policy": synchronous({"outer_lr": 0.1})}, "policy"),
    ):
        with pytest.raises(StateError, match=word) as caught:
            opened(tmp_path / "state", job().model_copy(update=changes))
        assert caught.value.code == ExitCode.STATE_FOREIGN


@pytest.mark.parametrize("field", ["theta_crc", "momentum_crc", "digest", "branch"])
async def test_a_replay_that_gives_other_bytes_stops_and_names_record_and_fragment(tmp_path: Path, field: str) -> None:
    await some_work(tmp_path / "state")
    entries = list(read_log(tmp_path / "state", 1, 1))
    forged = tmp_path / "forged"
    forged.mkdir()
    log = Log(forged, 1, 1)
    forged_lsn = 0
    for entry in entries:
        record = parse_record(entry.meta)
        meta = json.loads(entry.meta)
        if isinstance(record, MergeRecord) and record.fragment == 1:
            meta[field] = "0" if isinstance(meta[field], str) else meta[field] ^ 1
            forged_lsn = entry.lsn
        log.append(dump_record(parse_record(json.dumps(meta).encode())), entry.blobs)
    log.close()
    with pytest.raises(StateError, match=rf"record {forged_lsn} \(fragment 1, version 1\)") as caught:
        opened(forged, job())
    assert caught.value.code == ExitCode.STATE_CORRUPT
    assert "\n" not in str(caught.value)


async def test_each_opening_has_a_greater_fencing_number_on_record(tmp_path: Path) -> None:
    numbers = [opened(tmp_path / "state", job()).journal.control.fence for _ in range(3)]
    assert numbers == [1, 2, 3]


async def test_a_deleted_index_harms_nothing(tmp_path: Path) -> None:
    await some_work(tmp_path / "state")
    (tmp_path / "state" / "index.sqlite").unlink()
    assert opened(tmp_path / "state", job()).fragments[0].version == 2
    assert (tmp_path / "state" / "index.sqlite").exists()
