"""Plain-PyTorch stand-ins for the ops of pyg-lib, which is not on PyPI, so that the layers that need it can be built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.nn.conv import spline_conv

__all__ = ["pyg_lib_ops"]


def spline_basis(pseudo: Tensor, kernel_size: Tensor, is_open_spline: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Return weights and kernel ids ``[E, 2^D]`` of linear B-splines at pseudo-coordinates ``[E, D]``."""
    assert degree == 1
    place = pseudo * (kernel_size - is_open_spline)
    below, bases, index = place.floor(), [], []
    stride = torch.cat([kernel_size.new_ones(1), kernel_size.cumprod(0)[:-1]])
    for corner in torch.cartesian_prod(*[torch.arange(2)] * pseudo.size(1)):
        weight = torch.where(corner.bool(), place - below, 1 - (place - below))
        bases.append(weight.prod(1))
        index.append((((below.long() + corner) % kernel_size) * stride).sum(1))
    return torch.stack(bases, 1), torch.stack(index, 1)


def spline_weighting(x: Tensor, weight: Tensor, basis: Tensor, weight_index: Tensor) -> Tensor:
    """Return ``[E, O]``: rows ``x [E, F]`` times the interpolated kernel ``weight [K, F, O]``."""
    return torch.einsum("es,ef,esfo->eo", basis, x, weight[weight_index])


def knn(x: Tensor, y: Tensor, ptr_x: Any, ptr_y: Any, k: int, cosine: bool, num_workers: int) -> Tensor:
    """Return for each row of ``y`` its ``k`` nearest rows of ``x``: ``[2, N k]``, first ``y``, then ``x``."""
    nearest = torch.cdist(y, x).topk(k, largest=False).indices
    return torch.stack([torch.arange(y.size(0)).repeat_interleave(k), nearest.view(-1)])


@contextmanager
def pyg_lib_ops() -> Iterator[None]:
    """Put the stand-ins where PyG looks for pyg-lib, unless it is there."""
    if torch_geometric.typing.WITH_PYG_LIB:
        yield
        return
    spline_conv.spline_basis, spline_conv.spline_weighting = spline_basis, spline_weighting
    torch_geometric.typing.WITH_KNN = True
    ops = torch.ops.pyg
    ops.knn = knn
    try:
        yield
    finally:
        spline_conv.spline_basis = spline_conv.spline_weighting = None
        torch_geometric.typing.WITH_KNN = False
        del ops.knn
