"""Layers that are exact but for one method, which samples or scores pairs of the whole graph: that method is refused when called."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import SignedGCN
from torch_geometric.nn.conv import SuperGATConv

from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.interceptors import removal

__all__ = ["PARTIAL", "intercept_partial"]

_LOSSES = ("discriminate", "loss", "neg_embedding_loss", "nll_loss", "pos_embedding_loss")
_REFUSED: dict[type[nn.Module], tuple[str, ...]] = {SuperGATConv: ("get_attention_loss",), SignedGCN: _LOSSES}

PARTIAL: tuple[type[nn.Module], ...] = tuple(_REFUSED)
"""Modules whose output is exact while some of their methods cannot be."""


def intercept_partial(layer: nn.Module, path: str, context: HaloContext) -> Callable[[], None]:
    """Let the methods of a module that need pairs of the whole graph say so; return what reverts it.

    Args:
        layer: An instance of one of :data:`PARTIAL`.
        path: Its path inside the model.
        context: The shared state of the model's hooks.
    """
    names = [name for kind, methods in _REFUSED.items() if isinstance(layer, kind) for name in methods]
    for name in names:
        setattr(layer, name, MethodType(_refusing(name, path, context), layer))
    reverts: list[Callable[[], None]] = []
    if isinstance(layer, SuperGATConv):
        reverts.append(_sample_nothing(layer, context))

    def revert() -> None:
        for undo in reverts:
            undo()
        for name in names:
            layer.__dict__.pop(name, None)

    return revert


def _refusing(name: str, path: str, context: HaloContext) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_sampled = self.training or not isinstance(self, SuperGATConv)  # its loss is 0 in evaluation
        if context.channel.wire.world_size > 1 and is_sampled:
            raise RuntimeError(
                f"'{path}.{name}()' samples or scores pairs of nodes of the whole graph, of which this rank holds a part. Over "
                f"several ranks only the outputs of {type(self).__name__} can be used: train on a loss over nodes."
            )
        return getattr(type(self), name)(self, *args, **kwargs)

    return method


def _sample_nothing(layer: SuperGATConv, context: HaloContext) -> Callable[[], None]:
    """Leave out the pairs of the attention loss, which the layer would read at both ends in training."""

    def positive(self: Any, edge_index: Tensor) -> Tensor:
        if context.is_distributed:
            return edge_index[:, :0]
        return type(self).positive_sampling(self, edge_index)  # type: ignore[no-any-return]

    def negative(self: Any, edge_index: Tensor, *args: Any) -> Tensor:
        if context.is_distributed:
            return edge_index[:, :0]
        return type(self).negative_sampling(self, edge_index, *args)  # type: ignore[no-any-return]

    def drop_negatives(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not context.is_distributed:
            return None
        if len(args) > 2:
            return (*args[:2], None, *args[3:]), kwargs
        return args, kwargs | {"neg_edge_index": None}

    layer.positive_sampling = MethodType(positive, layer)
    layer.negative_sampling = MethodType(negative, layer)
    remove = removal([layer.register_forward_pre_hook(drop_negatives, with_kwargs=True)])

    def revert() -> None:
        remove()
        for name in ("positive_sampling", "negative_sampling"):
            layer.__dict__.pop(name, None)

    return revert
