"""torch's own modules that may compute along the dimension of nodes: refused where they say so, watched where the input decides."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import conv, instancenorm, pooling

from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.interceptors import removal

__all__ = ["BATCHED", "dimension_objection", "watch_dimensions"]

_ALONG_DIM = (nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.GLU, nn.CosineSimilarity)
_POOLING = tuple(kind for name in pooling.__all__ if isinstance(kind := getattr(pooling, name), type))

BATCHED: tuple[type[nn.Module], ...] = (
    nn.RNNBase,
    conv._ConvNd,
    *_POOLING,
    instancenorm._InstanceNorm,
    nn.LocalResponseNorm,
)
"""Modules that treat the entries of one dimension alike and compute along others: nodes must lie along the former."""


def dimension_objection(module: nn.Module) -> str | None:
    """Return why a module of torch computes along dimension 0, that of nodes; ``None`` if nothing says that it does.

    Example:
        >>> dimension_objection(nn.Softmax(dim=-1)) is None
        True
        >>> dimension_objection(nn.Softmax(dim=0))
        'it computes along dimension 0, where this rank has only its own nodes'
    """
    if isinstance(module, (nn.Softmax, nn.Softmin, nn.LogSoftmax)) and module.dim is None:
        return (
            "without 'dim' it may compute along dimension 0, where this rank has only its own nodes; give it 'dim=-1'"
        )
    if (
        (isinstance(module, _ALONG_DIM) and module.dim == 0)
        or (isinstance(module, nn.Flatten) and module.start_dim == 0)
        or (isinstance(module, nn.Unflatten) and module.dim == 0)
    ):
        return "it computes along dimension 0, where this rank has only its own nodes"
    if isinstance(module, instancenorm._InstanceNorm) and module.track_running_stats:
        return "its running statistics are means over rows, which are only this rank's nodes; leave them off"
    return None


def watch_dimensions(module: nn.Module, path: str, context: HaloContext) -> Callable[[], None]:
    """Let a module raise if nodes lie along a dimension that it computes along; return what reverts it.

    Whether ``nn.LSTM`` runs over the time steps of each node or over nodes is for its input to say: ``[N, T, F]`` or ``[N, F]``.

    Args:
        module: An instance of one of :data:`BATCHED`.
        path: Its path inside the model.
        context: The shared state of the model's hooks.
    """

    def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs.get("input")
        if not context.is_distributed or not isinstance(x, Tensor):
            return
        num_nodes, along = context.relations.num_own, _dimensions_along(module, x)
        with_nodes = {dim for dim, size in enumerate(x.shape) if size in num_nodes}
        if with_nodes and with_nodes <= along:
            dim = min(with_nodes)
            raise ValueError(
                f"'{path}' ({type(module).__name__}) got an input of shape {tuple(x.shape)} and computes along dimension "
                f"{dim}, where this rank has only its own {x.size(dim)} nodes. Put nodes first in a batch ([N, C, L], or "
                f"batch_first=True), or name it in 'allow' if these are no nodes."
            )

    return removal([module.register_forward_pre_hook(check, with_kwargs=True)])


def _dimensions_along(module: nn.Module, x: Tensor) -> set[int]:
    """Return the dimensions of an input whose entries are mixed."""
    if isinstance(module, nn.RNNBase):
        return {1} if x.dim() == 3 and module.batch_first else {0}
    if isinstance(module, nn.LocalResponseNorm):
        return {1}
    (spatial,) = map(int, re.findall(r"(\d)d", type(module).__name__)[:1] or [1])
    first = x.dim() - spatial - (1 if isinstance(module, conv._ConvNd) else 0)
    return set(range(max(first, 0), x.dim()))
