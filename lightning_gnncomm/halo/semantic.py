"""Attention over relations, whose weights are means over the nodes of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv import han_conv

from lightning_gnncomm.halo.context import Scope
from lightning_gnncomm.halo.namespaces import Redirection

__all__ = ["SEMANTIC"]


def _global_group(
    scope: Scope, original: Callable[..., Any], xs: list[Tensor], q: Tensor, k_lin: torch.nn.Module
) -> tuple[Tensor | None, Tensor | None]:
    """Weigh what ``R`` relations give the own nodes of a type, ``R`` tensors ``[n, F]``, by scores over all its nodes.

    PyG returns early for a type without nodes; here a rank without any still takes part in the sums.
    """
    if not xs:
        return None, None
    out = torch.stack(xs)
    sums = torch.tanh(k_lin(out)).sum(1).double()
    count = sums.new_full((len(xs), 1), out.size(1))
    total = scope.context.all_reduce(torch.cat([sums, count], 1), scope.layer)
    if not total[0, -1]:
        return out.view(0, out.size(-1)), None
    mean = (total[:, :-1] / total[:, -1:]).to(out.dtype)
    weights = (q * mean).sum(-1).softmax(0)
    return (weights.view(-1, 1, 1) * out).sum(0), weights


SEMANTIC = (Redirection("torch_geometric.nn.conv", han_conv.group, _global_group),)
"""The reduction over nodes inside HANConv, global inside an attached model."""
