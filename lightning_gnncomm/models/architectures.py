"""PyG's ready models by name, and how a node-level model is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, PNA, EdgeCNN, GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN

__all__ = ["ARCHITECTURES", "build_model", "call_model"]

ARCHITECTURES: dict[str, type[BasicGNN]] = {
    "GCN": GCN,
    "GraphSAGE": GraphSAGE,
    "GAT": GAT,
    "GIN": GIN,
    "PNA": PNA,
    "EdgeCNN": EdgeCNN,
}
"""The ``torch_geometric.nn`` models that can be asked for by name."""


def _expand(name: str, model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the constructor needs beyond sizes, with what YAML cannot say filled in."""
    kwargs = dict(model_kwargs)
    if name == "PNA":
        kwargs.setdefault("aggregators", ["mean", "min", "max", "std"])
        kwargs.setdefault("scalers", ["identity", "amplification", "attenuation"])
        if "deg" not in kwargs:
            raise ValueError(
                "Expected model_kwargs={'deg': [...]} for PNA, the number of nodes with in-degree 0, 1, 2, ... of the "
                "whole graph, got none. Compute it: `torch_geometric.utils.degree(edge_index[1]).long().bincount()`."
            )
        # The mean degrees are computed from it in floating point, so a list from YAML is as good as a tensor.
        kwargs["deg"] = torch.as_tensor(kwargs["deg"], dtype=torch.long)
    return kwargs


def build_model(
    name: str,
    num_features: int,
    num_classes: int,
    hidden_channels: int = 64,
    num_layers: int = 2,
    dropout: float = 0.5,
    norm: str | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> BasicGNN:
    """Return a ``torch_geometric.nn`` model by its name.

    Args:
        name: One of :data:`ARCHITECTURES`.
        num_features: Columns of ``x``.
        num_classes: Columns of the output.
        hidden_channels: Width of the hidden layers.
        num_layers: Number of message-passing layers.
        dropout: Probability of dropping a hidden value.
        norm: Normalisation between layers, e.g. ``"batch_norm"``.
        model_kwargs: Anything else the model or its layers take, e.g. ``{"heads": 4}`` or ``{"jk": "cat"}``. PNA
            needs ``deg``.

    Raises:
        ValueError: If no model has that name, or PNA lacks ``deg``.

    Example:
        >>> build_model("GCN", 8, 3)
        GCN(8, 3, num_layers=2)
    """
    if name not in ARCHITECTURES:
        raise ValueError(
            f"Expected a torch.nn.Module or one of {sorted(ARCHITECTURES)}, got {name!r}. In YAML a module of your own "
            "is given by `class_path` and `init_args`."
        )
    return ARCHITECTURES[name](
        in_channels=num_features,
        hidden_channels=hidden_channels,
        num_layers=num_layers,
        out_channels=num_classes,
        dropout=dropout,
        norm=norm,
        **_expand(name, model_kwargs or {}),
    )


def _parameter_names(model: nn.Module) -> Sequence[str]:
    """Return the names of the arguments of ``forward``; PyG's ``Sequential`` keeps its own list."""
    declared = getattr(getattr(model, "signature", None), "param_dict", None)
    return list(declared) if declared is not None else list(inspect.signature(model.forward).parameters)


def _reads_edge_attr(model: nn.Module) -> bool:
    # GAT and PNA accept `edge_attr` always but fail on it when they were built without `edge_dim`.
    return any(getattr(module, "edge_dim", None) is not None for module in model.modules())


def _accepts(model: nn.Module) -> Callable[[str], bool]:
    names = _parameter_names(model)
    if isinstance(model, BasicGNN):
        wanted = {
            "edge_weight": model.supports_edge_weight,
            "edge_attr": model.supports_edge_attr and _reads_edge_attr(model),
        }
        return lambda name: wanted[name]
    return lambda name: name in names


def call_model(model: nn.Module, batch: Data) -> Tensor:
    """Call a node-level model on a batch, with those edge values that it takes and the batch has.

    A model whose ``forward`` starts with an argument named ``data`` or ``batch`` gets the whole batch; any other gets
    ``x`` and ``edge_index`` by position, and ``edge_weight`` and ``edge_attr`` by name. PyG's own models get only
    what they use. A batch's ``adj_t`` takes the place of ``edge_index`` if it says the same to the model: not where it
    holds weights that the model does not take, or the model takes ``edge_attr``. It is given in any case if there is no
    ``edge_index``.

    Shapes:
        returns ``[n, C]`` for a batch of ``n`` nodes.

    Raises:
        ValueError: If the batch lacks ``x``, or both ``edge_index`` and ``adj_t``.

    Example:
        >>> data = Data(x=torch.ones(2, 8), edge_index=torch.tensor([[0, 1], [1, 0]]))
        >>> call_model(build_model("GIN", 8, 3), data).shape
        torch.Size([2, 3])
    """
    names = _parameter_names(model)
    if names and names[0] in ("data", "batch"):
        output: Tensor = model(batch)
        return output
    if batch.get("x") is None:
        raise ValueError(f"Expected a graph with `x`, got {batch}.")
    present = [name for name in ("edge_weight", "edge_attr") if batch.get(name) is not None]
    given = [name for name in present if _accepts(model)(name)]
    if batch.get("edge_index") is None and batch.get("adj_t") is None:
        raise ValueError(f"Expected a graph with `edge_index` or `adj_t`, got {batch}.")
    says_the_same = "edge_attr" not in given and ("edge_weight" in given) == ("edge_weight" in present)
    adjacency = batch.get("edge_index")
    if batch.get("adj_t") is not None and (adjacency is None or says_the_same):
        adjacency = batch.adj_t
        given = [name for name in given if name != "edge_weight"]  # its values
    output = model(batch.x, adjacency, **{name: batch[name] for name in given})
    return output
