"""Notices tensors of a certain size that operations make."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class BigTensors(TorchDispatchMode):
    """Within it, `addresses` collects where results of exactly `num_bytes` bytes lie, those done in place left out."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._num_bytes = num_bytes
        self.addresses: set[int] = set()
        self._kept: list[torch.Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {item.untyped_storage().data_ptr() for item in args if isinstance(item, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.nbytes == self._num_bytes:
            where = result.untyped_storage().data_ptr()
            if where not in given:
                self.addresses.add(where)
                self._kept.append(result)
        return result
