"""One message from end to end: encode, send, wait, decode, count."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
        ...     return channel.carry(rows, peer, peer, Slot("conv", "x"), 0, torch.zeros(1, dtype=torch.long)).tolist()
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
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        slot: Slot,
        step: int,
        row_key: Tensor,
        exact: bool = False,
    ) -> Tensor:
        """Send ``rows`` of shape ``[S, F]``, grouped by receiving rank, and return the ``[R, F]`` rows received.

        Args:
            rows: Rows to send; ``S`` is the sum of ``send_counts``.
            send_counts: Rows for each rank.
            recv_counts: Rows from each rank.
            slot: Name of the message.
            step: Training step, a counter of the rounding randomness.
            row_key: Key of each sent row, shape ``[S]``.
            exact: Leave rows as they are and wait for them, whatever codec and schedule say.
        """
        lossy = slot.role.is_lossy and not exact and rows.is_floating_point()
        codec = self.codec if lossy else self._identity
        action = self.schedule.action(slot, step, None) if lossy else Action.FRESH
        assert action is Action.FRESH, action
        num_features = rows.size(1)
        width = codec.row_nbytes(num_features, rows.dtype)
        if width is None:
            raise NotImplementedError(
                f"{type(codec).__name__} has rows of varying size, which Channel does not carry yet."
            )
        payload = codec.encode(rows, self.rounding_key(slot, step, row_key))
        start = time.perf_counter()
        pending = self.wire.exchange(
            payload.reshape(-1), [n * width for n in send_counts], [n * width for n in recv_counts]
        )
        received = pending.wait().view(-1, width)
        record = TrafficRecord(
            exchanges=1,
            rows=rows.size(0),
            sent_bytes=payload.numel(),
            received_bytes=received.numel(),
            dense_bytes=rows.numel() * rows.element_size(),
            wait_seconds=time.perf_counter() - start,
        )
        self.traffic.add(slot, record)
        if width == 0:
            return rows.new_empty(sum(recv_counts), num_features)
        return codec.decode(received, num_features, rows.dtype)

    def rounding_key(self, slot: Slot, step: int, row_key: Tensor) -> RoundingKey:
        """Return the counters of a message's rounding: seed, step and slot mixed to one number, and a key for each row."""
        # Odd multipliers keep different counters apart.
        mixed = self.seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + slot.key
        mixed ^= (mixed & _MASK) >> 31
        return RoundingKey((mixed * 0x94D049BB133111EB) & _MASK, row_key)
