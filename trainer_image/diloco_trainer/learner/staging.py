"""Copies of a fragment for the exchange thread, taken at a step boundary.

On the CPU a plain copy. On a GPU the copy runs on a side stream into pinned memory while training goes on; the
training stream waits for it only before the parameters change. Nothing is computed here.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from diloco_trainer.algorithm.fragments import Fragment, gather


def _done() -> None:
    """A finished copy needs no waiting."""


class Stager:
    """Copies fragments of the parameters living on one device."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._last_copy: torch.cuda.Event | None = None

    def copy(self, fragment: Fragment, params: Mapping[str, Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """Flat fp32 CPU copy [numel], and what to call before its values are read."""
        if self._stream is None:
            return gather(fragment, params), _done
        flat = torch.empty(fragment.numel, dtype=torch.float32, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        start = 0
        with torch.cuda.stream(self._stream):
            for tensor in fragment.tensors:
                source = params[tensor.name].detach()
                flat[start : start + tensor.numel].view(tensor.shape).copy_(source, non_blocking=True)
                start += tensor.numel
            self._last_copy = self._stream.record_event()
        return flat, self._last_copy.synchronize

    def before_change(self) -> None:
        """Call before the parameters are changed: what is being copied must not."""
        if self._stream is not None and self._last_copy is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._last_copy)
