"""The one place where a model is checked and its layers are intercepted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import nn
from torch_geometric.nn import GPSConv
from torch_geometric.nn import norm as pyg_norm
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.conv import DirGNNConv, HANConv, HeteroConv, HGTConv, MessagePassing
from torch_geometric.nn.models import CorrectAndSmooth
from torch_geometric.nn.models.rev_gnn import InvertibleModule

from lightning_gnncomm.halo.adjacency import ADJACENCY
from lightning_gnncomm.halo.attention import (
    ATTENTION,
    DENSE_GRAPHS,
    LINEAR_ATTENTION,
    intercept_dense_graph,
    intercept_linear_attention,
)
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.dimensions import BATCHED, dimension_objection, watch_dimensions
from lightning_gnncomm.halo.inspection import far_reads_of
from lightning_gnncomm.halo.interceptors import (
    intercept_aggregation,
    intercept_directed,
    intercept_layer,
    unsplittable_arguments,
)
from lightning_gnncomm.halo.labels import LABELS, intercept_correction
from lightning_gnncomm.halo.norms import NODE_NORMS, STATISTICS, intercept_norm
from lightning_gnncomm.halo.partial import PARTIAL, intercept_partial
from lightning_gnncomm.halo.semantic import SEMANTIC
from lightning_gnncomm.halo.sparse import SPARSE
from lightning_gnncomm.halo.support import EXACT_LAYERS, MIXES_ROWS, REFUSED_MODULES, REFUSED_PLACES, ROW_WISE

__all__ = ["Attachment", "UnsupportedModuleError", "attach", "is_heterogeneous"]


class UnsupportedModuleError(ValueError):
    """A module of the model would compute something else on several ranks than on one device."""


class Attachment:
    """An attached model.

    Args:
        context: What its hooks share; steps run inside :meth:`HaloContext.step`.
        reverts: What takes the hooks off again.
    """

    def __init__(self, context: HaloContext, reverts: list[Callable[[], None]]) -> None:
        self.context = context
        self._reverts = reverts

    def detach(self) -> None:
        """Give the model back as it was. May be called twice."""
        for revert in reversed(self._reverts):
            revert()
        self._reverts = []


def attach(model: nn.Module, context: HaloContext, allow: Collection[str] = ()) -> Attachment:
    """Check every module of a model and intercept those that need rows or statistics of other ranks.

    Args:
        model: Any module; it is changed only by hooks and instance attributes, all taken off by :meth:`Attachment.detach`.
        context: The shared state of the hooks.
        allow: Paths of modules to take although they are not known to be exact; message-passing layers among them are
            intercepted like any other.

    Raises:
        UnsupportedModuleError: Before anything is changed, naming every module that is not known to be exact, and why.
        ValueError: If ``allow`` names a module the model does not have.

    Example:
        >>> from torch_geometric.nn import GCN, WLConv
        >>> attach(torch.nn.Sequential(WLConv()), context=None)
        Traceback (most recent call last):
            ...
        lightning_gnncomm.halo.attach.UnsupportedModuleError: ...
    """
    modules = dict(model.named_modules())
    if unknown := sorted(set(allow) - set(modules)):
        raise ValueError(f"'allow' names modules the model does not have: {unknown}. It has {sorted(modules)[1:]}.")
    problems = [
        f"  '{path or type(model).__name__}' ({type(module).__name__}): {reason}"
        for path, module in modules.items()
        if path not in allow
        and not _is_refused_with_its_parent(path, modules, allow)
        and (reason := _objection(path, modules)) is not None
    ]
    if problems:
        raise UnsupportedModuleError(
            "These modules are not known to mean the same on several ranks as on one device:\n"
            + "\n".join(problems)
            + "\nReplace them, or name them in 'allow=[...]' of the strategy if you know they treat every node by itself or "
            "only aggregate over edges into own nodes."
        )
    reverts = list(_intercept(modules, context, allow))
    return Attachment(context, reverts)


def is_heterogeneous(model: nn.Module) -> bool:
    """Whether a model has layers for several node types, of which a loss usually reads one and leaves the last of others unused.

    Example:
        >>> from torch_geometric.nn import SAGEConv
        >>> is_heterogeneous(HeteroConv({("a", "to", "a"): SAGEConv(4, 4)})), is_heterogeneous(SAGEConv(4, 4))
        (True, False)
    """
    return any(isinstance(m, (HANConv, HeteroConv, HGTConv, torch.fx.GraphModule)) for m in model.modules())


def _intercept(
    modules: dict[str, nn.Module], context: HaloContext, allow: Collection[str]
) -> Iterator[Callable[[], None]]:
    for redirection in (*ADJACENCY, *ATTENTION, *LABELS, *SEMANTIC, *SPARSE, *STATISTICS):
        redirection.install()
        yield redirection.remove
    for path, module in modules.items():
        if isinstance(module, DirGNNConv):
            yield intercept_directed(module, path, context)
        elif isinstance(module, MessagePassing):
            yield intercept_layer(module, path, context)
        elif isinstance(module, NODE_NORMS):
            yield intercept_norm(module, path, context)
        elif isinstance(module, Aggregation):
            yield intercept_aggregation(module, path, context)
        elif isinstance(module, BATCHED) and path not in allow and not _is_inside_layer(path, modules):
            yield watch_dimensions(module, path, context)
        for kinds, intercept in _BY_KIND:
            if isinstance(module, kinds):
                yield intercept(module, path, context)


_BY_KIND: tuple[tuple[tuple[type[nn.Module], ...], Callable[..., Callable[[], None]]], ...] = (
    (DENSE_GRAPHS, intercept_dense_graph),
    (LINEAR_ATTENTION, intercept_linear_attention),
    (PARTIAL, intercept_partial),
    ((CorrectAndSmooth,), intercept_correction),
)


def _is_refused_with_its_parent(path: str, modules: dict[str, nn.Module], allow: Collection[str]) -> bool:
    """Whether a module is a part of a PyG module that is refused by name, of which one sentence is enough."""
    while path:
        path = path.rpartition(".")[0]
        if path not in allow and _is_of_pyg(modules[path]) and type(modules[path]).__name__ in REFUSED_MODULES:
            return True
    return False


def _objection(path: str, modules: dict[str, nn.Module]) -> str | None:
    """Return why a module cannot be taken, ``None`` if it can."""
    module = modules[path]
    if isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None:
        return "torch.compile skips the hooks that exchange halo rows; pass the uncompiled module"
    if _is_of_pyg(module) and type(module).__name__ in REFUSED_MODULES:
        return REFUSED_MODULES[type(module).__name__]
    if isinstance(module, InvertibleModule) and not module.disable:
        return "it frees its input, which the exchange of halo rows still needs; give it 'disable=True'"
    if isinstance(module, MessagePassing):
        return _layer_objection(module)
    if isinstance(module, NODE_NORMS) or _is_inside_layer(path, modules):
        return None
    if isinstance(module, MIXES_ROWS):
        return (
            None if _is_attention_of_gps(path, modules) else "it computes across rows, which are only this rank's nodes"
        )
    if isinstance(module, pyg_norm.BatchNorm) and module.allow_single_element:
        return "'allow_single_element=True' looks at this rank's rows only; leave it off"
    if not _is_of_pyg(module):
        return dimension_objection(module) or _own_code_objection(module)
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    if type(module).__name__ in EXACT_LAYERS or name.startswith(ROW_WISE):
        return None
    reasons = (reason for place, reason in REFUSED_PLACES.items() if name.startswith(place))
    return next(reasons, "this PyG module has not been tested over several ranks")


def _is_attention_of_gps(path: str, modules: dict[str, nn.Module]) -> bool:
    parent, _, name = path.rpartition(".")
    return name == "attn" and isinstance(modules.get(parent), GPSConv)


_LIBRARIES = ("torch.", "torch_geometric.", "torchmetrics.", "lightning.", "lightning_gnncomm.")


def _own_code_objection(module: nn.Module) -> str | None:
    """Judge a module of the user's: torch's own layers treat rows one by one, but its forward may do anything.

    What ``to_hetero`` makes of a user's model is a module of torch's with code that is the user's.
    """
    is_library = f"{type(module).__module__}.".startswith(_LIBRARIES)
    if is_library and not isinstance(module, torch.fx.GraphModule):
        return None
    found = far_reads_of(type(module), _LIBRARIES)
    if found is None and isinstance(module, MessagePassing):
        return "this layer has no source to read, and has not been tested over several ranks"
    return f"its forward may look beyond this rank's nodes: {', '.join(found)}" if found else None


def _is_of_pyg(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.")


def _is_inside_layer(path: str, modules: dict[str, nn.Module]) -> bool:
    """Whether a PyG module is part of a tested layer or norm: its aggregation, or defined beside it."""
    parent, _, name = path.rpartition(".")
    while parent or name:
        layer = modules.get(parent)
        if isinstance(layer, pyg_norm.HeteroBatchNorm):
            return True
        if isinstance(layer, MessagePassing) and (
            name == "aggr_module" or type(layer).__module__ == type(modules[path]).__module__
        ):
            return True
        parent, _, name = parent.rpartition(".")
    return False


def _layer_objection(layer: MessagePassing) -> str | None:
    if layer.explain:
        return "explanation masks hold the edges of the whole graph"
    if layer.decomposed_layers > 1:
        return "decomposed_layers > 1 would exchange each slice of the features separately; leave it at 1, which costs memory only"
    if _is_of_pyg(layer):
        known = type(layer).__name__ in EXACT_LAYERS
        return None if known else "this message-passing layer has not been tested over several ranks"
    return _own_layer_objection(layer)


def _own_layer_objection(layer: MessagePassing) -> str | None:
    """Judge a layer nobody has tested: what its hooks cannot see must not be there."""
    if _writes_its_own(layer, "propagate") or _writes_its_own(layer, "edge_updater"):
        return "it has a 'propagate' or 'edge_updater' of its own, into which the exchange of halo rows would hook"
    whole = unsplittable_arguments(layer)
    if whole:
        return f"its 'message' or 'aggregate' reads {whole} whole, of which this rank holds a part"
    return _own_code_objection(layer)


def _writes_its_own(layer: MessagePassing, name: str) -> bool:
    """Whether a class of the layer's code defines a method; PyG sets generated ones, which live in modules of their own."""
    return any(
        name in vars(cls) and vars(cls)[name].__module__ == cls.__module__
        for cls in type(layer).__mro__
        if issubclass(cls, MessagePassing) and cls is not MessagePassing
    )
