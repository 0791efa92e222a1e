"""Local aggregation by sparse matrix products, where PyG's layers can use them and the adjacency does not change."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.utils import spmm

from lightning_gnncomm.halo.context import HaloContext, Scope
from lightning_gnncomm.halo.namespaces import Redirection

__all__ = ["SPARSE", "Aggregator", "aggregator"]

_PLAIN_MESSAGES = {"edge_weight"}
_DIFFERS_WHEN_FUSED = frozenset({"EGConv"})  # its fused 'std' has another floor than its messages

with warnings.catch_warnings():
    # Torch says once per process that CSR is in beta.
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), dtype=torch.float32, check_invariants=False)


class Aggregator(NamedTuple):
    """A constant weighted adjacency in both directions, so that neither pass has to transpose it.

    Args:
        forward: CSR matrix from own and halo source nodes to own target nodes, ``[n_dst, n_src + H_src]``.
        backward: Its transpose.
    """

    forward: Tensor
    backward: Tensor


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Aggregator) -> Tensor:
        ctx.matrix = matrix
        return matrix.forward @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.backward @ grad.contiguous(), None


def aggregator(
    layer: MessagePassing,
    edge_index: Tensor,
    kwargs: Mapping[str, Any],
    blocks: Mapping[str, Tensor],
    context: HaloContext,
) -> Tensor | None:
    """Return the adjacency as a CSR matrix if a layer's propagate means a product with it, else ``None``.

    That is so for PyG layers with a fused implementation, if they sum or average rows weighted by nothing but the batch's own
    edge weights. The matrix is built once; the product, unlike messages, needs no tensor of ``E x F`` values.

    Args:
        layer: The layer.
        edge_index: Edges of the call.
        kwargs: Arguments of ``propagate``.
        blocks: Those of them that travel between ranks.
        context: The shared state; it keeps the matrix.
    """
    weight = kwargs.get("edge_weight")
    others = [k for k, v in kwargs.items() if v is not None and k not in blocks and k not in _PLAIN_MESSAGES]
    is_product = (
        layer.fuse
        and not layer.explain
        and layer.flow == "source_to_target"
        and layer.aggr in ("sum", "add", "mean")
        and type(layer).__module__.startswith("torch_geometric.")
        and type(layer).__name__ not in _DIFFERS_WHEN_FUSED
        and not others
        and len(blocks) == 1
        and all(x.dim() == 2 and x.dtype in (torch.float32, torch.float64) for x in blocks.values())
    )
    if not (is_product and context.is_static(edge_index) and context.is_static(weight)):
        return None
    (x,) = blocks.values()
    options = (layer.aggr == "mean", x.dtype, id(context.relation.plan))
    found = context.matrices.get(edge_index, weight, extra=options)
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = _build(edge_index, weight, layer.aggr == "mean", x.dtype, context)
        context.matrices.put(found, edge_index, weight, extra=options)
    return found.forward


def _build(
    edge_index: Tensor, weight: Tensor | None, mean: bool, dtype: torch.dtype, context: HaloContext
) -> Aggregator:
    num_all, num_own = context.relation.size
    source, target = edge_index
    values = torch.ones_like(source, dtype=dtype) if weight is None else weight.view(-1).to(dtype)
    if mean:
        values = values / torch.bincount(target, minlength=num_own).clamp(min=1)[target]
    return Aggregator(
        _csr(target, source, values, (num_own, num_all)), _csr(source, target, values, (num_all, num_own))
    )


def _csr(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    order = rows.argsort(stable=True)
    starts = torch.zeros(size[0] + 1, dtype=torch.long, device=rows.device)
    starts[1:] = torch.bincount(rows, minlength=size[0]).cumsum(0)
    return torch.sparse_csr_tensor(starts, columns[order], values[order], size, check_invariants=False)


def _kept_spmm(scope: Scope, original: Callable[..., Tensor], src: Any, other: Tensor, reduce: str = "sum") -> Tensor:
    """Multiply with a kept matrix, into which the mean's division went already; leave others to PyG."""
    matrix = scope.context.matrices.find(lambda kept: kept.forward is src)
    if matrix is None:
        return original(src, other, reduce)
    product: Tensor = _Aggregate.apply(other, matrix)  # type: ignore[no-untyped-call]
    return product


SPARSE = (Redirection("torch_geometric.nn.conv", spmm, _kept_spmm),)
"""The sparse product of PyG's fused layers, with the transpose at hand inside an attached model."""
