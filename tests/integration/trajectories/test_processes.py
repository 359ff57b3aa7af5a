"""Real processes, free to run: what they trained equals the references, digest by digest.

Synchronous presets do not depend on timing, so a run of real processes equals the reference directly. A Decoupled run
does depend on it: its tape (Learners' tapes and the Synchronizer's log) is replayed by the reference, which recomputes
every body, merge and version. Compared: the digest of every version, merge branches, every loss, every body's sha256,
and the final outer parameters, momentum and published values.
"""

import pytest
import torch
from safetensors.torch import load_file

from diloco_api.names import FILE_OUTER
from diloco_trainer.algorithm.fragments import make_layout
from diloco_trainer.synchronizer.snapshot import load_newest
from diloco_trainer.task.task import make_task
from reference import decoupled, streaming
from reference.arithmetic import digest
from reference.hand import run_config
from reference.processes import Job
from reference.replay import replay
from reference.task_inner import TaskInner, fixed_work

STEPS = 600  # tapes are written with heartbeats: there must be work left when the first ones can be read


def assert_final_state(job, newest):
    """Theta, momentum and published value of every fragment as the last snapshot holds them, all bits."""
    loaded = load_newest(job.state, job.run.policy.retained_versions)
    for state, wanted in zip(loaded.fragments, newest, strict=True):
        for name in ("theta", "momentum", "published"):
            left, right = getattr(state, name), getattr(wanted, name)
            assert torch.equal(left.view(torch.int32), right.view(torch.int32)), (name, state.index)


def layout_of(run, task):
    return make_layout(task.tensor_specs(task.build_model()), run.policy.num_fragments, run.policy.fragmentation)


def epoch_of(job):
    (join,) = [event for event in job.tape("learner-0-1") if event["kind"] == "join"]
    return join["epoch"]


def num_adoptions(job, name):
    return sum(event["kind"] == "adoption" for event in job.tape(name))


@pytest.mark.timeout(300)
def test_a_streaming_run_of_real_processes_equals_the_reference(tmp_path):
    changes = {
        "algorithm.syncEvery": 10,
        "algorithm.fragments": 3,
        "algorithm.fragmentation": "BalancedTensor",
        "algorithm.syncDelay": 2,
        "algorithm.encoding": {"up": "fp32", "down": "bf16"},
    }
    steps = 47  # not a whole number of rounds
    run = run_config(tmp_path, "StreamingDiLoCo", replicas=2, steps=steps, changes=changes)
    with Job(run, tmp_path) as job:
        job.start_synchronizer()
        for index in range(2):
            job.start_learner(index)
        job.finish()
    task = make_task(run.train)
    layout = layout_of(run, task)
    common = {"replicas": 2, "steps": steps, "num_sequences": task.num_sequences}
    inners = [TaskInner(task, run.train, layout.fragments, fixed_work(run.train, index=m, **common)) for m in range(2)]
    rules = {"sync_every": 10, "sync_delay": 2, "blend_alpha": 0.5, "lr": 0.4, "mu": 0.9}
    wanted = streaming.train(inners, steps=steps, **rules, uplink=streaming.plain_uplink("fp32"), down="bf16")
    digests = {(v.fragment, v.version): digest(epoch_of(job), v.fragment, v.version, v.published) for v in wanted}
    logged = {(merge.fragment, merge.version): found for merge, _, found in job.merges()}
    assert logged == {key: value for key, value in digests.items() if key[1] > 0}
    newest = {v.fragment: v for v in wanted}
    assert_final_state(job, [newest[f] for f in range(3)])
    for m, inner in enumerate(inners):
        losses = [event["loss"] for event in job.tape(f"learner-{m}-1") if event["kind"] == "step"]
        assert losses == inner.losses


@pytest.mark.timeout(300)
def test_the_tape_of_a_free_decoupled_run_is_replayed_to_the_same_digests(tmp_path):
    changes = {
        "algorithm.syncEvery": 12,
        "algorithm.fragments": 6,
        "train.data.sequenceLength": 64,
        "train.batch.sequences": 8,
        "train.model": {"layers": 2, "hidden": 16, "heads": 2},
    }
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=3, steps=STEPS, changes=changes)
    with Job(run, tmp_path) as job:
        job.start_synchronizer()
        for index in range(3):
            job.start_learner(index)
        job.until(lambda: all(num_adoptions(job, f"learner-{index}-1") >= 6 for index in range(3)))
        with job.frozen("learner-1-1"):
            job.stop("learner-2-1")
            with job.frozen("learner-0-1"):  # so that there is work left for the one that replaces it
                job.start_learner(2, 2)
                job.until(lambda: job.tape("learner-2-2"))
        job.finish()
    task = make_task(run.train)
    layout = layout_of(run, task)
    policy = run.policy
    rules = decoupled.Rules(
        lr=0.6,
        mu=0.9,
        sync_delay=policy.sync_delay,
        blend_alpha=policy.blend_alpha,
        up="int4",
        down="int8",
        error_feedback=True,
    )
    first = TaskInner(task, run.train, layout.fragments, ())
    start = [first.read(f) for f in range(policy.num_fragments)]
    names = ["learner-0-1", "learner-1-1", "learner-2-1", "learner-2-2"]
    synchronizer, incarnations = replay(
        [job.tape(name) for name in names],
        [merge for merge, _, _ in job.merges()],
        lambda work: TaskInner(task, run.train, layout.fragments, work),
        rules,
        start,
    )
    epoch = epoch_of(job)
    for merge, branch, found in job.merges():
        made = synchronizer.versions[merge.fragment][merge.version]
        assert found == digest(epoch, merge.fragment, merge.version, made.published)
        assert branch == synchronizer.branches[merge.fragment, merge.version]
    assert_final_state(job, [synchronizer.newest(f) for f in range(policy.num_fragments)])
    outer = load_file(job.state / FILE_OUTER)
    flat = [torch.cat([outer[t.name].flatten() for t in fragment.tensors]) for fragment in layout.fragments]
    assert all(torch.equal(x, synchronizer.newest(f).published) for f, x in enumerate(flat))
    assert min(len(merge.contributions) for merge, _, _ in job.merges()) < 3, "not always everyone"
    assert sum(incarnation.done for incarnation in incarnations) > STEPS
