"""Propagation of labels: the number of classes and the mean error are those of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.nn.models import CorrectAndSmooth
from torch_geometric.utils import one_hot

from lightning_gnncomm.halo.context import HaloContext, Scope
from lightning_gnncomm.halo.namespaces import Redirection

__all__ = ["LABELS", "intercept_correction"]


def _one_hot_of_all(
    scope: Scope, original: Callable[..., Tensor], index: Tensor, num_classes: int | None = None, **kwargs: Any
) -> Tensor:
    """Give a column to every class that any rank knows, where a layer left their number to the largest label."""
    if num_classes is None:
        last = index.max() if index.numel() else index.new_tensor(-1)
        num_classes = int(scope.context.channel.wire.all_reduce(last, "max")) + 1
    return original(index, num_classes, **kwargs)


LABELS = (Redirection("torch_geometric.nn.models.label_prop", one_hot, _one_hot_of_all),)
"""The function by which labels become rows, with the classes of all ranks inside an attached model."""


def intercept_correction(layer: CorrectAndSmooth, path: str, context: HaloContext) -> Callable[[], None]:
    """Let ``correct`` scale by the mean error over the training nodes of all ranks; return what reverts it.

    Args:
        layer: The layer; the two propagations in it are intercepted by themselves.
        path: Its path inside the model.
        context: The shared state of the model's hooks.
    """

    def correct(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not context.is_distributed or not self.autoscale:
            return type(self).correct(self, *args, **kwargs)  # type: ignore[no-any-return]
        with _MeansOverRanks(path, context):
            return type(self).correct(self, *args, **kwargs)  # type: ignore[no-any-return]

    layer.correct = MethodType(correct, layer)

    def revert() -> None:
        layer.__dict__.pop("correct", None)

    return revert


class _MeansOverRanks(TorchFunctionMode):
    """Makes a sum of all entries, divided by a number of own rows, the quotient of both over all ranks."""

    def __init__(self, path: str, context: HaloContext) -> None:
        super().__init__()
        self._path, self._context = path, context
        self._sums: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.__truediv__, torch.Tensor.div) and any(args[0] is total for total in self._sums):
            total, count = args
            return total / self._context.channel.wire.all_reduce(torch.tensor(count, device=total.device))
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.sum and len(args) == 1 and not kwargs and result.is_floating_point():
            result = self._context.all_reduce(result, self._path)
            self._sums.append(result)
        return result
