"""Threads as ranks: distributed code tested in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lightning_gnncomm.comm.wire import Pending, Wire

__all__ = ["ThreadWire", "run_threads"]

T = TypeVar("T")


class _Meeting:
    """What the threads of one group share: a place for each and a barrier."""

    def __init__(self, world_size: int, timeout: float) -> None:
        self.places: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=timeout)


class _Arrived(NamedTuple):
    received: Tensor
    seconds: float = 0.0

    def wait(self) -> Tensor:
        return self.received

    def done(self) -> bool:
        return True


class ThreadWire:
    """A :class:`~lightning_gnncomm.comm.wire.Wire` between the threads of :func:`run_threads`."""

    def __init__(self, rank: int, world_size: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.world_size = world_size
        self._meeting = meeting

    def _swap(self, value: Any) -> list[Any]:
        """Give every thread what every thread brought."""
        self._meeting.places[self.rank] = value
        self._meeting.barrier.wait()
        everything = list(self._meeting.places)
        self._meeting.barrier.wait()
        return everything

    def exchange(self, send: Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> Pending:
        """See :meth:`Wire.exchange`."""
        assert send.dtype == torch.uint8 and send.numel() == sum(send_sizes)
        everything = self._swap(send.split(list(send_sizes)))
        received = [everything[peer][self.rank] for peer in range(self.world_size)]
        assert [piece.numel() for piece in received] == list(recv_sizes)
        return _Arrived(torch.cat(received))

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """See :meth:`Wire.all_reduce`."""
        stacked = torch.stack(self._swap(tensor.detach().clone()))
        if op == "sum":
            return stacked.sum(0)
        return stacked.amax(0) if op == "max" else stacked.amin(0)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See :meth:`Wire.all_gather`."""
        return self._swap(tensor.detach().clone())


def run_threads(function: Callable[[Wire], T], world_size: int, timeout: float = 60.0) -> list[T]:
    """Run ``function(wire)`` on as many threads as ranks and return the results by rank.

    Raises:
        Exception: What the first rank to fail raised, with its rank added; the other ranks are released, so none hangs.

    Example:
        >>> run_threads(lambda wire: wire.all_reduce(torch.tensor(wire.rank)).item(), 3)
        [3, 3, 3]
    """
    meeting = _Meeting(world_size, timeout)
    results: list[Any] = [None] * world_size
    failures: list[tuple[int, BaseException]] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(ThreadWire(rank, world_size, meeting))
        except BaseException as error:  # noqa: BLE001  # raised by the caller's thread
            failures.append((rank, error))
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        # Ranks that were only released by the abort say nothing about the cause.
        causes = [f for f in failures if not isinstance(f[1], threading.BrokenBarrierError)] or failures
        rank, error = causes[0]
        error.add_note(f"raised on rank {rank} of {world_size}") if hasattr(error, "add_note") else None
        raise error
    return results
