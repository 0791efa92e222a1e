"""What is remembered of a message between steps: transfers in flight, rows that arrived, rows both ends hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_gnncomm.codecs.base import Codec, RoundingKey
from lightning_gnncomm.comm.probe import Probe
from lightning_gnncomm.comm.wire import Pending

__all__ = ["Block", "Flight", "Lane"]


@dataclass(frozen=True)
class Block:
    """How one block of rows travels in a message; both ends know it without a message.

    Args:
        codec: Its codec.
        num_features: Values a row.
        dtype: Type of the rows.
    """

    codec: Codec
    num_features: int
    dtype: torch.dtype

    @property
    def width(self) -> int:
        """Bytes a row."""
        width = self.codec.row_nbytes(self.num_features, self.dtype)
        if width is None:
            raise NotImplementedError(
                f"{type(self.codec).__name__} has rows of varying size, which Channel does not carry yet."
            )
        return width

    def decode(self, payload: Tensor) -> Tensor:
        """Return rows ``[R, F]`` from their payload ``[R, width]``; differences are in float32 at least."""
        return self.codec.decode(payload, self.num_features, self.held_dtype if self.codec.is_delta else self.dtype)

    @property
    def held_dtype(self) -> torch.dtype:
        """Type of rows that both ends hold."""
        return torch.promote_types(self.dtype, torch.float32)


@dataclass
class Flight:
    """A message on its way from and to all ranks.

    Args:
        step: Step at which it was sent.
        blocks: What it consists of.
        num_rows: Rows received.
        pending: The transfer.
    """

    step: int
    blocks: tuple[Block, ...]
    num_rows: int
    pending: Pending

    def payloads(self) -> tuple[Tensor, ...]:
        """Wait for the rows and return the bytes of each block, ``[R, width]``."""
        widths = [block.width for block in self.blocks]
        payload = self.pending.wait().view(self.num_rows, sum(widths))
        return tuple(payload.split(widths, 1))


class Lane:
    """The memory of one recurring message on this rank."""

    def __init__(self) -> None:
        self.owner: object = None  # what its rows belong to, the plan's index of them; None as restored
        self.flights: deque[Flight] = deque()
        self.rows: list[Tensor] | None = None
        self.step: int | None = None
        self.sent: dict[int, Tensor] = {}
        self.received: dict[int, Tensor] = {}
        self.probe = Probe()

    @property
    def last_step(self) -> int | None:
        """Step of the last message sent, ``None`` before the first."""
        return self.flights[-1].step if self.flights else self.step

    def encode(self, number: int, block: Block, rows: Tensor, key: RoundingKey) -> Tensor:
        """Encode a block of own rows ``[S, F]``, those of a delta codec as differences to what the receivers hold."""
        if not block.codec.is_delta:
            return block.codec.encode(rows, key)
        held = self.sent.get(number)
        if held is None:
            held = rows.new_zeros(rows.shape, dtype=block.held_dtype)
        payload = block.codec.encode(rows.detach() - held, key)
        self.sent[number] = _finite(held + block.decode(payload))
        return payload

    def land(self, last_step: int | None = None) -> float:
        """Wait for the flights up to ``last_step`` (all by default), in order, and keep the rows of the last one.

        Returns:
            Seconds that their transfers took.
        """
        seconds = 0.0
        while self.flights and (last_step is None or self.flights[0].step <= last_step):
            flight = self.flights.popleft()
            is_last = not self.flights or (last_step is not None and self.flights[0].step > last_step)
            payloads = flight.payloads()
            seconds += flight.pending.seconds
            self.step = flight.step
            rows = [
                self._receive(number, block, payload)
                for number, (block, payload) in enumerate(zip(flight.blocks, payloads, strict=True))
                if is_last or block.codec.is_delta
            ]
            if is_last:
                self.rows = rows
        return seconds

    def _receive(self, number: int, block: Block, payload: Tensor) -> Tensor:
        decoded = block.decode(payload)
        if not block.codec.is_delta:
            return decoded
        held = self.received.get(number)
        rows = decoded if held is None else held + decoded
        # One bad step passes: what is not finite is used once and held as zero.
        self.received[number] = _finite(rows)
        return rows.to(block.dtype)

    def deliver(self, step: int, bound: int | None, keep: bool) -> tuple[list[Tensor], float]:
        """Return the rows due at a step and the seconds that transfers landed for it took.

        Args:
            step: The step; its own message is on its way already.
            bound: Largest age of the rows, 0 for those of the step itself, ``None`` for whatever has arrived.
            keep: Whether rows may be used again, or be the ones to start from at the next step.
        """
        due = step if bound == 0 else self._newest_before(step, bound)
        seconds = self.land(due)
        assert self.rows is not None
        rows = [block.detach() for block in self.rows]  # autograd marks what it is given
        if bound == 1 or not keep:
            self.rows = None  # the next step lands newer ones
        return rows, seconds

    def _newest_before(self, step: int, bound: int | None) -> int:
        """Return up to which step flights are landed: all that must be, and those that have arrived already."""
        due = -1 if bound is None else step - bound
        for flight in self.flights:
            if flight.step >= step or not (flight.step <= due or flight.pending.done()):
                break
            due = max(due, flight.step)
        if self.step is None:
            due = max(due, self.flights[0].step)
        return due

    def state(self) -> dict[str, Any]:
        """Return the memory as plain data; what is in flight is waited for."""
        self.land()
        return {
            "step": self.step,
            "rows": self.rows,
            "sent": self.sent,
            "received": self.received,
            "probe": self.probe.state(),
        }

    @classmethod
    def restore(cls, state: dict[str, Any], device: Any) -> Lane:
        """Return a lane from its :meth:`state`."""
        lane = cls()
        lane.step = state["step"]
        lane.rows = None if state["rows"] is None else [rows.to(device) for rows in state["rows"]]
        lane.sent = {number: rows.to(device) for number, rows in state["sent"].items()}
        lane.received = {number: rows.to(device) for number, rows in state["received"].items()}
        lane.probe.restore(state["probe"], device)
        return lane


def _finite(rows: Tensor) -> Tensor:
    return torch.where(rows.isfinite(), rows, torch.zeros_like(rows))
