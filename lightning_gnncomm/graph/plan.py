"""The halo plan of one part: which rows go where, in which order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

__all__ = ["HaloPlan"]


@dataclass(frozen=True, eq=False, repr=False)
class HaloPlan:
    """Which of a part's rows each peer needs, and how many rows come back.

    It lies on the part as ``batch.halo`` and moves with it between devices; a heterogeneous part has one per node type there, and
    everything below is of that type. Rows are ordered by peer and, for one peer, by global node id, on both ends, so that no index
    travels with a message.

    Args:
        num_local: Number of nodes :math:`n` this part owns.
        num_global: Number of nodes of the whole graph; global ids count from 0 in each node type.
        send_index: Local rows to send, grouped by the receiving part, shape ``[S]``, int64.
        send_counts: Rows sent to each part; sums to ``S``, zero for the part itself.
        recv_counts: Rows received from each part; sums to the halo size ``H``.
        send_key: Key of each sent row for counter-based rounding (its global node id plus ``first_key``), shape ``[S]``, int64.
        recv_key: Key of each halo row for the rounding of its gradient, shape ``[H]``, int64. It names the node *and* this part,
            since the gradients of one node come from several parts and their rounding errors must be independent.
        first_key: Key of the type's first node, so that no two types share one; 0 for a homogeneous graph.
        num_keys: Number of keys of all types together, ``num_global`` for a homogeneous graph (the default).

    Shapes:
        exchanged rows go from ``[n, *]`` to ``[H, *]``; edges of the part point from ``0..n+H-1`` to ``0..n-1``.

    Example:
        >>> plan = HaloPlan.trivial(5)
        >>> plan.num_halo, plan.num_parts
        (0, 1)
    """

    num_local: int
    num_global: int
    send_index: Tensor
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]
    send_key: Tensor
    recv_key: Tensor
    first_key: int = 0
    num_keys: int | None = None

    def __post_init__(self) -> None:
        assert len(self.send_counts) == len(self.recv_counts)
        assert self.send_index.numel() == self.send_key.numel() == sum(self.send_counts)
        assert self.recv_key.numel() == sum(self.recv_counts)

    @classmethod
    def trivial(cls, num_nodes: int) -> HaloPlan:
        """Return the plan of a graph (or of one node type) that lies whole on one rank: no halo."""
        empty = torch.empty(0, dtype=torch.long)
        return cls(num_nodes, num_nodes, empty, (0,), (0,), empty, empty)

    @property
    def num_parts(self) -> int:
        """Number of parts of the graph."""
        return len(self.send_counts)

    @property
    def num_halo(self) -> int:
        """Number of halo rows ``H``."""
        return sum(self.recv_counts)

    @property
    def halo_ids(self) -> Tensor:
        """Global ids of the halo nodes within their type, shape ``[H]``, int64."""
        num_keys = self.num_global if self.num_keys is None else self.num_keys
        return self.recv_key % max(num_keys, 1) - self.first_key

    @property
    def num_sent(self) -> int:
        """Number of rows ``S`` sent in one exchange."""
        return sum(self.send_counts)

    def global_ids(self, own: Tensor) -> Tensor:
        """Return the global ids of own and halo nodes ``[n + H]`` within their type, given those of own nodes ``[n]``."""
        return torch.cat([own, self.halo_ids])

    def to(self, device: Any, non_blocking: bool = False) -> HaloPlan:
        """Return the plan with its tensors on ``device`` (``Data.to`` calls this), itself if they are there already."""
        tensors = {name: getattr(self, name) for name in ("send_index", "send_key", "recv_key")}
        moved = {name: tensor.to(device=device, non_blocking=non_blocking) for name, tensor in tensors.items()}
        # What is derived from a part is found again by its plan, so a plan that stays is the same object.
        stays = all(moved[name] is tensor for name, tensor in tensors.items())
        return self if stays else replace(self, **moved)

    def cpu(self) -> HaloPlan:
        """Return the plan with its tensors in main memory (``Data.cpu`` calls this)."""
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> HaloPlan:
        """Return the plan with its tensors on a GPU, the current one by default (``Data.cuda`` calls this)."""
        return self.to("cuda" if device is None else device, non_blocking)

    def __repr__(self) -> str:
        counts = f"num_local={self.num_local}, num_halo={self.num_halo}, num_sent={self.num_sent}"
        return f"HaloPlan({counts}, num_parts={self.num_parts})"
