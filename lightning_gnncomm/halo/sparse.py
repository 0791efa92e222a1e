"""Local aggregation by sparse matrix products, where PyG's layers can use them and the adjacency does not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.utils import spmm

from lightning_gnncomm.graph.adjacency import csr_matrix, entries
from lightning_gnncomm.halo.context import HaloContext, Scope
from lightning_gnncomm.halo.exchange import Message, send_gradients, send_rows
from lightning_gnncomm.halo.namespaces import Redirection

__all__ = ["SPARSE", "Aggregator", "aggregator"]

_PLAIN_MESSAGES = {"edge_weight"}
_DIFFERS_WHEN_FUSED = frozenset({"EGConv"})  # its fused 'std' has another floor than its messages


class Directions(NamedTuple):
    """A constant matrix and its transpose, so that neither pass has to transpose it.

    Args:
        forward: CSR matrix from source nodes to own target nodes.
        backward: Its transpose.
    """

    forward: Tensor
    backward: Tensor


class Aggregator(NamedTuple):
    """A constant weighted adjacency, in two parts: what needs no rows of other ranks runs while these are on their way.

    Args:
        own: From own source nodes, ``[n_dst, n_src]``.
        halo: From halo nodes, ``[n_dst, H_src]``.
    """

    own: Directions
    halo: Directions


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Directions) -> Tensor:
        ctx.matrix = matrix
        return matrix.forward @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.backward @ grad.contiguous(), None


class _Aggregate(torch.autograd.Function):
    """``[n, F] -> [n_dst, F]``, with halo rows ``[H, F]`` at hand or brought by a message while own rows are summed.

    Backward is the same turned round: gradients of halo rows leave first, those of own rows are computed meanwhile.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor | None, matrix: Aggregator, message: Message | None) -> Any:
        ctx.matrix, ctx.message = matrix, message
        delivery = None if message is None else send_rows(message, [x])
        out = matrix.own.forward @ x
        if delivery is not None:
            (rows,) = delivery.wait()
        assert rows is not None
        if rows.size(0):
            out += matrix.halo.forward @ rows
        if message is None:
            return out, None
        ctx.mark_non_differentiable(rows)
        return out, rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        matrix, message, grad = ctx.matrix, ctx.message, grad.contiguous()
        if message is None:
            of_own = matrix.own.backward @ grad if ctx.needs_input_grad[0] else None
            return of_own, matrix.halo.backward @ grad if ctx.needs_input_grad[1] else None, None, None
        delivery = send_gradients(message, {0: matrix.halo.backward @ grad})
        of_own = matrix.own.backward @ grad
        (back,) = delivery.wait()
        return of_own.index_add_(0, message.plan.send_index, back), None, None, None


def aggregator(
    layer: MessagePassing,
    edge_index: Tensor,
    kwargs: Mapping[str, Any],
    blocks: Mapping[str, Tensor],
    context: HaloContext,
) -> Aggregator | None:
    """Return the adjacency as CSR matrices if a layer's propagate means a product with it, else ``None``.

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
        and not any(context.is_table(x, layer.node_dim) for x in blocks.values())
        and all(x.dim() == 2 and x.dtype in (torch.float32, torch.float64) for x in blocks.values())
    )
    if not (is_product and context.is_static(edge_index) and context.is_static(weight)):
        return None
    (x,) = blocks.values()
    options = (layer.aggr == "mean", x.dtype, id(context.relation.plan))
    found: Aggregator | None = context.matrices.get(edge_index, weight, extra=options)
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = _build(edge_index, weight, layer.aggr == "mean", x.dtype, context)
        context.matrices.put(found, edge_index, weight, extra=options)
    return found


def _build(
    edge_index: Tensor, weight: Tensor | None, mean: bool, dtype: torch.dtype, context: HaloContext
) -> Aggregator:
    (_, num_own), num_local = context.relation.size, context.relation.plan.num_local
    source, target = edge_index
    values = torch.ones_like(source, dtype=dtype) if weight is None else weight.view(-1).to(dtype)
    if mean:
        values = values / torch.bincount(target, minlength=num_own).clamp(min=1)[target]
    is_own = source < num_local
    halo = torch.stack([source[~is_own] - num_local, target[~is_own]])
    return Aggregator(
        _both(edge_index[:, is_own], values[is_own], (num_own, num_local)),
        _both(halo, values[~is_own], (num_own, context.relation.plan.num_halo)),
    )


def _both(edges: Tensor, values: Tensor, size: tuple[int, int]) -> Directions:
    return Directions(csr_matrix(edges, values, size), csr_matrix(edges.flip(0), values, size[::-1]))


def _build_from_matrix(adj_t: Tensor, mean: bool) -> Directions:
    edges, values = entries(adj_t)
    size = (adj_t.size(0), adj_t.size(1))
    if mean:
        values = values / adj_t.crow_indices().diff().clamp(min=1)[edges[1]]
    forward = csr_matrix(edges, values, size) if mean else adj_t
    return Directions(forward, csr_matrix(edges.flip(0), values, size[::-1]))


def _kept_spmm(scope: Scope, original: Callable[..., Tensor], src: Any, other: Tensor, reduce: str = "sum") -> Tensor:
    """Multiply with a matrix that is kept in both directions; leave others to PyG."""
    context = scope.context
    # Made of an edge list by ``aggregator``, which the mean's division went into already.
    made = context.matrices.find(lambda kept: isinstance(kept, Aggregator) and kept.own.forward is src)
    if made is not None:
        return _aggregate(other, made, scope)
    matrix = _directions(context, src, other, reduce)
    if matrix is None:
        return original(src, other, reduce)
    product: Tensor = _Multiply.apply(other, matrix)  # type: ignore[no-untyped-call]
    return product


def _aggregate(x: Tensor, matrix: Aggregator, scope: Scope) -> Tensor:
    context = scope.context
    rows, message = context.rows_or_message(x, scope.layer)
    out, received = _Aggregate.apply(x, rows, matrix, message)  # type: ignore[no-untyped-call]
    if message is not None:
        context.keep_received(x, message, received)
    result: Tensor = out
    return result


def _directions(context: HaloContext, src: Any, other: Tensor, reduce: str) -> Directions | None:
    """Return a matrix of the batch's own with its transpose, which is computed once."""
    if not (isinstance(src, Tensor) and src.layout == torch.sparse_csr and context.is_static(src)):
        return None
    if src.dim() != 2 or reduce not in ("sum", "add", "mean") or other.dim() != 2 or other.dtype != src.dtype:
        return None
    mean = reduce == "mean"
    found: Directions | None = context.matrices.get(src, extra=("matrix", mean))
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = _build_from_matrix(src, mean)
        context.matrices.put(found, src, extra=("matrix", mean))
    return found


SPARSE = (Redirection("", spmm, _kept_spmm),)
"""The sparse product of fused layers, with the transpose at hand inside an attached model."""
