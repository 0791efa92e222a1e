"""One message from end to end: encode, send, wait, decode, count."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_gnncomm.codecs.base import ChoosingCodec, Codec, RoundingKey, SlotStatistics
from lightning_gnncomm.codecs.identity import IdentityCodec
from lightning_gnncomm.comm.lane import Block, Flight, Lane
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Action, Schedule
from lightning_gnncomm.comm.traffic import Traffic, TrafficRecord
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.slots import Slot

__all__ = ["Channel", "Delivery"]

_MASK = (1 << 63) - 1


class Delivery:
    """A message that was sent, and the rows that are due in its place.

    Args:
        channel: Where waiting and ages are noted.
        lane: The memory of the message.
        slots: Names of its blocks.
        step: Step at which it was sent.
        action: Whether its own rows are due, or those of an earlier step.
        is_exact: Whether it leaves no memory.
    """

    def __init__(
        self, channel: Channel, lane: Lane, slots: tuple[Slot, ...], step: int, action: Action, is_exact: bool
    ) -> None:
        self._channel, self._lane, self._slots = channel, lane, slots
        self._step, self._action, self._is_exact = step, action, is_exact

    def wait(self) -> list[Tensor]:
        """Return the blocks ``[R, F_k]`` that are due, waiting if they have not arrived. To be called once."""
        channel, lane = self._channel, self._lane
        start = time.perf_counter()
        fresh = self._action is Action.FRESH
        rows, seconds = lane.deliver(
            self._step, 0 if fresh else channel.schedule.max_staleness, keep=channel.keeps_rows
        )
        channel.count_seconds(self._slots[0], seconds, time.perf_counter() - start)
        if not self._is_exact:
            assert lane.step is not None
            channel.note(self._slots, self._step - lane.step, self._action)
        return rows


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
        background: Wire of the rows that a codec or schedule handles; by default the same. With one of their own, exact
            messages (statistics of norms, say) do not queue behind rows that nobody waits for.

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
        self,
        wire: Wire,
        codec: Codec,
        schedule: Schedule,
        seed: int = 0,
        traffic: Traffic | None = None,
        background: Wire | None = None,
    ) -> None:
        self.wire = wire
        self.background = wire if background is None else background
        self.codec = codec
        self.schedule = schedule
        self.seed = seed
        self.traffic = Traffic() if traffic is None else traffic
        self.staleness: dict[Slot, StalenessRecord] = {}
        self._statistics: dict[Slot, Tensor] = {}
        self._identity = IdentityCodec()
        self._lanes: dict[tuple[Slot, ...], Lane] = {}

    def carry(
        self,
        blocks: Sequence[tuple[Slot, Tensor]],
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        step: int,
        row_key: Tensor,
        exact: bool = False,
    ) -> list[Tensor]:
        """Send blocks of rows and return those received, see :meth:`start`."""
        return self.start(blocks, send_counts, recv_counts, step, row_key, exact).wait()

    def start(
        self,
        blocks: Sequence[tuple[Slot, Tensor]],
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        step: int,
        row_key: Tensor,
        exact: bool = False,
    ) -> Delivery:
        """Send blocks of rows ``[S, F_k]``, grouped by receiving rank; what is returned waits for the blocks ``[R, F_k]``.

        The blocks of one call travel in one collective, each encoded by itself. On an asynchronous schedule the blocks to wait for
        are those of an earlier step.

        Args:
            blocks: Name and rows of each block; ``S`` is the sum of ``send_counts``.
            send_counts: Rows for each rank.
            recv_counts: Rows from each rank.
            step: Training step, a counter of the rounding randomness.
            row_key: Key of each sent row, shape ``[S]``.
            exact: Leave rows as they are and wait for them, whatever codec and schedule say.
        """
        slots = tuple(slot for slot, _ in blocks)
        is_exact = exact or not slots[0].role.is_lossy
        kinds = tuple(
            Block(
                self._identity if is_exact or not rows.is_floating_point() else self.codec.for_slot(slot),
                rows.size(1),
                rows.dtype,
            )
            for slot, rows in blocks
        )
        lane = Lane() if is_exact else self._lane(slots, row_key)
        action = Action.FRESH if is_exact else self._action(slots, step, lane)
        payloads = [
            lane.encode(number, kind, rows, self.rounding_key(slot, step, row_key))
            for number, (kind, (slot, rows)) in enumerate(zip(kinds, blocks, strict=True))
        ]
        payload = payloads[0] if len(payloads) == 1 else torch.cat(payloads, 1)
        width = payload.size(1)
        wire = self.wire if is_exact else self.background
        pending = wire.exchange(payload.reshape(-1), [n * width for n in send_counts], [n * width for n in recv_counts])
        num_received = sum(recv_counts)
        lane.flights.append(Flight(step, kinds, num_received, pending))
        for kind, (slot, rows), sent in zip(kinds, blocks, payloads, strict=True):
            dense = rows.numel() * rows.element_size()
            self.traffic.add(slot, TrafficRecord(1, rows.size(0), sent.numel(), num_received * kind.width, dense))
        if not is_exact:
            self._probe(lane, blocks, kinds, payloads, fresh=action is Action.FRESH)
            self._count_statistics(blocks)
        return Delivery(self, lane, slots, step, action, is_exact)

    @property
    def keeps_rows(self) -> bool:
        """Whether rows in use may be needed at a later step again."""
        return self.schedule.max_staleness != 0

    def _lane(self, slots: tuple[Slot, ...], owner: Tensor) -> Lane:
        """Return the memory of a message; rows of another part than before have none."""
        lane = self._lanes.get(slots)
        if lane is None or (lane.owner is not None and lane.owner is not owner):
            if lane is not None:
                lane.land()
            lane = self._lanes[slots] = Lane()
        lane.owner = owner
        return lane

    def _action(self, slots: Sequence[Slot], step: int, lane: Lane) -> Action:
        age = None if lane.last_step is None else step - lane.last_step
        actions = [self.schedule.action(slot, step, age) for slot in slots]
        return Action.FRESH if Action.FRESH in actions else Action.STALE

    def _probe(
        self,
        lane: Lane,
        blocks: Sequence[tuple[Slot, Tensor]],
        kinds: Sequence[Block],
        payloads: Sequence[Tensor],
        fresh: bool,
    ) -> None:
        """Compare a few rows with what their receivers use of them."""
        for number, (kind, (_, rows), payload) in enumerate(zip(kinds, blocks, payloads, strict=True)):
            index = lane.probe.index(rows.size(0), rows.device)
            held = lane.sent.get(number) if kind.codec.is_delta else None
            delivered = kind.decode(payload[index]) if held is None else held[index]
            lane.probe.add(number, rows.detach()[index], delivered, fresh)

    @property
    def observes_every(self) -> int | None:
        """After how many steps the codec chooses anew, ``None`` for never."""
        return self.codec.every if isinstance(self.codec, ChoosingCodec) else None

    def _count_statistics(self, blocks: Sequence[tuple[Slot, Tensor]]) -> None:
        if self.observes_every is None:
            return
        for slot, rows in blocks:
            if rows.is_floating_point():
                numbers = ChoosingCodec.statistics_of(rows)
                self._statistics[slot] = self._statistics.get(slot, torch.zeros_like(numbers)) + numbers

    def observe(self, device: Any = "cpu") -> None:
        """Let a codec that chooses see what all ranks sent since the last call; every rank must call."""
        assert isinstance(self.codec, ChoosingCodec)
        slots = sorted(self._statistics, key=Slot.as_plain)
        local = (
            torch.stack([self._statistics[slot] for slot in slots]) if slots else torch.zeros(0, 2, dtype=torch.float64)
        )
        total = self.wire.all_reduce(local.to(device)).tolist()
        self.codec.observe({slot: SlotStatistics(*numbers) for slot, numbers in zip(slots, total, strict=True)})
        self._statistics.clear()

    def note(self, slots: Sequence[Slot], age: int, action: Action) -> None:
        """Count a use of rows of some age, which the schedule must allow."""
        bound = self.schedule.max_staleness
        if bound is not None and age > bound:
            raise RuntimeError(
                f"Rows of '{slots[0]}' are {age} steps old, more than the {bound} that the schedule allows."
            )
        record = StalenessRecord(uses=1, refreshes=int(action is Action.FRESH), age=age, oldest=age)
        for slot in slots:
            self.staleness.setdefault(slot, StalenessRecord()).__iadd__(record)

    def close_window(self) -> None:
        """Add the errors probed since the last call to :attr:`staleness`."""
        for slots, lane in self._lanes.items():
            for number, record in lane.probe.close_window().items():
                self.staleness.setdefault(slots[number], StalenessRecord()).__iadd__(record)

    def drain(self) -> None:
        """Wait for everything in flight and keep it for the step that will use it."""
        for slots, lane in self._lanes.items():
            if lane.flights:
                start = time.perf_counter()
                seconds = lane.land()
                self.count_seconds(slots[0], seconds, time.perf_counter() - start)

    def count_seconds(self, slot: Slot, seconds: float, waited: float) -> None:
        """Count how long transfers took, and how much of that this rank stood still for."""
        self.traffic.add(slot, TrafficRecord(wait_seconds=waited, hidden_seconds=max(seconds - waited, 0.0)))

    def state_dict(self) -> dict[str, Any]:
        """Return what the wire remembers on this rank, as plain data; nothing is in flight after it."""
        self.drain()
        lanes = [([slot.as_plain() for slot in slots], lane.state()) for slots, lane in self._lanes.items()]
        return {
            "lanes": lanes,
            "schedule": self.schedule.state_dict(),
            "codec": self.codec.state_dict() if isinstance(self.codec, ChoosingCodec) else {},
            "statistics": [(slot.as_plain(), numbers) for slot, numbers in self._statistics.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any], device: Any = "cpu") -> None:
        """Continue from a :meth:`state_dict` of this rank."""
        self._lanes = {
            tuple(Slot.from_plain(plain) for plain in slots): Lane.restore(lane, device)
            for slots, lane in state["lanes"]
        }
        self.schedule.load_state_dict(state["schedule"])
        if isinstance(self.codec, ChoosingCodec):
            self.codec.load_state_dict(state["codec"])
        self._statistics = {Slot.from_plain(plain): numbers.to(device) for plain, numbers in state["statistics"]}

    def all_reduce(self, x: Tensor, slot: Slot) -> Tensor:
        """Return the sum of ``x`` over all ranks and count the bytes handed over.

        A ring all-reduce puts ``2 (P - 1) / P`` times as many on the wire.
        """
        nbytes = x.numel() * x.element_size()
        self.traffic.add(slot, TrafficRecord(1, 0, nbytes, nbytes, nbytes))
        return self.wire.all_reduce(x)

    def rounding_key(self, slot: Slot, step: int, row_key: Tensor) -> RoundingKey:
        """Return the counters of a message's rounding: seed, step and slot mixed to one number, and a key for each row."""
        # Odd multipliers keep different counters apart.
        mixed = self.seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + slot.key
        mixed ^= (mixed & _MASK) >> 31
        return RoundingKey((mixed * 0x94D049BB133111EB) & _MASK, row_key)
