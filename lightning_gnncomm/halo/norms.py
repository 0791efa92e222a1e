"""Norms whose statistics run over nodes, computed over the nodes of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import norm as pyg_norm
from torch_geometric.utils import degree, scatter

from lightning_gnncomm.halo.context import HaloContext, Scope, enter_scope, leave_scope
from lightning_gnncomm.halo.interceptors import removal
from lightning_gnncomm.halo.namespaces import Redirection

__all__ = ["NODE_NORMS", "STATISTICS", "intercept_norm"]

NODE_NORMS: tuple[type[torch.nn.Module], ...] = (
    _BatchNorm,
    pyg_norm.GraphNorm,
    pyg_norm.GraphSizeNorm,
    pyg_norm.HeteroBatchNorm,
    pyg_norm.InstanceNorm,
    pyg_norm.LayerNorm,
    pyg_norm.MeanSubtractionNorm,
    pyg_norm.PairNorm,
)
"""Norms that reduce over nodes; local statistics would be wrong without a word."""


def intercept_norm(layer: torch.nn.Module, path: str, context: HaloContext) -> Callable[[], None]:
    """Let a norm take its statistics over the rows of all ranks and return what reverts it.

    Works on any device and with any number of rows per rank, none included (``SyncBatchNorm`` refuses CPU tensors).

    Args:
        layer: An instance of one of :data:`NODE_NORMS`; its class, parameters and buffers stay as they are.
        path: Its path inside the model.
        context: The shared state of the model's hooks.
    """
    if isinstance(layer, pyg_norm.HeteroBatchNorm):
        return _replace_typed_forward(layer, path, context)
    own_formula: Callable[..., Tensor] | None = None
    if isinstance(layer, (_BatchNorm, pyg_norm.InstanceNorm)):
        own_formula = _global_batch_norm
    elif isinstance(layer, pyg_norm.LayerNorm):
        own_formula = _global_layer_norm
    reverts = [_redirect_reductions(layer, path, context)]
    if own_formula is not None:
        reverts.append(_replace_forward(layer, path, context, own_formula))

    def revert() -> None:
        for undo in reverts:
            undo()

    return revert


def _replace_forward(
    layer: torch.nn.Module, path: str, context: HaloContext, formula: Callable[..., Tensor]
) -> Callable[[], None]:
    """Use ``formula`` when statistics of one whole graph are due, and the layer's own forward otherwise."""

    # Bound to the instance as a method, so that a deep copy of the model computes with the copy's parameters.
    def forward(self: Any, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        if context.is_distributed and batch is None and _uses_batch_statistics(self):
            return formula(self, x, path, context)
        given = () if batch is None else (batch, batch_size)
        return type(self).forward(self, x, *given)  # type: ignore[no-any-return]

    layer.forward = MethodType(forward, layer)

    def revert() -> None:
        layer.__dict__.pop("forward", None)

    return revert


def _replace_typed_forward(layer: pyg_norm.HeteroBatchNorm, path: str, context: HaloContext) -> Callable[[], None]:
    """Use :func:`_global_typed_batch_norm` when batch statistics are due."""

    def forward(self: Any, x: Tensor, type_vec: Tensor) -> Tensor:
        if context.is_distributed and (self.training or not self.track_running_stats):
            return _global_typed_batch_norm(self, x, type_vec, path, context)
        return type(self).forward(self, x, type_vec)  # type: ignore[no-any-return]

    layer.forward = MethodType(forward, layer)

    def revert() -> None:
        layer.__dict__.pop("forward", None)

    return revert


def _global_typed_batch_norm(layer: Any, x: Tensor, type_vec: Tensor, path: str, context: HaloContext) -> Tensor:
    """Batch norm of ``x [R, C]`` with statistics for each of ``T`` types, through which PyG lets no gradient flow.

    Running statistics of a type that no rank has rows of stay as they are.
    """
    with torch.no_grad():
        rows = x.double()
        ones = rows.new_ones(x.size(0), 1)
        parts = torch.cat([rows, rows.pow(2), ones], 1)
        total = context.all_reduce(scatter(parts, type_vec, 0, layer.num_types, reduce="sum"), path)
        count = total[:, -1:]
        mean, square = (total[:, :-1] / count.clamp(min=1)).chunk(2, 1)
        var = square - mean.pow(2)
        mean, var = mean.to(x.dtype), var.to(x.dtype)
        if layer.training and layer.track_running_stats:
            momentum = layer.momentum
            if momentum is None:
                layer.num_batches_tracked.add_(1)
                momentum = 1.0 / float(layer.num_batches_tracked)
            seen = count > 0
            for running, value in ((layer.running_mean, mean), (layer.running_var, var)):
                running.copy_(torch.where(seen, running.lerp(value.to(running.dtype), momentum), running))
    out: Tensor = (x - mean[type_vec]) / var.clamp(min=layer.eps).sqrt()[type_vec]
    return out if layer.weight is None else out * layer.weight[type_vec] + layer.bias[type_vec]


def _uses_batch_statistics(layer: Any) -> bool:
    if isinstance(layer, pyg_norm.LayerNorm):
        return bool(layer.mode == "graph")
    return layer.training or layer.running_mean is None


def _global_batch_norm(layer: Any, x: Tensor, path: str, context: HaloContext) -> Tensor:
    """Batch norm of ``x [R, C, *]`` over rows and trailing positions; instance norm of one graph is the same formula."""
    if isinstance(layer, _BatchNorm):
        layer._check_input_dim(x)
    last = x.movedim(1, -1)
    rows = last.reshape(-1, x.size(1))
    mean, var, count = _moments(rows, path, context)
    if layer.training and count <= 1:
        raise ValueError(f"'{path}' expects more than 1 value per channel over all ranks when training, got {count}.")
    if layer.training and layer.running_mean is not None:
        _update_running_statistics(layer, mean.detach(), var.detach(), count)
    wide = rows.float() if rows.dtype.itemsize < 4 else rows
    normed = (wide - mean.to(wide.dtype)) * (var + layer.eps).rsqrt().to(wide.dtype)
    if layer.affine:
        normed = normed * layer.weight + layer.bias
    out: Tensor = normed.to(x.dtype).view(last.shape).movedim(-1, 1)
    return out


def _global_layer_norm(layer: Any, x: Tensor, path: str, context: HaloContext) -> Tensor:
    """PyG's graph-mode layer norm: one mean and deviation over all nodes and channels of the graph."""
    mean, var, _ = _moments(x.reshape(-1, 1), path, context)
    out: Tensor = (x - mean.to(x.dtype)) / (var.sqrt().to(x.dtype) + layer.eps)
    if layer.weight is not None:
        out = out * layer.weight + layer.bias
    return out


def _moments(rows: Tensor, path: str, context: HaloContext) -> tuple[Tensor, Tensor, int]:
    """Return mean and biased variance per column over the rows of all ranks (float64), and the number of rows.

    One all-reduce of float64 sums. Each rank sums around its own mean first: squares then stay small, and nothing is lost to
    cancellation where a column's mean is large against its spread.
    """
    n = rows.size(0)
    rows = rows.float() if rows.dtype.itemsize < 4 else rows
    shift = rows.detach().sum(0) / max(n, 1)
    centred = rows - shift
    shift, first, second = shift.double(), centred.sum(0).double(), centred.pow(2).sum(0).double()
    moments = torch.cat([n * shift + first, second + 2 * shift * first + n * shift.pow(2)])
    total = context.all_reduce(torch.cat([moments.new_full((1,), n), moments]), path)
    count = int(total[0])
    mean, square = (total[1:] / max(count, 1)).chunk(2)
    return mean, (square - mean.pow(2)).clamp(min=0.0), count


def _update_running_statistics(layer: Any, mean: Tensor, var: Tensor, count: int) -> None:
    if isinstance(layer, _BatchNorm) and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    momentum = layer.momentum if layer.momentum is not None else 1.0 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), momentum)
    layer.running_var.lerp_((var * (count / (count - 1))).to(layer.running_var.dtype), momentum)


def _redirect_reductions(layer: torch.nn.Module, path: str, context: HaloContext) -> Callable[[], None]:
    """Fill in a missing batch vector, with which PyG's norms reduce through functions that :data:`STATISTICS` redirects."""

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context.begin_call(path)
        if not context.is_distributed:
            return None
        enter_scope(Scope(context, path))
        size_name = "dim_size" if isinstance(module, pyg_norm.MeanSubtractionNorm) else "batch_size"
        call = dict(zip(("x", "batch", size_name), args, strict=False)) | kwargs
        batch, size = call.get("batch"), call.get(size_name)
        if batch is None and "forward" in module.__dict__:
            return None  # its own formula needs no batch vector
        if batch is None:
            batch, size = torch.zeros(call["x"].size(0), dtype=torch.long, device=call["x"].device), 1
        elif size is None:
            last = batch.max() if batch.numel() else batch.new_tensor(-1)
            size = int(context.channel.wire.all_reduce(last, "max")) + 1
        return (call["x"], batch), {size_name: size}

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        if context.is_distributed:
            leave_scope()
        context.end_call()

    return removal(
        [
            layer.register_forward_pre_hook(enter, with_kwargs=True),
            layer.register_forward_hook(leave, always_call=True),
        ]
    )


def _global_scatter(
    scope: Scope,
    original: Callable[..., Tensor],
    src: Tensor,
    index: Tensor,
    dim: int = 0,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce over the rows of all ranks; ``dim_size`` is the same on every rank."""
    total = scope.context.all_reduce(original(src, index, dim, dim_size, reduce="sum"), scope.layer)
    if reduce in ("sum", "add"):
        return total
    assert reduce == "mean", reduce
    count = scope.context.all_reduce(degree(index, dim_size, dtype=src.dtype), scope.layer).clamp(min=1)
    return total / count.view([-1 if axis == dim % src.dim() else 1 for axis in range(src.dim())])


def _global_degree(
    scope: Scope,
    original: Callable[..., Tensor],
    index: Tensor,
    num_nodes: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Count the rows of each graph over all ranks."""
    return scope.context.all_reduce(original(index, num_nodes, dtype), scope.layer)


STATISTICS = (
    Redirection("torch_geometric.nn.norm", scatter, _global_scatter),
    Redirection("torch_geometric.nn.norm", degree, _global_degree),
)
"""The two reductions of PyG's norms, global inside an attached model."""
