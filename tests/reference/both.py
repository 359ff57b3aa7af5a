"""The product and the reference of Decoupled DiLoCo under one script, and the comparison at its end.

What the reference is told is only who stepped on which data at which rate, when fragments were staged, which
contributions a merge took, and when versions were adopted.
"""

import sqlite3
from contextlib import asynccontextmanager, closing

import torch

from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from reference import decoupled
from reference.arithmetic import digest
from reference.hand import EPOCH, Scripted
from reference.hand_learner import HandLearner, until
from reference.task_inner import TaskInner


class Both:
    """The product and the reference under one script."""

    def __init__(self, scripted, learners):
        policy = scripted.run.policy
        self.fragments = policy.num_fragments
        self.interval = policy.sync_every / policy.num_fragments  # seconds between turns: a step takes one second
        self.scripted, self.learners = scripted, learners
        self.rules = decoupled.Rules(
            lr=policy.outer_lr,
            mu=0.9,
            sync_delay=policy.sync_delay,
            blend_alpha=policy.blend_alpha,
            merge=policy.merge.value,
            weighting=policy.weighting.value,
            up=policy.encode_up.value,
            down=policy.encode_down.value,
            error_feedback=policy.error_feedback,
        )
        fragments = learners[0].core.layout.fragments
        train, task = scripted.run.train, scripted.task
        inners = [TaskInner(task, train, fragments, learner.taken) for learner in learners]
        start = [version.published for version in scripted.versions]
        self.synchronizer = decoupled.Synchronizer(start, inners[0].shapes, self.rules)
        self.references = [decoupled.Learner(inner, self.rules, list(start), [0] * self.fragments) for inner in inners]
        self.turn_number, self.waited = 0, 0.0
        self.ready = {}  # (learner, fragment) -> contribution of the reference that waits for a merge
        self.merged_in = {}  # (learner, fragment) -> version to adopt

    @classmethod
    @asynccontextmanager
    async def start(cls, run, folder):
        """Runs its block with both; then stops them and compares everything."""
        async with await Scripted.start(run, folder) as scripted:
            learners = [await HandLearner.join(scripted, index) for index in range(run.replicas)]
            for learner in learners:
                await learner.restore()
            both = cls(scripted, learners)
            await both.heard()
            yield both
        both.compare(folder)

    async def heard(self):
        for learner in self.learners:
            await learner.heartbeat(step_seconds=1.0)

    async def train(self, m, steps=1, sequences=None):
        done = await self.learners[m].train(steps, sequences=sequences)
        for _ in range(done):
            self.references[m].step()
        return done

    async def wait(self, seconds):
        self.scripted.advance(seconds)
        self.waited += seconds
        await self.heard()

    async def turn(self):
        """Wait for the next turn; the fragment it asks for."""
        await self.wait(self.interval - self.waited)
        self.turn_number, self.waited = self.turn_number + 1, 0.0
        for learner in self.learners:
            await until(lambda who=learner: (who.turns and who.turns[-1].number == self.turn_number) or None)
            turn = learner.turns[-1]
            assert turn.fragment == self.turn_number % self.fragments
        return turn.fragment

    def stage(self, m, f):
        """A stage to answer with later."""
        return self.learners[m].core.stage(f), self.references[m].stage(f)

    async def answer(self, m, f, stage=None, *, turn=None):
        """An answer to the present turn, or to an earlier one; returns what its receipt says."""
        mine, theirs = stage or self.stage(m, f)
        settlement = await self.learners[m].answer(f, turn or self.turn_number, mine)
        if theirs.c_steps > 0:
            self.ready[m, f] = self.references[m].contribute(theirs)
            opened = self.learners[m].uplink.fragments[f].open
            if opened is not None:
                assert bytes(opened.payload) == self.ready[m, f].body, "the same bytes on the wire"
        return settlement.outcome

    async def merged(self, f, contributors, *, after=0.0):
        """The round closes once so much time has passed, with exactly these contributions."""
        version = self.synchronizer.newest(f).version
        if after:
            assert self.product_version(f) == version, "not before"
            await self.wait(after)
        assert self.product_version(f) == version + 1
        made = self.synchronizer.merge(f, [self.ready.pop((m, f)) for m in contributors])
        self.merged_in |= {(m, f): made for m in contributors}

    def product_version(self, f):
        return self.scripted.fragments[f].version

    async def adopt(self, m, f):
        """Adopt what the open contribution was merged in."""
        how = await self.learners[m].adopt(f)
        made, reference = self.merged_in.pop((m, f)), self.references[m]
        timely = reference.step_count - reference.open[f].stage.step <= self.rules.sync_delay
        reference.adopt(f, made.version, made.published, reference.settle(f, "merged").stage)
        assert how == ("timely" if timely else "late")
        return how

    async def adopt_refused(self, m, f, outcome):
        """The open contribution was refused: adopt the version newest then; the outcome says what its residual is."""
        settlement = await self.learners[m].settlement(f)
        assert settlement.outcome == pb.REFUSED
        assert settlement.discarded_by_guard == (outcome == "guard")
        given, reference = self.synchronizer.versions[f][settlement.version], self.references[m]
        await self.learners[m].adopt(f)
        stage = reference.settle(f, outcome).stage
        reference.adopt(f, given.version, given.published, stage)
        self.ready.pop((m, f), None)
        return settlement.reason

    def compare(self, folder):
        """Everything, all bits."""
        with closing(sqlite3.connect(folder / "index.sqlite")) as index:
            logged = index.execute("SELECT fragment, version, branch, digest FROM merges ORDER BY 1, 2").fetchall()
        branches = self.synchronizer.branches
        made = [version for versions in self.synchronizer.versions for version in versions[1:]]
        assert logged == [
            (v.fragment, v.version, branches[v.fragment, v.version], digest(EPOCH, v.fragment, v.version, v.published))
            for v in made
        ]
        versions = self.scripted.versions
        assert len(versions) == sum(len(versions) for versions in self.synchronizer.versions)
        for version in versions:
            wanted = self.synchronizer.versions[version.fragment][version.version]
            for name in ("theta", "momentum", "published"):
                where = f"{name} of fragment {version.fragment} version {version.version}"
                assert same_bits(getattr(version, name), getattr(wanted, name)), where
        for learner, reference in zip(self.learners, self.references, strict=True):
            assert learner.losses == reference.inner.losses
            for name, parameter in learner.core.params.items():
                assert same_bits(parameter.detach(), reference.inner.params[name].detach()), name
            for clock, tokens, steps in zip(learner.core.clocks, reference.c_tokens, reference.c_steps, strict=True):
                assert (clock.c_tokens, clock.c_steps) == (tokens, steps)


def same_bits(left, right):
    return torch.equal(left.contiguous().view(torch.int32), right.contiguous().view(torch.int32))
