"""Which nodes a stage uses, and their loss."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

__all__ = ["Stage", "mean_loss", "select_labelled"]

Stage: TypeAlias = Literal["train", "val", "test"]


def select_labelled(batch: Data, stage: Stage, multi_label: bool) -> tuple[Tensor, Tensor]:
    """Return the targets of all nodes and which of them a stage uses.

    Shapes:
        targets are int64 ``[n]``, or ``[n, C]`` for several labels a node; the choice is bool ``[n]``.

    Raises:
        ValueError: If there are no labels, or labels or mask have an unexpected shape.

    Example:
        >>> data = Data(y=torch.tensor([0, -1, 1]), train_mask=torch.tensor([True, True, False]))
        >>> select_labelled(data, "train", multi_label=False)[1].tolist()
        [True, False, False]
    """
    target, mask = batch.get("y"), batch.get(f"{stage}_mask")
    if target is None:
        raise ValueError(f"Expected a graph with labels `y`, got {batch}.")
    if target.dim() == 2 and target.size(1) == 1 and not multi_label:
        target = target.squeeze(1)
    if target.dim() != 1 + multi_label:
        hint = "multi_label=False" if multi_label else "multi_label=True"
        raise ValueError(f"Expected `y` of {1 + multi_label} dimensions, got shape {list(target.shape)}. Is it {hint}?")
    if mask is not None and mask.dim() != 1:
        raise ValueError(
            f"Expected one {stage} mask, got shape {list(mask.shape)}. Choose a split: data.{stage}_mask[:, 0]."
        )
    labelled = (target >= 0).all(1) if multi_label else target >= 0
    chosen = labelled if mask is None else mask.bool() & labelled
    return torch.where(target >= 0, target, -1).long(), chosen


def mean_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of ``m`` nodes: NaN without a node, yet with a gradient of zeros for what made the logits.

    A halo strategy reads the number of nodes off the loss and gives a rank without any the weight 0.

    Shapes:
        ``logits`` is ``[m, C]``; ``target`` is ``[m]``, or ``[m, C]`` for several labels a node.

    Example:
        >>> mean_loss(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
        tensor(0.6931)
    """
    if target.dim() == 2:
        return F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype))
    return F.cross_entropy(logits, target)
