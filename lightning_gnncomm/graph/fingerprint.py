"""Content hashes of graphs, and what of a graph can be stored at all."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from lightning_gnncomm.graph.adjacency import sparse_parts

__all__ = ["add_tensor", "check_storable", "fingerprint", "short_hash"]


def fingerprint(graph: Data) -> str:
    """Return a hash of ``edge_index`` and every attribute of a checked graph: 32 hexadecimal digits.

    Ids count by value, not by width: an int32 and an int64 ``edge_index`` give the same hash.

    Raises:
        ValueError: If an attribute cannot be stored.

    Example:
        >>> graph = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
        >>> fingerprint(graph) == fingerprint(graph.clone())
        True
    """
    check_storable(graph)
    digest = hashlib.sha256()
    for key in sorted(graph.to_dict()):
        value = graph[key]
        if isinstance(value, Tensor):
            add_tensor(digest, key, value.long() if key == "edge_index" else value)
        else:
            digest.update(f"{key}\0{json.dumps(value, sort_keys=True)}\0".encode())
    return digest.hexdigest()[:32]


def add_tensor(digest: Any, key: str, value: Tensor) -> None:
    """Feed a named tensor to a hash of ``hashlib``: its name, type, shape and bytes, or those of what a sparse one consists of."""
    if value.layout != torch.strided:
        for name, inner in sparse_parts(value).items():
            add_tensor(digest, f"{key}.{name}", inner)
        return
    digest.update(f"{key}\0{value.dtype}\0{list(value.shape)}\0".encode())
    # Bytes, because NumPy has no bfloat16; reshaped, because a scalar has no bytes to view.
    plain = value.detach().cpu().as_subclass(Tensor).contiguous().reshape(-1)
    digest.update(plain.view(torch.uint8).numpy().data)


def check_storable(graph: Data) -> None:
    """Raise a ``ValueError`` that names the first attribute which is neither a dense tensor, nor ``adj_t``, nor plain JSON data."""
    for key, value in graph.to_dict().items():
        if isinstance(value, Tensor) and (value.layout == torch.strided or key == "adj_t") and not value.is_quantized:
            continue
        try:
            same = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(
                f"Expected attributes that are tensors or plain JSON data (numbers, strings, lists, dicts with string keys), "
                f"got {key!r} of type {type(value).__name__}, which cannot be stored. Convert it to a tensor or delete it."
            )


def short_hash(value: Any) -> str:
    """Return 12 hexadecimal digits that stand for plain JSON data.

    Example:
        >>> short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
        True
    """
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=6).hexdigest()
