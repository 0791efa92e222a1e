"""Attention of every node to all nodes of the graph, over the nodes of all ranks.

Softmax attention compares each own query with all keys, so keys and values of all ranks are gathered: that takes as many rows as the
graph has nodes on every rank. Linear attention needs only sums over nodes, whose size does not depend on the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import GPSConv
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention
from torch_geometric.nn.attention.performer import linear_attention
from torch_geometric.nn.models import Polynormer
from torch_geometric.nn.models.sgformer import SGModule
from torch_geometric.utils import to_dense_batch

from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.halo.context import HaloContext, Scope
from lightning_gnncomm.halo.interceptors import removal, scope_hooks
from lightning_gnncomm.halo.namespaces import Redirection
from lightning_gnncomm.slots import Role, Slot

__all__ = ["ATTENTION", "DENSE_GRAPHS", "LINEAR_ATTENTION", "intercept_dense_graph", "intercept_linear_attention"]

DENSE_GRAPHS: tuple[type[nn.Module], ...] = (GPSConv, Polynormer, SGModule)
"""Modules that lay out a graph's nodes as one sequence ``[1, N, F]`` and let them attend to each other."""

LINEAR_ATTENTION: tuple[type[nn.Module], ...] = (PerformerAttention, PolynormerAttention, SGFormerAttention)
"""Attention that looks at other nodes only through sums over all of them."""


def intercept_dense_graph(layer: nn.Module, path: str, context: HaloContext) -> Callable[[], None]:
    """Let a module's nodes be a part of one graph that lies on all ranks; return what reverts it.

    Args:
        layer: An instance of one of :data:`DENSE_GRAPHS`.
        path: Its path inside the model.
        context: The shared state of the model's hooks.
    """
    handles = scope_hooks(layer, path, context)
    if isinstance(layer, GPSConv) and isinstance(layer.attn, nn.MultiheadAttention):
        handles.append(layer.attn.register_forward_pre_hook(_gathering_hook(path, context), with_kwargs=True))
    return removal(handles)


def _gathering_hook(path: str, context: HaloContext) -> Callable[..., Any]:
    """Return a pre-hook that lets own queries ``[1, n, F]`` attend to the keys and values ``[1, N, F]`` of all ranks."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not context.is_distributed:
            return None
        query, key, value = args
        assert query is key is value
        everyone = gather_rows(query.squeeze(0), path, context).unsqueeze(0)
        return (query, everyone, everyone), kwargs | {"key_padding_mask": None}

    return hook


def gather_rows(x: Tensor, path: str, context: HaloContext) -> Tensor:
    """Return the rows of all ranks, own ones first: ``[n, *F] -> [N, *F]``, differentiable and never encoded.

    In the backward pass every rank gets the gradients that the others have for its rows, and adds them up.

    Args:
        x: One row for each own node.
        path: Path of the module that asks.
        context: The shared state of the model's hooks.
    """
    slot = Slot(path, "attention", role=Role.NORM)
    (rows,) = context.receive([x], _gathering_plan(x, context), [slot], exact=True)
    return torch.cat([x, rows])


def _gathering_plan(x: Tensor, context: HaloContext) -> HaloPlan:
    """Return the plan by which every rank sends all its rows to all others; known once the ranks told their sizes."""
    plan, wire = context.relation.plan, context.channel.wire
    if x.size(0) != plan.num_local:
        raise ValueError(
            f"Attention to all nodes needs one row per node of this rank's part: expected {plan.num_local} rows, got {x.size(0)}."
        )
    found = context.gatherings.get(plan.send_index, extra=(id(plan),))
    if found is not None:
        return found
    sizes = torch.cat(wire.all_gather(torch.tensor([plan.num_local], device=x.device))).tolist()
    sizes[wire.rank] = 0
    send_index = torch.arange(plan.num_local, device=x.device).repeat(plan.num_parts - 1)
    gathering = HaloPlan(
        num_local=plan.num_local,
        num_global=plan.num_global,
        send_index=send_index,
        send_counts=tuple(plan.num_local if rank != wire.rank else 0 for rank in range(plan.num_parts)),
        recv_counts=tuple(sizes),
        send_key=torch.zeros_like(send_index),  # never rounded
        recv_key=send_index.new_zeros(sum(sizes)),
    )
    return context.gatherings.put(gathering, plan.send_index, extra=(id(plan),))


def intercept_linear_attention(layer: nn.Module, path: str, context: HaloContext) -> Callable[[], None]:
    """Let linear attention sum over the nodes of all ranks; return what reverts it.

    Args:
        layer: An instance of one of :data:`LINEAR_ATTENTION`; its class and parameters stay as they are.
        path: Its path inside the model.
        context: The shared state of the model's hooks.
    """

    # Bound to the instance as a method, so that a deep copy of the model computes with the copy's parameters.
    def forward(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not context.is_distributed:
            return type(self).forward(self, x, mask)  # type: ignore[no-any-return]
        plan = context.relation.plan
        if x.dim() != 3 or x.shape[:2] != (1, plan.num_local):
            raise ValueError(
                f"'{path}' attends over one graph that lies on all ranks: expected one row per node of this rank's part, shape "
                f"[1, {plan.num_local}, F], got {tuple(x.shape)}. Several graphs in one batch cannot be told apart."
            )
        num_local = plan.num_local
        if num_local == 0:
            # The layer cannot run without rows, but must take part in the sums; its one row counts for nothing in them.
            x, mask = nn.functional.pad(x, (0, 0, 0, 1)), None
        share = num_local / max(plan.num_global, 1)
        with _NodeSums(path, context, share if isinstance(self, SGFormerAttention) else 1.0):
            out: Tensor = type(self).forward(self, x, mask)
        return out[:, :num_local]

    layer.forward = MethodType(forward, layer)
    remove = removal(scope_hooks(layer, path, context))

    def revert() -> None:
        remove()
        layer.__dict__.pop("forward", None)

    return revert


class _NodeSums(TorchFunctionMode):
    """Makes products that contract the node dimension of ``[1, n, ...]`` rows sums over all ranks.

    Args:
        path: Path of the layer.
        context: The shared state.
        factor: What the sums are multiplied by. A layer that weighs its sums against the number ``n`` of rows it sees
            needs them by ``n / N``: the same quotient as with the ``N`` nodes of the graph.
    """

    def __init__(self, path: str, context: HaloContext, factor: float) -> None:
        super().__init__()
        self._path, self._context, self._factor = path, context, factor

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.einsum and _contracts_nodes(args[0]):
            return _sum_over_nodes(result, self._path, self._context) * self._factor
        return result


def _sum_over_nodes(sums: Tensor, path: str, context: HaloContext) -> Tensor:
    return context.all_reduce(sums if context.relation.plan.num_local else sums * 0, path)


def _contracts_nodes(equation: str) -> bool:
    """Whether an equation of einsum sums over the second dimension of its first operand."""
    operands, result = equation.replace(" ", "").split("->")
    return operands.split(",")[0][1] not in result


def _global_linear_attention(scope: Scope, original: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend own queries ``[B, H, n, L]`` to the keys and values of all ranks, of which only two sums matter."""
    sums = torch.cat([k.transpose(-2, -1) @ v, k.sum(-2).unsqueeze(-1)], -1)
    products = q @ _sum_over_nodes(sums, scope.layer, scope.context)
    return products[..., :-1] / products[..., -1:]


def _one_graph(
    scope: Scope, original: Callable[..., Any], x: Tensor, batch: Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    """Lay out own nodes as a part of one graph, whatever its number; refuse a batch of several."""
    if batch is not None:
        # A rank without nodes has no say.
        numbers = torch.stack([batch.max(), -batch.min()]) if batch.numel() else batch.new_full((2,), -(1 << 60))
        last, first = scope.context.channel.wire.all_reduce(numbers, "max").tolist()
        if last + first > 0:
            raise ValueError(
                f"Layer '{scope.layer}' got a 'batch' vector with graphs {-first} to {last}. Over several ranks its attention "
                f"takes one graph at a time: leave 'batch' out, or give it zeros."
            )
    return original(x)


ATTENTION = (
    Redirection("torch_geometric.nn.attention", linear_attention, _global_linear_attention),
    *(Redirection(kind.__module__, to_dense_batch, _one_graph) for kind in DENSE_GRAPHS),
)
"""Functions of attention layers, over all ranks inside an attached model."""
