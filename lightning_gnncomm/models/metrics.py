"""Metrics of node classification that stay right on ranks without a node to score."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
    MultilabelAccuracy,
    MultilabelAUROC,
    MultilabelF1Score,
)

__all__ = ["METRICS", "build_metric", "update_metric"]

_IGNORED = -1

_SINGLE_LABEL: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda size: MulticlassAccuracy(size, average="micro", ignore_index=_IGNORED),
    "f1": lambda size: MulticlassF1Score(size, average="macro", ignore_index=_IGNORED),
    "auroc": lambda size: MulticlassAUROC(size, average="macro", ignore_index=_IGNORED),
}
_MULTI_LABEL: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda size: MultilabelAccuracy(size, average="micro", ignore_index=_IGNORED),
    "f1": lambda size: MultilabelF1Score(size, average="micro", ignore_index=_IGNORED),
    "auroc": lambda size: MultilabelAUROC(size, average="macro", ignore_index=_IGNORED),
}

METRICS: dict[str, str] = {"accuracy": "acc", "f1": "f1", "auroc": "auroc"}
"""Metrics by name, with the ending of the key they are logged under (``val_acc`` and so on)."""


def build_metric(name: str, num_classes: int, multi_label: bool) -> Metric:
    """Return a metric over all nodes of a stage.

    ``accuracy`` is the share of right nodes (multi-label: of right entries). ``f1`` is the macro average over classes
    (multi-label: the micro average over entries, as is usual there). ``auroc`` is the macro average of one class
    against the rest.

    Raises:
        ValueError: If no metric has that name.

    Example:
        >>> build_metric("f1", 3, multi_label=False)
        MulticlassF1Score()
    """
    if name not in METRICS:
        raise ValueError(f"Expected metrics out of {sorted(METRICS)}, got {name!r}.")
    return (_MULTI_LABEL if multi_label else _SINGLE_LABEL)[name](num_classes)


def update_metric(metric: Metric, logits: Tensor, target: Tensor) -> None:
    """Add nodes to a metric; there may be none.

    Example:
        >>> metric = build_metric("accuracy", 3, multi_label=False)
        >>> update_metric(metric, torch.eye(3), torch.tensor([0, 1, 0]))
        >>> update_metric(metric, torch.empty(0, 3), torch.empty(0, dtype=torch.long))
        >>> round(metric.compute().item(), 3)
        0.667

    Shapes:
        ``logits`` is ``[m, C]``; ``target`` is ``[m]``, or ``[m, C]`` for several labels a node.
    """
    # Metrics by counts fail on zero rows, and one that was never updated warns and may not take part in the reduction
    # over ranks. A row that is ignored keeps every rank on the same path.
    logits = torch.cat([logits, logits.new_zeros(1, logits.size(1))]).detach().float()
    target = torch.cat([target, target.new_full((1, *target.shape[1:]), _IGNORED)])
    # Torchmetrics guesses from the values of each update whether they are logits; ranks could guess differently.
    metric.update(logits.sigmoid() if target.dim() == 2 else logits.softmax(1), target)
