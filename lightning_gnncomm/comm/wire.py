"""How bytes travel between ranks: one exchange and two collectives over one process group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["DistributedWire", "Pending", "Wire"]


class Pending(Protocol):
    """An exchange in flight."""

    def wait(self) -> Tensor:
        """Block until the bytes are there and return them, shape ``[sum(recv_sizes)]``, uint8."""

    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""

    @property
    def seconds(self) -> float:
        """How long the transfer took; until now, if it is not done."""


class Wire(Protocol):
    """Point-to-point bytes and small reductions between the ranks of one group.

    Every rank calls the same methods in the same order; none is ever skipped for a reason that only one rank can see.
    """

    rank: int
    world_size: int

    def exchange(self, send: Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> Pending:
        """Send ``send_sizes[p]`` consecutive bytes of the flat uint8 tensor ``send`` to each rank ``p``; do not wait."""

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Return the ``"sum"``, ``"max"`` or ``"min"`` of a tensor over all ranks; the input is left alone."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which may differ in their first size only."""


class _DistributedPending:
    def __init__(self, work: dist.Work, received: Tensor, sent: Tensor) -> None:
        self._work, self._received = work, received
        self._sent = sent  # must outlive the transfer
        self._start, self._end = time.perf_counter(), 0.0
        # The wire's own thread sees the end; this rank is busy with something else by then.
        work.get_future().add_done_callback(self._finish)

    def _finish(self, _: object) -> None:
        self._end = time.perf_counter()

    def wait(self) -> Tensor:
        self._work.wait()
        return self._received

    def done(self) -> bool:
        return bool(self._work.is_completed())

    @property
    def seconds(self) -> float:
        return (self._end or time.perf_counter()) - self._start


_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class DistributedWire:
    """A :class:`Wire` over a torch.distributed process group (gloo or NCCL).

    Args:
        group: The group; the default group if ``None``. Halo traffic should have one of its own, so that it never queues behind
            the gradient all-reduce.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)

    def exchange(self, send: Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> Pending:
        """See :meth:`Wire.exchange`."""
        received = send.new_empty(sum(recv_sizes))
        work = dist.all_to_all_single(
            received, send, list(recv_sizes), list(send_sizes), group=self.group, async_op=True
        )
        assert work is not None
        return _DistributedPending(work, received, send)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """See :meth:`Wire.all_reduce`."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, _OPS[op], group=self.group)
        return result

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See :meth:`Wire.all_gather`."""
        tensor = tensor.detach().contiguous()
        size = torch.tensor([tensor.size(0)], device=tensor.device)
        sizes = [torch.empty_like(size) for _ in range(self.world_size)]
        dist.all_gather(sizes, size, group=self.group)
        longest = max(int(s) for s in sizes)
        # gloo's all_gather wants equal shapes, so short ranks are padded.
        padded = tensor.new_zeros((longest, *tensor.shape[1:]))
        padded[: tensor.size(0)] = tensor
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(gathered, padded, group=self.group)
        return [rows[: int(s)] for rows, s in zip(gathered, sizes, strict=True)]
