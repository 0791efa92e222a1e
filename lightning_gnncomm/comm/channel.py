"""One message from end to end: encode, send, wait, decode, count."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_gnncomm.codecs.base import Codec, RoundingKey
from lightning_gnncomm.codecs.identity import IdentityCodec
from lightning_gnncomm.comm.schedule import Action, Schedule
from lightning_gnncomm.comm.traffic import Traffic, TrafficRecord
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.slots import Slot

__all__ = ["Channel"]

_MASK = (1 << 63) - 1


class Channel:
    """Carries rows between the ranks of a wire with one codec and one schedule.

    Forward rows and their gradients go through the same :meth:`carry`, the latter with the counts swapped and the gradient role
    in the slot.

    Args:
        wire: The group of ranks.
        codec: Codec of feature and gradient rows; rows in an exact role never see it.
        schedule: When rows are due.
        seed: Seed of the rounding randomness.
        traffic: Where messages are counted; a new count if ``None``.

    Example:
        >>> import torch
        >>> from lightning_gnncomm.testing import run_threads
        >>> from lightning_gnncomm.comm.schedule import Synchronous
        >>> def swap(wire):
        ...     channel = Channel(wire, IdentityCodec(), Synchronous())
        ...     rows, peer = torch.full((1, 2), float(wire.rank)), [wire.rank, 1 - wire.rank]
        ...     blocks, key = [(Slot("conv", "x"), rows)], torch.zeros(1, dtype=torch.long)
        ...     return channel.carry(blocks, peer, peer, step=0, row_key=key)[0].tolist()
        >>> run_threads(swap, 2)
        [[[1.0, 1.0]], [[0.0, 0.0]]]
    """

    def __init__(
        self, wire: Wire, codec: Codec, schedule: Schedule, seed: int = 0, traffic: Traffic | None = None
    ) -> None:
        self.wire = wire
        self.codec = codec
        self.schedule = schedule
        self.seed = seed
        self.traffic = Traffic() if traffic is None else traffic
        self._identity = IdentityCodec()

    def carry(
        self,
        blocks: Sequence[tuple[Slot, Tensor]],
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        step: int,
        row_key: Tensor,
        exact: bool = False,
    ) -> list[Tensor]:
        """Send blocks of rows ``[S, F_k]``, grouped by receiving rank, and return the blocks ``[R, F_k]`` received.

        The blocks of one call travel in one collective, each encoded by itself.

        Args:
            blocks: Name and rows of each block; ``S`` is the sum of ``send_counts``.
            send_counts: Rows for each rank.
            recv_counts: Rows from each rank.
            step: Training step, a counter of the rounding randomness.
            row_key: Key of each sent row, shape ``[S]``.
            exact: Leave rows as they are and wait for them, whatever codec and schedule say.
        """
        codecs = [self._codec(slot, rows, step, exact) for slot, rows in blocks]
        widths = [self._width(codec, rows) for codec, (_, rows) in zip(codecs, blocks, strict=True)]
        payloads = [
            codec.encode(rows, self.rounding_key(slot, step, row_key))
            for codec, (slot, rows) in zip(codecs, blocks, strict=True)
        ]
        payload = payloads[0] if len(payloads) == 1 else torch.cat(payloads, 1)
        width = sum(widths)
        start = time.perf_counter()
        pending = self.wire.exchange(
            payload.reshape(-1), [n * width for n in send_counts], [n * width for n in recv_counts]
        )
        received = pending.wait().view(sum(recv_counts), width).split(widths, 1)
        waited = time.perf_counter() - start
        results = []
        for codec, (slot, rows), sent, piece in zip(codecs, blocks, payloads, received, strict=True):
            dense = rows.numel() * rows.element_size()
            self.traffic.add(slot, TrafficRecord(1, rows.size(0), sent.numel(), piece.numel(), dense, waited))
            waited = 0.0  # of a shared message, counted once
            results.append(codec.decode(piece, rows.size(1), rows.dtype))
        return results

    def all_reduce(self, x: Tensor, slot: Slot) -> Tensor:
        """Return the sum of ``x`` over all ranks and count the bytes handed over.

        A ring all-reduce puts ``2 (P - 1) / P`` times as many on the wire.
        """
        nbytes = x.numel() * x.element_size()
        self.traffic.add(slot, TrafficRecord(1, 0, nbytes, nbytes, nbytes))
        return self.wire.all_reduce(x)

    def _codec(self, slot: Slot, rows: Tensor, step: int, exact: bool) -> Codec:
        if exact or not slot.role.is_lossy or not rows.is_floating_point():
            return self._identity
        action = self.schedule.action(slot, step, None)
        assert action is Action.FRESH, action
        codec = self.codec.for_slot(slot)
        if codec.is_delta:
            raise NotImplementedError(
                f"{type(codec).__name__} codes differences to rows that Channel does not keep yet."
            )
        return codec

    @staticmethod
    def _width(codec: Codec, rows: Tensor) -> int:
        width = codec.row_nbytes(rows.size(1), rows.dtype)
        if width is None:
            raise NotImplementedError(
                f"{type(codec).__name__} has rows of varying size, which Channel does not carry yet."
            )
        return width

    def rounding_key(self, slot: Slot, step: int, row_key: Tensor) -> RoundingKey:
        """Return the counters of a message's rounding: seed, step and slot mixed to one number, and a key for each row."""
        # Odd multipliers keep different counters apart.
        mixed = self.seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + slot.key
        mixed ^= (mixed & _MASK) >> 31
        return RoundingKey((mixed * 0x94D049BB133111EB) & _MASK, row_key)
