"""Pairs of nodes that are scored: ``edge_label_index`` and its kin, as PyG's ``RandomLinkSplit`` makes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["cut_pairs", "id_key", "is_pair_key", "join_pairs", "pair_keys", "row_keys"]

_KEY = "edge_label_index"


def is_pair_key(key: str) -> bool:
    """Whether an attribute holds pairs: ``edge_label_index``, ``pos_edge_label_index`` or ``neg_edge_label_index``."""
    return key.endswith(_KEY)


def pair_keys(store: Any) -> list[str]:
    """Return the names of a store's pairs."""
    return [key for key in store.keys() if is_pair_key(key)]  # noqa: SIM118 - no mapping


def id_key(key: str) -> str:
    """Return under which name a part has the places that its pairs have among all pairs.

    Example:
        >>> id_key("edge_label_index")
        'edge_label_id'
    """
    return f"{key.removesuffix('_index')}_id"


def row_keys(store: Any, key: str) -> list[str]:
    """Return the attributes with a row for each pair: those named like the pairs, such as ``edge_label``."""
    stem, number = key.removesuffix("_index"), store[key].size(1)
    named = [other for other in store.keys() if other.startswith(stem) and not is_pair_key(other)]  # noqa: SIM118
    return [other for other in named if isinstance(store[other], Tensor) and store[other].shape[:1] == (number,)]


def cut_pairs(store: Any, ids: Tensor, places: Tensor, first: int) -> dict[str, Tensor]:
    """Return a part's pairs, their places among all, and what belongs to them.

    Args:
        store: The whole graph's store.
        ids: Ids of the part's pairs; those of all pairs of the store begin with ``first``.
        places: Local ends ``[2, L_p]``.
        first: See ``ids``.
    """
    cut: dict[str, Tensor] = {}
    for key in pair_keys(store):
        number = store[key].size(1)
        chosen = (ids >= first) & (ids < first + number)
        own = ids[chosen] - first
        cut |= {key: places[:, chosen], id_key(key): own}
        cut |= {other: store[other].detach().cpu()[own] for other in row_keys(store, key)}
        first += number
    return cut


def join_pairs(key: str, global_pairs: list[Tensor], pieces: list[Any]) -> dict[str, Tensor]:
    """Return the pairs of all parts, and what belongs to them, in their original order.

    Args:
        key: Name of the pairs.
        global_pairs: Those of each part by global ids ``[2, L_p]``.
        pieces: The parts' stores.
    """
    order = torch.cat([piece[id_key(key)] for piece in pieces]).argsort()
    names = [other for other in row_keys(pieces[0], key) if other != id_key(key)]
    joined = {other: torch.cat([piece[other] for piece in pieces])[order] for other in names}
    return {key: torch.cat(global_pairs, dim=1)[:, order]} | joined
