"""Validation losses, and the end of a job: evaluate, write `outer.safetensors`, then the end is told to `Admin`.

Learners are told of the end before, as soon as it is durable. What is evaluated and written are the parameters Learners
hold (`published`), never theta. Everything long runs on a worker of its own.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from diloco_api.names import FILE_OUTER
from diloco_trainer.algorithm.fragments import FragmentLayout, scatter
from diloco_trainer.synchronizer.core import Core
from diloco_trainer.synchronizer.log import sync_folder
from diloco_trainer.synchronizer.records import LossRecord
from diloco_trainer.synchronizer.runner import Worker
from diloco_trainer.synchronizer.snapshot import save_tensors
from diloco_trainer.task.task import Task

logger = logging.getLogger(__name__)


class Finale:
    """Belongs to the engine thread."""

    def __init__(
        self, folder: Path, core: Core, task: Task, worker: Worker, on_crash: Callable[[BaseException], None]
    ) -> None:
        self._folder = folder
        self._core = core
        self._task = task
        self._worker = worker
        self._on_crash = on_crash
        self.over = False
        """The job has ended (or was drained) and everything about it is on disk."""

    def evaluate_first(self) -> None:
        """Find the validation loss of version 0, which the task can build again at any time."""

        def done(loss: float) -> None:
            logger.info("validation loss of version 0 is %.4f", loss)
            self._core.journal.record(LossRecord("initial", loss))

        self._worker.submit(lambda: self._task.evaluate(self._task.build_model()), done, self._on_crash)

    def end(self, snapshot: Callable[[Callable[[], None]], None]) -> None:
        """The end is on record: evaluate, write the parameters, take a snapshot, and only then be over."""
        core = self._core
        anchors = [state.published for state in core.fragments]  # nothing merges any more
        about = {
            "job_name": core.run.job_name,
            "job_uid": core.run.job_uid,
            "epoch": str(core.context.epoch),
            "versions": json.dumps([state.version for state in core.fragments]),
        }
        path = self._folder / FILE_OUTER

        def work() -> float:
            return export(path, self._task, core.context.layout, anchors, about)

        def done(loss: float) -> None:
            logger.info("validation loss of the outer parameters is %.4f", loss)
            core.journal.record(LossRecord("final", loss))
            snapshot(over)

        def over() -> None:
            self.over = True
            logger.info("the job is %s", core.phase())

        self._worker.submit(work, done, self._on_crash)


def export(path: Path, task: Task, layout: FragmentLayout, anchors: list[Tensor], about: dict[str, str]) -> float:
    """Write the anchors (flat fp32 [numel], one for each fragment) as named tensors, durably and at once.

    Returns their validation loss, nats per token.
    """
    model = task.build_model()
    params = task.parameters(model)
    for fragment, anchor in zip(layout.fragments, anchors, strict=True):
        scatter(fragment, anchor, params)
    loss = task.evaluate(model)
    tensors = {name: tensor.detach().to(torch.float32).contiguous() for name, tensor in params.items()}
    temporary = path.with_suffix(".tmp")
    save_tensors(tensors, temporary, about)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)
    return loss
