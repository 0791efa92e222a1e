"""Exchanging lists of ids whose lengths only their senders know."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_gnncomm.comm.wire import Wire

__all__ = ["exchange_index"]


def exchange_index(wire: Wire, index: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Send ``counts[p]`` consecutive rows of an int64 tensor ``[S, *]`` to each rank ``p``.

    Returns:
        The rows received ``[R, *]``, ordered by sender, and their number from each rank.

    Example:
        >>> from lightning_gnncomm.testing import run_threads
        >>> def gossip(wire):
        ...     return exchange_index(wire, torch.arange(3) + 10 * wire.rank, [1, 2])[0].tolist()
        >>> run_threads(gossip, 2)
        [[0, 10], [1, 2, 11, 12]]
    """
    sizes = torch.tensor(counts, dtype=torch.long, device=index.device)
    eight = [8] * wire.world_size
    received = wire.exchange(sizes.view(torch.uint8), eight, eight).wait().view(torch.long).tolist()
    width = 8 * index[:1].numel() if index.numel() else 8 * max(int(torch.Size(index.shape[1:]).numel()), 1)
    payload = index.contiguous().reshape(-1).view(torch.uint8)
    rows = wire.exchange(payload, [n * width for n in counts], [n * width for n in received]).wait()
    return rows.view(torch.long).view(-1, *index.shape[1:]), received
