"""Hooks that give a PyG message-passing layer the rows of remote nodes (design facts 1 to 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_remaining_self_loops, is_sparse, scatter

from lightning_gnncomm.halo.context import HaloContext, Scope, enter_scope, leave_scope
from lightning_gnncomm.halo.namespaces import Redirection
from lightning_gnncomm.slots import Role

__all__ = ["NORMALISATION", "intercept_layer"]


def intercept_layer(layer: MessagePassing, path: str, context: HaloContext) -> Callable[[], None]:
    """Attach the hooks of one layer and return what takes them off again.

    Args:
        layer: The layer; its class and parameters stay as they are.
        path: Its path inside the model, for slots and messages.
        context: The shared state of the model's hooks.
    """
    handles = [*_scope_hooks(layer, path, context)]
    arguments = _source_arguments([*layer._user_args, *layer._fused_user_args])
    handles.append(layer.register_propagate_forward_pre_hook(_exchange_hook(path, arguments, context)))
    if layer.inspector.implements("edge_update"):
        # The generated edge_updater runs its pre-hooks after rows were lifted to edges; the Python one runs them before.
        layer.edge_updater = type(layer)._orig_edge_updater.__get__(layer)
        arguments = _source_arguments(layer._edge_user_args)
        handles.append(layer.register_edge_update_forward_pre_hook(_exchange_hook(path, arguments, context)))

    def revert() -> None:
        for handle in handles:
            handle.remove()
        layer.__dict__.pop("edge_updater", None)
        _drop_cached_normalisation(layer)

    _drop_cached_normalisation(layer)
    return revert


def _source_arguments(names: list[str]) -> list[str]:
    """Return the arguments read per edge at its source node: exactly those whose halo rows a layer needs."""
    return sorted({name[:-2] for name in names if name.endswith("_j")})


def _drop_cached_normalisation(layer: MessagePassing) -> None:
    """Forget what ``cached=True`` kept: it belongs to another adjacency before attaching and after detaching."""
    for name in ("_cached_edge_index", "_cached_adj_t"):
        if getattr(layer, name, None) is not None:
            setattr(layer, name, None)


def _scope_hooks(layer: torch.nn.Module, path: str, context: HaloContext) -> list[RemovableHandle]:
    """Mark the layer's calls on the thread, so that redirected functions know where they are called from."""

    def enter(module: torch.nn.Module, args: Any) -> None:
        if context.plan is None and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                f"Layer '{path}' ran again inside the backward pass. Activation checkpointing of a layer that exchanges halo rows "
                f"is not supported yet; switch it off for this layer."
            )
        if context.is_distributed:
            context.forget_rows()
            enter_scope(Scope(context, path))

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        if context.is_distributed:
            leave_scope()

    return [
        layer.register_forward_pre_hook(enter),
        layer.register_forward_hook(leave, always_call=True),
    ]


def _exchange_hook(path: str, arguments: list[str], context: HaloContext) -> Callable[..., Any]:
    """Return a propagate/edge_update pre-hook that extends the source side of ``arguments`` by the halo rows."""

    def hook(module: MessagePassing, inputs: tuple[Any, ...]) -> Any:
        if not context.is_distributed:
            return None
        plan = context.plan
        assert plan is not None
        edge_index, _, kwargs = inputs
        if is_sparse(edge_index):
            raise TypeError(
                f"Layer '{path}' got a sparse adjacency matrix; a halo strategy needs a COO 'edge_index' [2, E]."
            )
        source = {name: value[0] if isinstance(value, (tuple, list)) else value for name, value in kwargs.items()}
        blocks = {name: source[name] for name in arguments if isinstance(source.get(name), Tensor)}
        extended = dict(kwargs)
        for name, rows in context.extend_all(blocks, path, module.node_dim).items():
            own = kwargs[name][1] if isinstance(kwargs[name], (tuple, list)) else kwargs[name]
            extended[name] = (rows, own)
        return edge_index, (plan.num_local + plan.num_halo, plan.num_local), extended

    return hook


def _halo_gcn_norm(
    scope: Scope,
    original: Callable[..., Any],
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Symmetric normalisation with the true degrees of remote source nodes.

    Every edge into an own node is local, so own degrees are complete; those of halo nodes are exchanged (differentiably, so
    learned edge weights stay exact) and kept while adjacency and weights are the batch's own.
    """
    context, layer = scope
    if is_sparse(edge_index):
        raise TypeError(
            f"Layer '{layer}' got a sparse adjacency matrix; a halo strategy needs a COO 'edge_index' [2, E]."
        )
    assert context.plan is not None and flow == "source_to_target", flow
    keep = context.is_static(edge_index) and context.is_static(edge_weight)
    options = (improved, add_self_loops, dtype)
    if not keep:
        return _normalise(scope, edge_index, edge_weight, *options)
    found = context.norms.get(edge_index, edge_weight, extra=options)
    if found is not None:
        return found
    # What is kept must serve training as well, also if a validation under inference_mode computes it first.
    with torch.inference_mode(False), torch.no_grad():
        result = _normalise(scope, edge_index, edge_weight, *options)
    return context.norms.put(result, edge_index, edge_weight, extra=options)


def _normalise(
    scope: Scope,
    edge_index: Tensor,
    edge_weight: Tensor | None,
    improved: bool,
    add_self_loops: bool,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    plan = scope.context.plan
    assert plan is not None
    if edge_weight is None:
        edge_weight = torch.ones(edge_index.size(1), dtype=dtype, device=edge_index.device)
    if add_self_loops:
        fill_value = 2.0 if improved else 1.0
        edge_index, edge_weight = add_remaining_self_loops(edge_index, edge_weight, fill_value, plan.num_local)
    degree = scatter(edge_weight, edge_index[1], 0, plan.num_local, reduce="sum")
    inverse_root = degree.pow(-0.5)
    inverse_root = inverse_root.masked_fill(inverse_root == float("inf"), 0.0)
    at_source = scope.context.extend(inverse_root, scope.layer, "degree", role=Role.NORM)
    return edge_index, at_source[edge_index[0]] * edge_weight * inverse_root[edge_index[1]]


NORMALISATION = Redirection("torch_geometric.nn.conv", gcn_norm, _halo_gcn_norm)
"""``gcn_norm`` as every PyG layer sees it, halo-aware inside an attached model."""
