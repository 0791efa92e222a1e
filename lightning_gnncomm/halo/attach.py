"""The one place where a model is checked and its layers are intercepted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import nn
from torch_geometric.nn import conv as pyg_conv
from torch_geometric.nn import norm as pyg_norm
from torch_geometric.nn.conv import MessagePassing

from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.interceptors import NORMALISATION, intercept_layer
from lightning_gnncomm.halo.norms import NODE_NORMS, STATISTICS, intercept_norm

__all__ = ["Attachment", "UnsupportedModuleError", "attach"]

EXACT_LAYERS: tuple[type[MessagePassing], ...] = (
    pyg_conv.EdgeConv,
    pyg_conv.GATConv,
    pyg_conv.GATv2Conv,
    pyg_conv.GCNConv,
    pyg_conv.GINConv,
    pyg_conv.PNAConv,
    pyg_conv.SAGEConv,
)
"""Message-passing layers tested to be exact; subclasses may do anything and are not among them."""

ROW_WISE = (
    "torch_geometric.nn.dense.linear.Linear",
    "torch_geometric.nn.models.basic_gnn",
    "torch_geometric.nn.models.jumping_knowledge.JumpingKnowledge",
    "torch_geometric.nn.models.mlp.MLP",
    "torch_geometric.nn.norm.batch_norm.BatchNorm",
    "torch_geometric.nn.norm.diff_group_norm.DiffGroupNorm",
    "torch_geometric.nn.norm.msg_norm.MessageNorm",
    "torch_geometric.nn.sequential.Sequential",
    "torch_geometric.utils._trim_to_layer.TrimToLayer",
)
"""PyG modules that never mix nodes by themselves: what they contain is checked for itself."""

MIXES_NODES: tuple[type[nn.Module], ...] = (
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.modules.instancenorm._InstanceNorm,
)
"""Torch modules that compute across rows, which would be the rows of one rank only."""


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
        >>> from torch_geometric.nn import GCN, ChebConv
        >>> attach(torch.nn.Sequential(ChebConv(4, 4, K=2)), context=None)
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
        if path not in allow and not _inside_layer(path, modules) and (reason := _objection(module)) is not None
    ]
    if problems:
        raise UnsupportedModuleError(
            "These modules are not known to mean the same on several ranks as on one device:\n"
            + "\n".join(problems)
            + "\nReplace them, or name them in 'allow=[...]' of the strategy if you know they treat every node by itself or "
            "only aggregate over edges into own nodes."
        )
    reverts = list(_intercept(modules, context))
    return Attachment(context, reverts)


def _intercept(modules: dict[str, nn.Module], context: HaloContext) -> Iterator[Callable[[], None]]:
    for redirection in (NORMALISATION, *STATISTICS):
        redirection.install()
        yield redirection.remove
    for path, module in modules.items():
        if isinstance(module, MessagePassing):
            yield intercept_layer(module, path, context)
        elif isinstance(module, NODE_NORMS):
            yield intercept_norm(module, path, context)


def _inside_layer(path: str, modules: dict[str, nn.Module]) -> bool:
    """Whether a module is a layer's aggregation, which sees all edges into own nodes and no others."""
    parent, _, name = path.rpartition(".")
    while parent or name:
        if name == "aggr_module" and isinstance(modules.get(parent), MessagePassing):
            return True
        parent, _, name = parent.rpartition(".")
    return False


def _objection(module: nn.Module) -> str | None:
    """Return why a module cannot be taken, ``None`` if it can."""
    if isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None:
        return "torch.compile skips the hooks that exchange halo rows; pass the uncompiled module"
    if isinstance(module, MessagePassing):
        return _layer_objection(module)
    if isinstance(module, MIXES_NODES) and not isinstance(module, NODE_NORMS):
        return "it computes across rows, which are only this rank's nodes"
    if isinstance(module, pyg_norm.BatchNorm) and module.allow_single_element:
        return "'allow_single_element=True' looks at this rank's rows only; leave it off"
    if isinstance(module, NODE_NORMS) or not type(module).__module__.startswith("torch_geometric."):
        return None
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    return None if name.startswith(ROW_WISE) else "this PyG module has not been tested over several ranks"


def _layer_objection(layer: MessagePassing) -> str | None:
    if type(layer) not in EXACT_LAYERS:
        return "this message-passing layer has not been tested over several ranks"
    if layer.flow != "source_to_target":
        return "flow='target_to_source' aggregates over out-edges, of which a part holds only some"
    if layer.explain:
        return "explanation masks hold the edges of the whole graph"
    if layer.decomposed_layers > 1:
        return "decomposed_layers > 1 would exchange each slice of the features separately"
    return None
